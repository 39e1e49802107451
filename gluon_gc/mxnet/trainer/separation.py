"""Moves tensors from shared messages to messages of their own.

The codec of a message compresses all of its chunks in every exchange. A tensor that takes no part
in an exchange would be compressed as zeros. Its residual and momentum would change, and the result
would be lost.
"""

from __future__ import annotations

from typing import Collection, Mapping, Set

from ..exchange.exchange import Exchange
from ..state import tensor_states


def separate(exchange: Exchange, names: Collection[str], ratios: Mapping[str, float]) -> bool:
    """Give tensors messages of their own if a shared message cannot be exchanged as it is.

    This concerns messages with residuals or momentum. Such a message cannot be exchanged if only
    some of its tensors take part, or if they have different ratios. Residuals, momentum and random
    streams move with the tensors. All workers make the same call.

    Parameters
    ----------
    exchange : Exchange
    names : collection of str
        The tensors of the next exchange.
    ratios : mapping
        For each tensor, previous learning rate / current one, where that is not 1.

    Returns
    -------
    Whether any tensor was moved.
    """
    split: Set[str] = set()
    for channel in exchange.channels.of(names):
        if channel.params is not None and channel.params.keeps_state:
            different = len({ratios.get(name, 1.0) for name in channel.tensors}) > 1
            if different or not channel.tensors <= names:
                split |= channel.tensors
    if not split:
        return False
    together = _with_all_that_share(exchange, split)
    arrays = dict(tensor_states.state(exchange, together))
    exchange.declare(exchange.withdraw(together), bundled=False)
    tensor_states.load(exchange, together, arrays)
    return True


def _with_all_that_share(exchange: Exchange, names: Set[str]) -> Set[str]:
    """These tensors, and all tensors that share messages with them, directly or indirectly."""
    while True:
        sharing = {name for channel in exchange.channels.of(names) for name in channel.tensors}
        if sharing <= names:
            return names
        names = names | sharing
