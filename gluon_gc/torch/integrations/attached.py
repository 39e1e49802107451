"""AttachedCompression: compression of a model and optimizer that a training tool has prepared."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Callable, Mapping, Sequence

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ...exchange.exchange import Exchange
from ...reporting import Reporter
from .. import reports
from ..algorithms.state import AlgorithmState
from ..ddp import compression_hook, local_gradients_hook
from ..gradients.optimizer_hooks import unwrapped
from ..gradients.state import CompressionState
from ..optimizer.copies import Distributed
from ..optimizer.distributed import DistributedOptimizer
from ..state.state_dicts import StateDict, if_all_fit

_SAVING = "save a checkpoint"


class AttachedCompression:
    """The compression of a model and an optimizer that a training tool has prepared.

    All workers create it together, and call its methods together. `report` has the arguments of
    `bps.report`, and the attribute `reporter` its result, if there is one.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optimizer | None,
        compression_params: Mapping[str, Any] | None = None,
        algorithm: None | str | Mapping[str, Any] = None,
        grad_scaler: torch.amp.GradScaler | None = None,
        gathers_everywhere: bool = False,
        report: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.model = _in_ddp(model)
        inner = unwrapped(optimizer)
        if isinstance(inner, Distributed):  # a tool retries its loop, with a smaller batch
            inner.compression_state.close()
        self._everywhere, self._without_ddp = gathers_everywhere, ExitStack()
        self._optimizer = inner
        named = self.model.module.named_parameters()
        self.state: CompressionState | AlgorithmState
        if algorithm is None:
            self.state = CompressionState(
                named, compression_params, optimizer, grad_scaler=grad_scaler, **options
            )
            hook = compression_hook
        else:
            if optimizer is None:
                raise ValueError("an algorithm needs a training loop with one optimizer")
            options = {"compression_params": compression_params, "algorithm": algorithm, **options}
            DistributedOptimizer(optimizer, named, **options)
            self.state = inner.compression_state
            hook = local_gradients_hook
        self.reporter: Reporter | None = None
        try:
            self.model.register_comm_hook(self.state, hook)
            # DDP cannot begin a static graph within no_sync.
            if algorithm is not None and not self.model.static_graph:
                self._without_ddp.enter_context(self.model.no_sync())
            if report is not None:
                self.reporter = reports.report(self.state, **report)
        except BaseException:
            self.close()
            raise

    def keep_gradients_local(self) -> None:
        """With an algorithm, set the flag of DDP's no_sync again if a tool has set it back.

        The hook keeps gradients local in any case. The flag saves DDP's work and traffic.
        """
        if isinstance(self.state, AlgorithmState) and not self.model.static_graph:
            self.model.require_backward_grad_sync = False

    @property
    def _exchange(self) -> Exchange:
        state = self.state
        return state.exchange if isinstance(state, CompressionState) else state.rounds.exchange

    def is_of(self, model: torch.nn.Module) -> bool:
        return _in_ddp(model) is self.model

    def is_of_optimizer(self, optimizer: Optimizer) -> bool:
        """Return whether this compresses the gradients of an optimizer or of its wrapper."""
        return unwrapped(optimizer) is self._optimizer

    def set_epoch(self, epoch: int) -> None:
        self.state.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all workers on the worker with rank 0, which writes the checkpoint.

        Other workers get an empty dict, unless `gathers_everywhere`.
        """
        own, exchange = self.state.state_dict(), self._exchange
        gather = exchange.gather_objects if self._everywhere else exchange.members.gather_to_first
        workers = gather(own, _SAVING)
        return {} if workers is None else {"workers": workers}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from the result of rank 0's `state_dict`.

        Each worker takes its own state. If the number of workers has changed, residuals are divided
        anew; see `CompressionState.load_state_dict`.
        """
        self.load(lambda: _workers(state_dict))

    def load(self, read: Callable[[], StateDict | Sequence[StateDict]]) -> None:
        """Continue from the state or states that `read` returns on each worker.

        If `read` fails on one worker, all workers raise an error.
        """
        self.state.load_state_dict(if_all_fit(self._exchange.gather_objects, read))

    def close(self) -> None:
        """Stop the threads. The model cannot be trained any more."""
        self._without_ddp.close()
        self.state.close()


def _in_ddp(model: torch.nn.Module) -> DistributedDataParallel:
    """Return the DistributedDataParallel of a model, which torch.compile may have wrapped."""
    model = getattr(model, "_orig_mod", model)
    if not isinstance(model, DistributedDataParallel):
        raise ValueError(
            "compression needs a model in DistributedDataParallel, but the tool has made a "
            f"{type(model).__name__}: start two or more workers, and select DDP"
        )
    return model


def _workers(state_dict: Mapping[str, Any]) -> list[StateDict]:
    if "workers" not in state_dict:
        raise ValueError("this checkpoint has no states of all workers' compression")
    return state_dict["workers"]
