"""Finds a CompressionState whose communication hook was not registered."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any, Callable, List

from torch.optim import Optimizer

from .optimizer_hooks import remove_later, steps_any, until_collected, watch_steps

if TYPE_CHECKING:
    from .state import CompressionState


def require_hook(state: CompressionState) -> Callable[[], None]:
    """Raise an error when an optimizer uses gradients of a state that no hook exchanges.

    Such a script would train without compression, without the optimizer's momentum and, if it does
    not use DistributedDataParallel, without the other workers.

    Parameters
    ----------
    state : CompressionState
        It has exchanged nothing yet.

    Returns
    -------
    callable
        Ends the check. The state calls it when its first exchange begins.
    """
    reference = weakref.ref(state)

    def before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        watched = reference()
        if watched is None or not watched.gradients.has_computed:
            return
        if watched.exchange.workers == 1 and watched.momentum is None:
            return  # nothing is lost: such a script makes no DistributedDataParallel
        if ended or not steps_any(optimizer, set(watched.parameters.values())):
            return
        if not _is_registered(watched):
            raise RuntimeError(
                "the optimizer steps, but no gradient of its CompressionState was exchanged: "
                "register the hook with ddp.register_comm_hook(state, bps.compression_hook) before "
                "the first backward"
            )
        ended.append(True)
        remove_later(end)  # this hook is being called

    ended: List[bool] = []
    end = until_collected(state, watch_steps(before_step))
    return end


def _is_registered(state: CompressionState) -> bool:
    """Return whether a DistributedDataParallel has the state. Then the script steps in no_sync."""
    return any(
        isinstance(pair, tuple) and len(pair) == 2 and callable(pair[0]) and pair[1] is state
        for pair in gc.get_referrers(state)
    )
