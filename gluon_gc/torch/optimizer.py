"""DistributedOptimizer: BytePS's way to average gradients, without DistributedDataParallel."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

import torch
from torch.futures import Future
from torch.optim import Optimizer

from .state import CompressionState
from .steps import before_step

_BUCKET_BYTES = 4 * 2**20  # of gradients that are handed over together, about


class _Averaging:
    """What a distributed optimizer has in addition; it is mixed into the optimizer's class."""

    _averager: Averager

    @property
    def compression_state(self) -> CompressionState:
        """What compression keeps: for its stats, epochs and checkpoints."""
        return self._averager.state

    def synchronize(self) -> None:
        """Wait until all gradients are averages; `step` does so by itself.

        Gradients that backward did not compute are averaged as zeros.
        """
        self._averager.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within, `step` does not average, since `synchronize` was called, as for clipping."""
        self._averager.synchronizes = False
        try:
            yield
        finally:
            self._averager.synchronizes = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How often backward is called before `step`; see `DistributedOptimizer`."""
        self._averager.set_passes(passes)


def DistributedOptimizer(
    optimizer: Optimizer,
    named_parameters: Optional[Iterable[Tuple[str, torch.nn.Parameter]]] = None,
    compression_params: Optional[Mapping[str, Any]] = None,
    backward_passes_per_step: int = 1,
    **options: Any,
) -> Optimizer:
    """Make an optimizer average gradients over all workers: during backward, before it steps.

    Every worker makes its optimizers, and calls their methods, in the same order.

    Parameters
    ----------
    optimizer : Optimizer
        It is changed, and returned: its class has the methods `synchronize`, `skip_synchronize` and
        `set_backward_passes_per_step` now, and the attribute `compression_state`.
    named_parameters : iterable of (str, Parameter), optional
        As `model.named_parameters()`, of all that the optimizer steps; by default they are
        numbered.
    compression_params : dict, optional
        As `gluon_gc.DistributedTrainer` takes it.
    backward_passes_per_step : int
        How often backward is called before `step`. Their gradients are added up, and averaged over
        workers in the last of them.
    **options
        overrides, process_group, on_nonfinite, grad_scaler: as `CompressionState` has them.

    Raises
    ------
    ValueError, TypeError, KeyError
        Wrong arguments, before anything is sent.
    RuntimeError
        Workers differ in version, settings or parameters.

    References
    ----------
    byteps.torch.DistributedOptimizer (BytePS).
    """
    stepped = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    named = list(named_parameters or ((f"parameter.{i}", p) for i, p in enumerate(stepped)))
    given = {parameter for _, parameter in named}
    missing = [tuple(parameter.shape) for parameter in stepped if parameter not in given]
    if missing:
        raise ValueError(
            f"named_parameters must have all that the optimizer steps, but those of shapes "
            f"{missing} are missing"
        )
    averager = Averager(backward_passes_per_step)
    before_step(optimizer, averager.before_step)  # and then what the state does
    averager.watch(CompressionState(named, compression_params, optimizer, **options))
    kind = type(optimizer)
    optimizer.__class__ = type(kind.__name__, (_Averaging, kind), {})
    optimizer._averager = averager
    return optimizer


class Averager:
    """Hands gradients over as backward makes them, in an order that all workers share.

    Parameters
    ----------
    passes : int
        How often backward is called in a step.
    """

    def __init__(self, passes: int) -> None:
        self.synchronizes = True
        self.set_passes(passes)

    def set_passes(self, passes: int) -> None:
        if not isinstance(passes, int) or passes < 1:
            raise ValueError(f"backward_passes_per_step must be a whole number > 0, got {passes!r}")
        self._passes = passes

    def watch(self, state: CompressionState) -> None:
        """Average the gradients of a state's parameters from now on."""
        self.state = state
        self._buckets = _buckets(state.parameters)
        self._bucket_of = {
            parameter: number for number, bucket in enumerate(self._buckets) for parameter in bucket
        }
        self._begin()
        for parameter in self._bucket_of:
            parameter.register_post_accumulate_grad_hook(self._ready)

    def _begin(self) -> None:
        """A new step."""
        self._done: Dict[torch.Tensor, int] = dict.fromkeys(self._bucket_of, 0)
        self._missing = [len(bucket) for bucket in self._buckets]
        self._under_way: List[Tuple[Future[None], Dict[torch.Tensor, torch.Tensor]]] = []

    def _ready(self, parameter: torch.Tensor) -> None:
        self._done[parameter] += 1
        if self._done[parameter] > self._passes:
            raise RuntimeError(
                f"backward computed the gradient of parameter {self.state.name_of(parameter)} more "
                f"than backward_passes_per_step ({self._passes}) times before step()"
            )
        if self._done[parameter] == self._passes:
            self._missing[self._bucket_of[parameter]] -= 1
            self._hand_over()

    def _hand_over(self, all_of_them: bool = False) -> None:
        """Begin to average the buckets whose turn it is."""
        while len(self._under_way) < len(self._buckets):
            number = len(self._under_way)
            if self._missing[number] and not all_of_them:
                return
            flat = {parameter: _flat(parameter) for parameter in self._buckets[number]}
            names = {self.state.name_of(parameter): tensor for parameter, tensor in flat.items()}
            self._under_way.append((self.state.average(names, begins=not number), flat))

    def synchronize(self) -> None:
        """Wait until all gradients are averages."""
        self._hand_over(all_of_them=True)
        under_way = self._under_way
        self._begin()
        for future, flat in under_way:
            future.wait()
            for parameter, averaged in flat.items():
                if averaged.data_ptr() != parameter.grad.data_ptr():
                    parameter.grad.copy_(averaged.view_as(parameter.grad))

    def before_step(self) -> None:
        """What the optimizer's hook does."""
        if self.synchronizes:
            self.synchronize()


def _buckets(parameters: Mapping[str, torch.nn.Parameter]) -> List[List[torch.nn.Parameter]]:
    """Neighbours on one device, the last ones first, as backward comes to them."""
    buckets: List[List[torch.nn.Parameter]] = []
    size = _BUCKET_BYTES
    for parameter in reversed(list(parameters.values())):
        if size >= _BUCKET_BYTES or parameter.device != buckets[-1][-1].device:
            buckets.append([])
            size = 0
        buckets[-1].append(parameter)
        size += parameter.numel() * parameter.itemsize
    return buckets


def _flat(parameter: torch.Tensor) -> torch.Tensor:
    """The gradient, flat: the same memory if it can be; zeros where there is none."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad.detach().reshape(-1)
