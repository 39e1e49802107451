"""The rounds of an algorithm. Each kind of round has its own exchange."""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from typing import Callable, Dict, Iterable, List, Mapping, Optional

import numpy as np
import torch
import torch.distributed as dist
from torch.futures import Future

from ...agreement import Facts
from ...algorithms.base import Arrays, Round, Shapes
from ...algorithms.driver import is_declared, undeclared
from ...compression import CompressionParams
from ...plan import Tensor
from .. import gpu, staging
from ..declared_tensor import DeclaredTensor, declared
from ..exchange import Exchange
from ..job import Job, future_on, resolving
from ..pipeline import Pipeline

Tensors = Dict[str, torch.Tensor]


class PyTorch:
    """PyTorch's side of `algorithms.framework.Framework`."""

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


class Rounds:
    """Averages vectors for an algorithm: PyTorch's front end of `algorithms.driver.Driver`."""

    def __init__(
        self,
        about: Facts,
        parameters: Mapping[str, torch.nn.Parameter],
        params: Mapping[str, CompressionParams],
        group: Optional[dist.ProcessGroup],
        step: Callable[[], int],  # returns the number of the current step
    ) -> None:
        self._about, self._group, self._step = about, group, step
        self.framework = PyTorch()
        self._parameters, self._params = parameters, params
        self._shapes: Dict[str, Shapes] = {}  # by the kind of round
        self._compressed: Dict[str, bool] = {}  # by the kind of round
        self.exchanges: Dict[str, Exchange] = {}  # by the kind of round
        self.counts: Counter[str] = Counter()  # of the rounds of each kind
        self._epoch: Optional[int] = None
        # It compares the rounds of all workers before they are made. It has no tensors, because
        # rounds may be under way in the other exchanges.
        self.meeting = Exchange(group)
        self.meeting.declare((), about=about)
        self._beginning = Pipeline([lambda begin: begin()], lambda *_: None, lambda *_: None)

    def parameters(self) -> Tensors:
        """Return the parameters, in the model's memory. Algorithms index arrays, also scalars."""
        parameters = self._parameters.items()
        return {name: torch.atleast_1d(parameter.detach()) for name, parameter in parameters}

    def gradients(self) -> Tensors:
        parameters = self._parameters.items()
        return {name: torch.atleast_1d(p.grad) for name, p in parameters if p.grad is not None}

    def declare(self, kind: str, shapes: Shapes, compressed: bool) -> None:
        """Prepare to average vectors of these shapes. All workers call this."""
        self._shapes[kind], self._compressed[kind] = shapes, compressed
        exchange = Exchange(self._group)
        about = [*self._about, ("", {"kind of round": kind})]
        exchange.declare(self._tensors(kind), about=about)
        if self._epoch is not None:
            exchange.set_epoch(self._epoch)
        self.exchanges[kind] = exchange

    def renew(self, about: Facts, params: Mapping[str, CompressionParams]) -> None:
        """Forget all rounds and residuals. The rounds must be declared again."""
        self._about, self._params = about, params
        for exchange in self.exchanges.values():
            exchange.close()
        self.exchanges.clear()
        self._shapes.clear()

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        for exchange in self.exchanges.values():
            exchange.set_epoch(epoch)

    def tensors(self) -> List[Tensor]:
        return [tensor.plan for kind in self._shapes for tensor in self._tensors(kind)]

    def _tensors(self, kind: str) -> List[DeclaredTensor]:
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

        The result waits, and returns the averages in new memory. The workers compare their requests
        first, on a thread of its own. If `request.waits`, this call waits for the comparison.
        """
        vectors = {name: vector.detach().clone() for name, vector in request.vectors.items()}
        step, by_device = self._step(), defaultdict(dict)
        for name, vector in vectors.items():
            by_device[vector.device][name] = vector
        staged = [staging.Staged(on_device) for on_device in by_device.values()]
        begun: Future[List[Future[List[str]]]] = Future()

        def begin() -> None:
            try:
                self._require_same(request, step)
                exchange = self.exchanges[request.kind]
                self.counts[request.kind] += 1
                begun.set_result([_averaged(exchange, values) for values in staged])
            except BaseException as error:  # any error, because somebody waits
                begun.set_exception(error)

        self._beginning.put(begin)
        if request.waits:
            begun.wait()

        def wait() -> Arrays:
            nonfinite = [name for average in begun.wait() for name in average.wait()]
            if nonfinite:
                raise RuntimeError(
                    f"the {request.kind} of parameter {nonfinite[0]} has a NaN or an infinity in "
                    f"step {step}"
                )
            return vectors

        return wait

    def _require_same(self, request: Round, step: int) -> None:
        """Raise a RuntimeError on all workers unless all request the same declared round."""
        frozen = [name for name, parameter in self._parameters.items() if is_frozen(parameter)]
        left_out = set(frozen)
        unfrozen = {
            kind: {name: shape for name, shape in shapes.items() if name not in left_out}
            for kind, shapes in self._shapes.items()
        }
        declared = is_declared(request, unfrozen) and all(
            vector.dtype == self._parameters[name].dtype for name, vector in request.vectors.items()
        )
        kind = list(self.exchanges).index(request.kind) if declared else -1
        names = zlib.crc32("\n".join(request.vectors).encode())
        doing = "make a round of the algorithm"
        requests = self.meeting.gather_numbers([step, kind, names], doing)
        if len(set(requests)) > 1:
            facts = {
                "step": step,
                "round": request.kind,
                "a declared round": declared,
                "frozen": frozen,
            }
            vectors = [(f"the vector of {name}", {"name": name}) for name in request.vectors]
            self.meeting.agree([("the algorithm", facts), *vectors], doing)
        if not declared:
            raise undeclared(request, step)

    def require_open(self) -> None:
        for exchange in self.exchanges.values():
            exchange.require_open()

    def close(self) -> None:
        self._beginning.close()
        for exchange in (self.meeting, *self.exchanges.values()):
            exchange.close()


def _averaged(exchange: Exchange, staged: staging.Staged) -> Future[List[str]]:
    """Start to replace vectors by their averages.

    The value of the future: the names of the vectors with a NaN or an infinity.
    """
    future: Future[List[str]] = future_on(staged.device)

    def result(job: Job) -> List[str]:
        staged.finish(1.0)
        return job.nonfinite

    exchange.start(Job(staged, 1.0 / exchange.workers, {}, resolving(future, result)))
    return future
