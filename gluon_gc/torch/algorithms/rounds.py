"""The rounds of an algorithm. Each kind of round has its own exchange."""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from typing import Any, Callable, Dict, List, Mapping, Optional

import torch
import torch.distributed as dist
from torch.futures import Future

from ...agreement import Facts
from ...algorithms.base import Arrays, Round, Shapes
from ...algorithms.driver import is_declared, undeclared
from ...compression import CompressionParams
from ...plan import Tensor
from .. import staging
from ..declared_tensor import DeclaredTensor, declared
from ..exchange import Exchange
from ..job import Job, future_on, resolving
from ..pipeline import Pipeline
from .framework import PyTorch
from .own_gradients import is_frozen

Tensors = Dict[str, torch.Tensor]


class Rounds:
    """Averages vectors for an algorithm: PyTorch's front end of `algorithms.driver.Driver`.

    Parameters
    ----------
    about : Facts
        Facts that must be the same on all workers.
    parameters : mapping of str to Parameter
        By name.
    params : mapping of str to CompressionParams
        For each parameter, the compression of its vectors.
    group : ProcessGroup, optional
        The workers. Default: all workers.
    step : callable
        Returns the number of the current step.

    Attributes
    ----------
    exchanges : dict of str to Exchange
        The exchange for each kind of round.
    framework : PyTorch
        Functions of PyTorch that algorithms call.
    counts : Counter
        The number of rounds of each kind.
    meeting : Exchange
        Compares the rounds of all workers before they are made. It has no tensors, because rounds
        may be under way in the other exchanges.
    """

    def __init__(
        self,
        about: Facts,
        parameters: Mapping[str, torch.nn.Parameter],
        params: Mapping[str, CompressionParams],
        group: Optional[dist.ProcessGroup],
        step: Callable[[], int],
    ) -> None:
        self._about, self._group, self._step = about, group, step
        self.framework = PyTorch()
        self._parameters, self._params = parameters, params
        self._shapes: Dict[str, Shapes] = {}  # by the kind of round
        self._compressed: Dict[str, bool] = {}  # by the kind of round
        self.exchanges: Dict[str, Exchange] = {}
        self.counts: Counter[str] = Counter()
        self._epoch: Optional[int] = None
        self.meeting = Exchange(group)
        self.meeting.declare((), about=about)
        self._beginning = Pipeline([lambda begin: begin()], _nothing, _nothing)

    def parameters(self) -> Tensors:
        """Return this worker's parameters, in the model's memory, detached from autograd.

        Algorithms index arrays, so scalars have one dimension.
        """
        parameters = self._parameters.items()
        return {name: torch.atleast_1d(parameter.detach()) for name, parameter in parameters}

    def gradients(self) -> Tensors:
        """Return this worker's own gradients, of the parameters that have one."""
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
        """Forget all rounds. They must be declared again, with these facts and this compression.

        Residuals start from zero.
        """
        self._about, self._params = about, params
        for exchange in self.exchanges.values():
            exchange.close()
        self.exchanges.clear()
        self._shapes.clear()

    def set_epoch(self, epoch: int) -> None:
        """Tell the compressors the epoch, counted from 0."""
        self._epoch = epoch
        for exchange in self.exchanges.values():
            exchange.set_epoch(epoch)

    def tensors(self) -> List[Tensor]:
        """Return the vectors of all rounds."""
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

        Raises
        ------
        RuntimeError
            The workers request different rounds. All workers raise it. The result raises one if a
            vector of any worker has a NaN or an infinity.
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
        declared = is_declared(request, self._unfrozen()) and self._have_own_dtypes(request)
        kind = list(self.exchanges).index(request.kind) if declared else -1
        names = zlib.crc32("\n".join(request.vectors).encode())
        doing = "make a round of the algorithm"
        requests = self.meeting.gather_numbers([step, kind, names], doing)
        if len(set(requests)) > 1:
            facts = {
                "step": step,
                "round": request.kind,
                "a declared round": declared,
                "frozen": self._frozen(),
            }
            vectors = [(f"the vector of {name}", {"name": name}) for name in request.vectors]
            self.meeting.agree([("the algorithm", facts), *vectors], doing)
        if not declared:
            raise undeclared(request, step)

    def _frozen(self) -> List[str]:
        return [name for name, parameter in self._parameters.items() if is_frozen(parameter)]

    def _unfrozen(self) -> Dict[str, Shapes]:
        """Return the declared shapes without those of frozen parameters, by the kind of round."""
        frozen = set(self._frozen())
        return {
            kind: {name: shape for name, shape in shapes.items() if name not in frozen}
            for kind, shapes in self._shapes.items()
        }

    def _have_own_dtypes(self, request: Round) -> bool:
        """Return whether the vectors have the dtypes of their parameters."""
        vectors = request.vectors.items()
        return all(vector.dtype == self._parameters[name].dtype for name, vector in vectors)

    def require_open(self) -> None:
        """Raise a RuntimeError if the exchanges are closed."""
        for exchange in self.exchanges.values():
            exchange.require_open()

    def close(self) -> None:
        """Stop the threads."""
        self._beginning.close()
        for exchange in (self.meeting, *self.exchanges.values()):
            exchange.close()


def _nothing(*_: Any) -> None:
    """Do nothing when a round has begun."""


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
