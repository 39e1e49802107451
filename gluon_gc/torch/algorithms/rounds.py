"""The rounds of an algorithm. Each kind of round is a lane of one exchange."""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from typing import Callable, Dict, Iterable, Mapping

import numpy as np
import torch
from torch.futures import Future

from ...algorithms.base import Arrays, Round, Shapes
from ...algorithms.driver import is_declared, undeclared
from ...compression import CompressionParams
from ...exchange.agreement import Facts
from ...exchange.exchange import DeclaredTensor, Lane
from ...exchange.job import Announced, Request, Result
from ...exchange.plan import Tensor
from ...exchange.transfers import Transfers
from ..transport import Groups, gpu, new_exchange, staging
from ..transport.staging import Names, declared, future_on, is_sharded, resolving

Tensors = Dict[str, torch.Tensor]


class PyTorch:
    """PyTorch's side of `algorithms.base.Framework`."""

    @property
    def threads(self) -> int:
        return torch.get_num_threads()

    def in_host_memory(self, array: torch.Tensor) -> bool:
        return gpu.in_host_memory(array.device)

    def to_numpy(self, array: torch.Tensor) -> np.ndarray:
        """Return the values as a NumPy array. It shares the memory of a tensor on the CPU."""
        return array.detach().cpu().numpy()

    def from_numpy(self, values: np.ndarray, like: torch.Tensor) -> torch.Tensor:
        """Return a tensor with these values on the device of `like`."""
        return torch.from_numpy(values).to(like.device)

    def multiply(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b

    def wait(self, arrays: Iterable[torch.Tensor]) -> None:
        """Return at once: a failed average has raised its error before."""


def is_frozen(parameter: torch.nn.Parameter) -> bool:
    """Return whether a parameter needs no gradient and has none, so that optimizers skip it."""
    return not parameter.requires_grad and parameter.grad is None


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this worker's part of a tensor, in the same memory, with at least one dimension."""
    return torch.atleast_1d(tensor.to_local() if is_sharded(tensor) else tensor)


class Rounds:
    """Averages vectors for an algorithm: PyTorch's front end of `algorithms.driver.Driver`."""

    def __init__(
        self,
        about: Facts,
        parameters: Mapping[str, torch.nn.Parameter],
        params: Mapping[str, CompressionParams],
        groups: Groups,
        step: Callable[[], int],  # returns the number of the current step
        measure: Callable[[Lane, Tensors, Announced | None], Callable[[], None] | None],
    ) -> None:
        self._about, self._step, self._measure = about, step, measure
        self.framework = PyTorch()
        self._parameters, self._params = parameters, params
        self._shapes: dict[str, Shapes] = {}  # by the kind of round
        self._compressed: dict[str, bool] = {}  # by the kind of round
        self.lanes: dict[str, Lane] = {}  # by the kind of round
        self.counts: Counter[str] = Counter()  # of the rounds of each kind
        self._epoch: int | None = None
        self.exchange = new_exchange(*groups)
        self.exchange.agree(about)

    def parameters(self) -> Tensors:
        """Return the parameters, in the model's memory. Algorithms index arrays, also scalars."""
        parameters = self._parameters.items()
        return {name: local(parameter.detach()) for name, parameter in parameters}

    def gradients(self) -> Tensors:
        parameters = self._parameters.items()
        return {name: local(p.grad) for name, p in parameters if p.grad is not None}

    def declare(self, kind: str, shapes: Shapes, compressed: bool) -> None:
        """Prepare to average vectors of these shapes. All workers call this."""
        self._shapes[kind], self._compressed[kind] = shapes, compressed
        lane = self.exchange.lane()
        about = [*self._about, ("", {"kind of round": kind})]
        lane.declare(self._tensors(kind), about=about)
        if self._epoch is not None:
            lane.set_epoch(self._epoch)
        self.lanes[kind] = lane

    def renew(self, about: Facts, params: Mapping[str, CompressionParams]) -> None:
        """Forget all rounds and residuals. The rounds must be declared again."""
        self._about, self._params = about, params
        for lane in self.lanes.values():
            lane.close()
        self.lanes.clear()
        self._shapes.clear()

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        for lane in self.lanes.values():
            lane.set_epoch(epoch)

    @property
    def kinds(self) -> list[str]:
        return list(self._shapes)

    @property
    def transfers(self) -> Transfers:
        """What measures bytes and seconds, for statistics."""
        return self.exchange.transfers

    def tensors(self) -> list[Tensor]:
        return [tensor.plan for kind in self._shapes for tensor in self._tensors(kind)]

    def _tensors(self, kind: str) -> list[DeclaredTensor]:
        numbers = {name: number for number, name in enumerate(self._parameters)}
        return [
            declared(
                name,
                self._parameters[name],
                self._params[name] if self._compressed[kind] else self._params[name].uncompressed,
                numbers[name],
                size=torch.Size(shape).numel(),
                called=f"the {kind} of parameter {name}",
                on_nonfinite="raise",
            )
            for name, shape in self._shapes[kind].items()
        ]

    def start(self, request: Round) -> Callable[[], Arrays]:
        """Start to average a round's vectors. All workers call this.

        The result waits, and returns the averages in new memory.
        """
        vectors = {name: vector.detach().clone() for name, vector in request.vectors.items()}
        step, by_device = self._step(), defaultdict(dict)
        for name, vector in vectors.items():
            by_device[vector.device][name] = vector
        was_declared, announced = self._announced(request, step)
        if not was_declared:
            self._start(staging.Staged({}), announced, None).wait()  # the error that all raise
            raise undeclared(request, step)
        self.counts[request.kind] += 1
        averages, measured, lane = [], [], self.lanes[request.kind]
        for on_device in by_device.values() or [{}]:
            measured.append(self._measure(lane, on_device, announced))
            averages.append(self._start(staging.Staged(on_device), announced, lane))
            announced = None

        def wait() -> Arrays:
            nonfinite = [name for average in averages for name in sorted(average.wait())]
            if nonfinite:
                raise RuntimeError(
                    f"the {request.kind} of parameter {nonfinite[0]} has a NaN or an infinity in "
                    f"step {step}"
                )
            for finish_report in filter(None, measured):
                finish_report()
            return vectors

        return wait

    def _start(
        self, values: staging.Staged, announced: Announced | None, lane: Lane | None
    ) -> Future[Names]:
        """Start to replace vectors by their averages. Without a lane, there are none.

        The value of the future: the names of the vectors with a NaN or an infinity.
        """
        future: Future[Names] = future_on(values.device)

        def result(found: Result) -> Names:
            values.finish(1.0)
            return Names(found.nonfinite, values)

        request, done = Request(values, announced=announced), resolving(future, result, values)
        if lane is None:
            self.exchange.start(request, (), done)
        else:
            lane.start(request, done)
        return future

    def _announced(self, request: Round, step: int) -> tuple[bool, Announced]:
        """Return whether a round was declared, and the facts that all workers must share."""
        frozen = [name for name, parameter in self._parameters.items() if is_frozen(parameter)]
        of_frozen = set(frozen)
        unfrozen = {
            kind: {name: shape for name, shape in shapes.items() if name not in of_frozen}
            for kind, shapes in self._shapes.items()
        }
        declared = is_declared(request, unfrozen) and all(
            vector.dtype == self._parameters[name].dtype for name, vector in request.vectors.items()
        )

        def facts() -> Facts:
            about = {
                "step": step,
                "round": request.kind,
                "a declared round": declared,
                "frozen": frozen,
            }
            vectors = [(f"the vector of {name}", {"name": name}) for name in request.vectors]
            return [("the algorithm", about), *vectors]

        words = [str(step), request.kind, str(declared), *request.vectors]
        checksum = zlib.crc32("\n".join(words).encode())
        return declared, Announced(checksum, facts, "make a round of the algorithm")
