"""Runs an algorithm in MXNet: it averages vectors of a trainer's parameters."""

from __future__ import annotations

import ctypes
import math
from typing import (
    Any,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, MXNetError, check_call
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray
from mxnet.optimizer import Optimizer, Updater

from ... import env, mailbox
from ...algorithms import Algorithm, Round, in_full, parse
from ...algorithms.driver import Driver, is_arriving, is_declared, undeclared
from ...algorithms.requirements import (
    require_fitting_compression,
    require_floats,
    require_on_nonfinite,
)
from ...auto.algorithm import Decision
from ...auto.algorithms import automatic
from ...exchange import plan, statistics
from ...exchange.agreement import Facts
from ...exchange.plan import Tensor
from ...exchange.statistics import STATS, Size, Window
from ...mailbox.driver import MailboxDriver
from ...options import require_different
from ...state import LOCAL, OF_ALL, Arrays, Key, fitting
from ..exchange.exchange import Exchange
from ..exchange.gradient import Job, copy_first, legacy, params_for, sum_over_contexts
from ..trainer import freshness
from ..trainer.amp import AgreedLossScaler, nonfinite_gradients
from ..trainer.automatic import decided, of_root
from ..trainer.averaging import Averaging, StepArguments, Update
from ..trainer.parameters import broadcast_to_contexts, first_copy
from .adam import WrappedAdam, require_adam

_PARAMETER = "parameter"  # `Key.what` of this worker's own parameters in a checkpoint


class MXNet:
    @property
    def threads(self) -> int:
        return env.server_threads()

    def in_host_memory(self, array: NDArray) -> bool:
        return array.context.device_type != "gpu"

    def to_numpy(self, array: NDArray) -> np.ndarray:
        """The values, in the memory of an array on the CPU, until its next operation."""
        if not self.in_host_memory(array):
            return array.asnumpy()
        check_call(_LIB.MXNDArrayWaitToWrite(array.handle))
        address = ctypes.c_void_p()
        check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
        element = np.ctypeslib.as_ctypes_type(array.dtype)
        memory = (element * array.size).from_address(address.value)
        return np.ctypeslib.as_array(memory).reshape(array.shape)

    def from_numpy(self, values: np.ndarray, like: NDArray) -> NDArray:
        return mx.nd.array(values, ctx=like.context, dtype=values.dtype)

    def multiply(self, a: NDArray, b: NDArray) -> NDArray:
        return mx.nd.dot(a, b)

    def wait(self, arrays: Iterable[NDArray]) -> None:
        """Wait for all arrays, then raise the first error: MXNet's engine raises each only once."""
        errors = []
        for array in arrays:
            try:
                array.wait_to_read()
            except MXNetError as error:
                errors.append(error)
        if errors:
            raise errors[0]


class AlgorithmAveraging(Averaging):
    """Runs an algorithm on the parameters of a trainer; the `FrontEnd` of a `Driver`.

    Vectors and state are on the first context of a parameter. The algorithm sees gradients that are
    summed over the contexts and the batch of this worker, and the update divides them by the batch
    size. If the algorithm averages gradients, they are divided first, and a stale one counts as
    zeros.
    """

    noun = "vector"
    framework = MXNet()

    def __init__(
        self, algorithm: Algorithm, option_given: bool, updaters: Sequence[Updater], **common: Any
    ) -> None:
        super().__init__(**common)
        _require_parameters(algorithm.name, self._params)
        self._updaters = updaters
        requested = {i: self._compressions.of(i) for i in self._last_first}
        self._given, self._requested = algorithm, requested
        self._automatic = automatic(algorithm, requested, option_given, mx.nd.waitall)
        self._proposed: Decision | None = None  # this worker's; rank 0's counts for all
        self._saved: Mapping[str, Any] | None = None  # the algorithm in the last checkpoint
        self._describe()
        self.run = mailbox.current()
        self._driver = self._new_driver()
        self._averaged: dict[int, Parameter] = {}  # by index: the rounds average these
        self._shapes: dict[str, Mapping[str, tuple[int, ...]]] = {}  # by the kind of round
        self._compressed: dict[str, bool] = {}  # by the kind of round
        self._begun = False  # whether the algorithm's state exists
        self._declared = False  # whether the rounds' tensors are declared

    def _new_driver(self) -> Driver:
        if self.run is None:
            return Driver(self._algorithm, self)
        params = {self._params[i].name: params for i, params in self._requested.items()}
        return _DriverOfContexts(self._given, self, self.run, params)

    @property
    def _algorithm(self) -> Algorithm:
        """The algorithm: as given, or as "auto" has chosen it."""
        return self._given if self._automatic is None else self._automatic.algorithm

    @property
    def _undecided(self) -> bool:
        """Whether "auto" still has to choose."""
        return self._automatic is not None and self._automatic.undecided

    def _describe(self) -> None:
        if self._automatic is None:
            self.described = {"name": self._given.name, **self._given.described()}
        else:
            self.described = self._automatic.described()

    def require(self, call: str) -> None:
        if call in ("save_states", "load_states"):
            self._driver.require_loadable()
        elif call != "step":
            raise RuntimeError(
                f"{call} does not work with algorithm {self._algorithm.name}, which does not "
                "average gradients in every step: change gradients before "
                "trainer.step(batch_size), or leave out algorithm"
            )

    def follow(self, exchange: Exchange, goes_on: bool) -> bool:
        if self._begun and not goes_on:
            raise RuntimeError(
                f"algorithm {self._algorithm.name} goes on after bps.resume only with the same "
                "workers and ranks: call save_states before bps.suspend, and "
                "load_states(files, strict=False) of a new trainer"
            )
        self._use(exchange)
        self._declared = False
        return not self._begun

    def prepare(self, optimizer: Optimizer, call: str, about: Facts = ()) -> None:
        indices = self.with_gradients()
        self._require_same_parameters(indices)
        if self._declared:
            return
        if self._undecided:
            self._take(of_root(self.exchange, self._proposed))
        facts = [("the trainer", {"algorithm": self.described}), *about]
        facts += self._facts(optimizer, indices)
        self.exchange.withdraw_dropped(call, facts)
        self._averaged.clear()
        self._averaged.update((i, self._params[i]) for i in indices[::-1])
        _require_parameters(self._algorithm.name, self._averaged.values())
        self._driver.begin()
        if self.run is None:
            self._declare(call, facts)
        else:
            self.broadcast_to_contexts()  # they are those of the run
        self._begun = self._declared = True
        self._when_prepared()
        self._moved(self.names())

    def _declare(self, call: str, facts: Facts) -> None:
        """Declare the rounds' tensors, unless "auto" still has to choose their compression."""
        self.tensors.clear()
        for kind in self._shapes:
            tensors = self._tensors(kind)
            if self._undecided:
                self.exchange.agree(call, [*facts, *plan.facts(tensors)])
                continue
            self.exchange.declare(tensors, about=facts, call=call)
            self.tensors.update({(tensor.index, kind): tensor for tensor in tensors})

    def _decide(self, optimizer: Optimizer, about: Facts = ()) -> None:
        if self._automatic is None or not self._automatic.due():
            return
        tensors = [tensor for kind in self._shapes for tensor in self._tensors(kind)]
        shapes = [self._params[tensor.index].shape for tensor in tensors]
        self._proposed = decided(self.exchange, self._automatic, tensors, shapes)
        self._declared = False
        self.prepare(optimizer, "step", about)

    def _take(self, decision: Sequence[Any] | None) -> None:
        """Use a decision of "auto" for the algorithm and for tensors that are declared later."""
        if decision is None:
            return
        self._automatic.take(decision)
        self._driver.use(self._algorithm)
        self._shapes.clear()
        self._describe()

    def _require_same_parameters(self, indices: Sequence[int]) -> None:
        changed = self._averaged.keys() ^ set(indices)
        if self._begun and changed:
            other = "trainer" if self.run is None else "run, at another URL"
            raise ValueError(
                f"the grad_req of parameter {self._params[min(changed)].name} has changed since "
                f"algorithm {self._algorithm.name} began: set it before the first step, or make "
                f"another {other}"
            )

    def _in_round(self, vectors: Mapping[str, Any]) -> list[int]:
        return [i for i, param in self._averaged.items() if param.name in vectors]

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        if self.run is not None:
            self._driver.set_epoch(epoch)

    def stats_of_step(
        self, reset: bool = False, window: Window = STATS, steps: int = 0
    ) -> dict[str, Any]:
        if self.run is None:
            return super().stats_of_step(reset, window, steps)
        sizes, kind = {}, "difference"
        for i, param in self._averaged.items():
            elements = math.prod(param.shape)
            size = Size(elements * np.dtype(param.dtype).itemsize, elements)
            sizes[self.called(i, kind)] = size
        return statistics.of_step(
            self._driver.transfers, sizes, reset, steps, lambda name: f"{kind} of {name}", window
        )

    def _tensors(self, kind: str) -> list[Tensor]:
        shapes = self._shapes[kind]
        return [self._tensor(kind, i, shapes) for i in self._in_round(shapes)]

    def _tensor(self, kind: str, index: int, shapes: Mapping[str, tuple[int, ...]]) -> Tensor:
        param = self._params[index]
        params = (self._requested if self._automatic is None else self._automatic.params)[index]
        first = first_copy(param)
        if not self._compressed[kind]:
            params = params.uncompressed
        return Tensor(
            f"{self._name}.{kind}.{index}",
            math.prod(shapes[param.name]),
            np.dtype(first.dtype).name,
            params_for(first, params),
            index=index,
            called=f"the {kind} of {param.name}",
            on_nonfinite="raise" if self._on_nonfinite == "skip" else self._on_nonfinite,
        )

    def step(self, arguments: StepArguments, update: Update) -> None:
        if self._algorithm.averages_gradients:
            self._step_of_all(arguments, update)
            return
        self.prepare(arguments.optimizer, "step")
        self._decide(arguments.optimizer)
        self.steps += 1
        for param in filter(freshness.is_fresh, self._params):
            freshness.renew(param)
        for param in self._averaged.values():
            if param.list_data()[0]._fresh_grad:
                sum_over_contexts(param.list_grad())
        scaler, scale = arguments.scaler, arguments.scale / arguments.batch_size
        overflows = scaler is not None and scaler.check(list(self._averaged.values()), ())
        skips = overflows or self._driver.has_moved
        if skips:
            freshness.use_up(self._params)
        ignores_stale = arguments.ignore_stale_grad
        if self.run is not None:
            self._driver.samples_per_step, self._driver.skips = arguments.batch_size, skips
        try:
            self._driver.step(lambda: None if skips else update(scale, ignores_stale))
        finally:  # if an average has failed, the parameters have changed, too
            self.broadcast_to_contexts()

    def _step_of_all(self, arguments: StepArguments, update: Update) -> None:
        """Make a step of an algorithm that averages gradients. All workers skip the same steps."""
        optimizer, scaler = arguments.optimizer, arguments.scaler
        scale = arguments.scale / arguments.batch_size
        if self._algorithm.needs_adam:
            require_adam(self._algorithm.name, optimizer)  # load_states may have replaced it
        settings = {"AMP": scaler is not None, "on_nonfinite": self._on_nonfinite}
        about = [("the trainer", settings)]
        self.prepare(optimizer, "step", about)
        self._decide(optimizer, about)
        params = list(self._averaged.values())
        for param in params:
            freshness.renew(param)
        if self._is_skipped(params, scaler, about):
            freshness.use_up(params)
            return
        for param in params:
            gradients = legacy(param.list_grad())
            sum_over_contexts(gradients)
            gradients[0] *= scale
        if self._algorithm.equal_parameters:
            self._weight_check.before_update(params, self.steps + 1)
        needs_adam = self._algorithm.needs_adam
        adam = WrappedAdam(self._updaters, self._averaged) if needs_adam else None
        try:
            self._driver.step(lambda: self._update_with_averages(update), adam)
        finally:  # if an average has failed, the parameters have changed, too
            self.steps = self._driver.steps
            freshness.use_up(params)
            broadcast_to_contexts(params)
            if adam is not None:
                adam.broadcast_to_contexts()

    def _is_skipped(
        self, params: Sequence[Parameter], scaler: AgreedLossScaler | None, about: Facts
    ) -> bool:
        """Whether all workers skip this step; waits for the gradients of all workers."""
        if scaler is not None:
            return scaler.check(params, about)
        if self._on_nonfinite != "skip":
            return False
        return self.total_overflow(nonfinite_gradients(params), about).asscalar() > 0

    def _update_with_averages(self, update: Update) -> None:
        """Apply the optimizer with the gradients of the first context, which are averages."""
        for param in self._averaged.values():
            copy_first(param.list_grad())
        update(1.0, False)

    def total_overflow(self, overflow: NDArray, about: Facts) -> NDArray:
        if self._algorithm.averages_gradients:
            return self.exchange.total(f"{self._name}.overflow", overflow, "step", about)
        return overflow  # each worker has its own loss scale, and skips its own steps

    # Checkpoints

    def arrays(self) -> dict[Key, NDArray]:
        """The algorithm's state and this worker's parameters, by parameter index."""
        numbers = {param.name: i for i, param in self._averaged.items()}
        saved = {
            Key(i, LOCAL, _PARAMETER): first_copy(param) for i, param in self._averaged.items()
        }
        for kind, arrays in self._driver.saved_state().items():
            saved.update(self._keyed({kind: {numbers[name]: a for name, a in arrays.items()}}))
        return saved

    def check(self, file: str, arrays: Arrays, strict: bool) -> None:
        for key, own in self.arrays().items():
            if is_arriving(key.what):
                continue  # of this trainer's steps: a file of another step has others
            saved = arrays.get(key)
            found = "missing" if saved is None else f"{saved.shape} of {saved.dtype.name}"
            expected = f"{own.shape} of {np.dtype(own.dtype).name}"
            if found != expected and (strict or saved is not None):
                name = self._averaged[key.tensor].name
                raise ValueError(
                    f"'{file}' does not fit: the {key.what} of '{name}' is {found} there, but "
                    f"{expected} here"
                )

    def in_full(self, header: Mapping[str, Any], arrays: Arrays) -> Arrays:
        state, options = _state_in(arrays), in_full(header["algorithm"])
        added = self._algorithm.added(state, header["steps"], options)
        return {**arrays, **self._keyed(added)}

    def regrouped(self, files: Sequence[Arrays]) -> Arrays:
        return self._keyed(self._algorithm.regrouped([_state_in(arrays) for arrays in files]))

    def _keyed(self, state: Mapping[str, Mapping[int, Any]]) -> dict[Key, Any]:
        """Arrays by kind of state and parameter index as `arrays` returns them."""
        return {
            Key(i, OF_ALL if self._driver.is_shared(kind) else LOCAL, kind): array
            for kind, arrays in state.items()
            for i, array in arrays.items()
        }

    def load(self, arrays: Arrays, steps: int, learning_rates: dict[int, float]) -> None:
        self.steps = steps
        first = {i: first_copy(param) for i, param in self._averaged.items()}
        values = {
            key: mx.nd.array(array, ctx=first[key.tensor].context, dtype=array.dtype)
            for key, array in arrays.items()
        }
        for key in [key for key in values if key[1:3] == (LOCAL, _PARAMETER)]:
            values.pop(key).copyto(first[key.tensor])
        self.broadcast_to_contexts()
        state = self._algorithm.begin(self.parameters())
        for key, value in values.items():
            state.setdefault(key.what, {})[self._averaged[key.tensor].name] = value
        saved = self._saved and in_full(self._saved)
        self._driver.go_on(steps, state, has_changed=saved != fitting.as_read(self.described))

    def expect(self, compressions: Mapping[int, Any], algorithm: Mapping[str, Any] | None) -> None:
        self._saved = algorithm
        if self._undecided:
            self._proposed = self._automatic.saved_decision(compressions, algorithm)
            self._declared = False

    # The driver calls these

    def parameters(self) -> dict[str, NDArray]:
        return {param.name: first_copy(param) for param in self._averaged.values()}

    def broadcast_to_contexts(self) -> None:
        """Copy the parameters from their first contexts to the others."""
        broadcast_to_contexts(self._averaged.values())

    def gradients(self) -> dict[str, NDArray]:
        """This worker's own gradients, of the parameters with a fresh one."""
        fresh = (param for param in self._averaged.values() if param.list_data()[0]._fresh_grad)
        return {param.name: legacy(param.list_grad()[:1])[0] for param in fresh}

    def declare(self, kind: str, shapes: Mapping[str, tuple[int, ...]], compressed: bool) -> None:
        self._shapes[kind], self._compressed[kind] = shapes, compressed

    def start(self, request: Round) -> Callable[[], dict[str, NDArray]]:
        """Queue the averages of a round's vectors. The result returns them, in new arrays."""
        if not is_declared(request, self._shapes):
            raise undeclared(request, self.steps)
        exchange, gradients, averages = self.exchange, {}, {}
        for i in self._in_round(request.vectors):
            name, tensor = self._averaged[i].name, self.tensors[i, request.kind].name
            vector = request.vectors[name]
            averages[name] = mx.nd.empty(vector.shape, vector.context, vector.dtype)
            gradients[tensor] = exchange.channels.gradient(tensor, [vector], [averages[name]])
        names, step = set(gradients), self.steps
        delayed = request.delay and self._on_nonfinite != "propagate"
        before = exchange.channels.nonfinite(names) if delayed else 0
        self._start(Job(gradients, 1.0 / exchange.num_workers))

        def arrived() -> dict[str, NDArray]:
            if delayed:
                self.framework.wait(averages.values())
                if exchange.channels.nonfinite(names) > before:  # MXNet raises an error only once
                    raise mx.MXNetError(
                        f"the average of round '{request.kind}' of step {step} had a NaN or an "
                        "infinity: the script has caught this error"
                    )
            return averages

        return arrived


def _state_in(arrays: Arrays) -> dict[str, dict[int, np.ndarray]]:
    """The algorithm's state in a file, by kind and parameter index, and the parameters."""
    state: dict[str, dict[int, np.ndarray]] = {}
    for key, array in arrays.items():
        if key.node in (LOCAL, OF_ALL):
            state.setdefault(key.what, {})[key.tensor] = array
    return state


class _DriverOfContexts(MailboxDriver):
    """A driver that, when it leaves, also moves the parameters on further contexts."""

    def leave(self) -> None:
        super().leave()
        self._front_end.broadcast_to_contexts()


def checked(
    algorithm: Any, on_nonfinite: str, max_grad_norm: float | None, compression_params: Any
) -> Algorithm | None:
    """The trainer's argument `algorithm`, parsed; ValueError if another argument does not fit."""
    parsed = parse(algorithm)
    mailbox.require_algorithm(parsed)
    if parsed is None:
        return None
    require_on_nonfinite(parsed, on_nonfinite, ("raise", "propagate"))
    if max_grad_norm is not None:
        raise ValueError(
            f"max_grad_norm must be None with algorithm {parsed.name}, got {max_grad_norm!r}: clip "
            "this worker's gradients before trainer.step, as with gluon.utils.clip_global_norm"
        )
    require_fitting_compression(parsed, compression_params)
    return parsed


def _require_parameters(name: str, params: Collection[Parameter]) -> None:
    """Raise ValueError if two parameters have one name, or if an algorithm cannot average one."""
    subject = f"algorithm {name} needs a name for each parameter, but params"
    require_different((param.name for param in params), subject)
    for param in params:
        if param.grad_req == "null":
            continue
        if param._stype != "default" or param._grad_stype != "default":
            raise ValueError(
                f"algorithm {name} needs dense parameters, but parameter {param.name} or its "
                "gradient is row_sparse: make it without sparse_grad, or leave out algorithm"
            )
        require_floats(name, param.name, np.dtype(param.dtype).name)
