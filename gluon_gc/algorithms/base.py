"""The base class of algorithms, and their registry.

An algorithm decides which arrays are averaged over the workers in a step, and how the averages
change the parameters. Averaged gradients in every step need no algorithm: that is the default.

An algorithm knows no framework. Its arrays may be MXNet's NDArrays, PyTorch tensors or NumPy
arrays. It only adds and multiplies them, and writes to them by `array[:] = x`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    ClassVar,
    Dict,
    Generator,
    Iterable,
    Mapping,
    NamedTuple,
    Protocol,
    Sequence,
    Tuple,
)

import numpy as np

from ..options import WithOptions, plain

if TYPE_CHECKING:
    from .adam import Adam

Array = Any
"""A float32 or float64 array of any framework."""
Arrays = Mapping[str, Array]
"""Arrays by the name of their parameter."""
Shapes = Mapping[str, Tuple[int, ...]]
State = Mapping[str, Dict[str, Array]]
"""The state of an algorithm: arrays by kind and parameter."""

registry: dict[str, type["Algorithm"]] = {}
"""The algorithms by name."""


def register(algorithm: type["Algorithm"]) -> type["Algorithm"]:
    """Class decorator: add an algorithm to the registry."""
    registry[algorithm.name] = algorithm
    return algorithm


class Framework(Protocol):
    """Functions of the framework that owns the arrays of a step."""

    threads: int  # for computations on the CPU

    def in_host_memory(self, array: Array) -> bool:
        """Whether an array is in the memory of the CPU."""

    def to_numpy(self, array: Array) -> np.ndarray:
        """The values as a NumPy array, which shares the memory of an array in host memory."""

    def from_numpy(self, values: np.ndarray, like: Array) -> Array:
        """A new array with these values, on the device of `like`. It may share their memory."""

    def multiply(self, a: Array, b: Array) -> Array:
        """The product of two matrices."""

    def wait(self, arrays: Iterable[Array]) -> None:
        """Wait until arrays are computed, and raise the error of an average that failed."""


class Round(NamedTuple):
    """A request to average arrays over all workers. All workers make it in the same step.

    Parameters
    ----------
    kind : str
        One of the keys of `Algorithm.rounds`.
    vectors : mapping
        The arrays, by parameter: all that `Algorithm.rounds` declares for this kind, without those
        of frozen parameters.
    delay : int
        The averages arrive this number of steps later, by `Step.arrived`, while training goes on.
        0: they arrive in this step.
    waits : bool
        If the averages arrive in this step, whether they are the result of `yield`. Otherwise the
        result is a function that waits for them and returns them. The algorithm can compute, or
        begin other rounds, before it calls the function.
    """

    kind: str
    vectors: Arrays
    delay: int = 0
    waits: bool = True


@dataclass(frozen=True)
class Step:
    """The inputs of one step of an algorithm.

    Parameters
    ----------
    number : int
        The number of the step, from 1.
    parameters : mapping
        This worker's parameters, by name. The algorithm may write to them.
    gradients : mapping
        This worker's own gradients, by name of the parameter. Not every parameter has one. If the
        algorithm averages gradients, every parameter that is not frozen has one, and the algorithm
        may write to it.
    update : callable
        Applies the optimizer's update to the parameters, with these gradients.
    framework : Framework
        Functions of the framework that owns the arrays.
    arrived : mapping
        For each kind of round whose averages arrive in this step, a function that waits for them
        and returns them. It raises the round's error.
    adam : Adam, optional
        The wrapped optimizer, if the algorithm needs Adam.
    seconds : tuple of float
        The time of the previous step and of this one, in seconds, on a clock that stands still
        while training waits for a round.
    abandon : callable, optional
        Leaves out all averages that are still to arrive, after a round has failed on all workers.
        None with a mailbox, where a round may fail on one worker alone.
    """

    number: int
    parameters: Arrays
    gradients: Arrays
    update: Callable[[], None]
    framework: Framework
    arrived: Mapping[str, Callable[[], Arrays]] = field(default_factory=dict)
    adam: Adam | None = None
    seconds: tuple[float, float] = (0.0, 0.0)
    abandon: Callable[[], None] | None = None


Rounds = Generator[Round, Any, None]


@dataclass(frozen=True)
class Algorithm(WithOptions):
    """An algorithm and its options. Each option of a subclass is a field made by `Option.field`.

    Attributes
    ----------
    name, description : str
    shared : tuple of str
        The kinds of state that are equal on all workers.
    own : tuple of str
        The kinds of state that differ between workers.
    numbers : tuple of str
        The kinds of state with one number for each parameter. `begin` returns arrays of one
        element. In `step`, they are NumPy arrays in host memory, so that reading one does not wait
        for a GPU.
    spellings : mapping
        Other libraries' names of options, and our names.
    averages_gradients : bool
        Whether gradients are averaged in every step. Workers then begin with the same parameters,
        and skip the same steps.
    equal_parameters : bool
        Whether all workers have equal parameters after each step.
    allows_freezing : bool
        Whether parameters may be frozen during training. Then steps only change the state of
        parameters with a gradient.
    needs_adam : bool
        Whether the wrapped optimizer must be Adam.
    compresses : bool
        Whether the algorithm compresses by itself, so that compression_params has no compressor.
    uncompressed : tuple of str
        The kinds of rounds that are never compressed.
    allows_absence : bool
        Whether workers may miss rounds, and begin them in different steps (see `missed`).
    chosen_option : str
        The option that the compressor "auto" may choose. "": the algorithm needs a named one.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    shared: ClassVar[tuple[str, ...]] = ()
    own: ClassVar[tuple[str, ...]] = ()
    numbers: ClassVar[tuple[str, ...]] = ()
    spellings: ClassVar[Mapping[str, str]] = {}
    averages_gradients: ClassVar[bool] = False
    equal_parameters: ClassVar[bool] = False
    allows_freezing: ClassVar[bool] = False
    needs_adam: ClassVar[bool] = False
    compresses: ClassVar[bool] = False
    uncompressed: ClassVar[tuple[str, ...]] = ()
    allows_absence: ClassVar[bool] = False
    chosen_option: ClassVar[str] = ""

    def described(self) -> dict[str, Any]:
        """The values of the options, by name, with NumPy scalars as Python numbers."""
        return plain({field.name: getattr(self, field.name) for field in fields(self)})

    @property
    def in_lockstep(self) -> bool:
        """Whether all workers begin their rounds in the same steps."""
        return True

    @property
    def frozen_after(self) -> int | None:
        """The step after which Adam's variance stays; None without such a step."""
        return None

    def keeps_changes(self, number: int) -> bool:
        """Whether changes that a script makes to parameters just before a step are kept."""
        return True

    def rounds(self, shapes: Shapes) -> Mapping[str, Shapes]:
        """For each kind of round, the shapes of its arrays, given the shapes of the parameters.

        Kinds with the names "KIND.0", "KIND.1", and so on divide the arrays of KIND among them. A
        checkpoint may be loaded with another number of them.
        """
        raise NotImplementedError

    def begin(self, parameters: Arrays) -> dict[str, dict[str, Array]]:
        """The state before the first step: new arrays, by kind and parameter."""
        return {}

    def regrouped(self, states: Sequence[State]) -> dict[str, dict[str, Array]]:
        """The own state of each worker if another number of workers continues.

        `states` has the state of each former worker. If the result lacks a kind, worker r gets that
        of former worker r modulo their number.
        """
        return {}

    def added(self, state: State, steps: int, saved: Mapping[str, Any]) -> dict[str, Any]:
        """The kinds of state that a checkpoint lacks because an earlier version saved it.

        `state` is the checkpoint's, after `steps` steps with the options `saved`.
        """
        return {}

    def missed(self, averages: Arrays, parameters: Arrays, state: State) -> None:
        """Apply the averages of a round that other workers made without this one.

        The shared state then is what it is on the others. This worker's own changes stay.
        """
        raise NotImplementedError

    def step(self, at: Step, state: State) -> Rounds:
        """Make one step. This is a generator: it yields rounds and receives their averages (see
        `Round`).

        If a round fails, `yield` raises the error.

        Parameters
        ----------
        at : Step
        state : mapping
            Arrays by kind and parameter. The algorithm changes them in place, or replaces them in
            their dictionary.

        Examples
        --------
        Average parameters after each update:

            at.update()
            averages = yield Round("parameter", at.parameters)
            for name, average in averages.items():
                at.parameters[name][:] = average
        """
        raise NotImplementedError
