"""What an algorithm is, and the registry of those that exist.

An algorithm stands between the optimizer and the exchange: it decides which vectors are averaged
over the workers in a step, if any, and what becomes of the averages. It knows no framework: arrays
are NDArrays, tensors or NumPy's. They are only added, multiplied, and written to by `array[:] = x`.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import (
    Any,
    Callable,
    ClassVar,
    Dict,
    Generator,
    Mapping,
    NamedTuple,
    Tuple,
    Type,
)

import numpy as np

from ..options import Option

Array = Any
"""An array of float32 or float64, of any framework."""
Arrays = Mapping[str, Array]
"""Arrays by the names of their parameters."""
Shapes = Mapping[str, Tuple[int, ...]]

registry: Dict[str, Type["Algorithm"]] = {}
"""The algorithms by their names."""


def register(algorithm: Type["Algorithm"]) -> Type["Algorithm"]:
    """Class decorator: make an algorithm available under its name."""
    registry[algorithm.name] = algorithm
    return algorithm


class Round(NamedTuple):
    """A request to average vectors over all workers; all workers make it in the same step.

    Parameters
    ----------
    kind : str
        One of those that `Algorithm.rounds` lists.
    vectors : mapping
        By parameter. All workers give the same parameters.
    """

    kind: str
    vectors: Arrays


@dataclass(frozen=True)
class Step:
    """What an algorithm works with in one step.

    Parameters
    ----------
    number : int
        From 1.
    parameters : mapping
        This worker's, by name. What is written to them stays.
    gradients : mapping
        This worker's own gradients of those parameters that have one.
    update : callable
        Applies the optimizer's update with these gradients.
    """

    number: int
    parameters: Arrays
    gradients: Arrays
    update: Callable[[], None]


Rounds = Generator[Round, Arrays, None]


@dataclass(frozen=True)
class Algorithm:
    """The options of an algorithm, and its rules. A subclass has its options as fields.

    Attributes
    ----------
    name, description : str
    shared : tuple of str
        The kinds of state that are the same on all workers.
    own : tuple of str
        The kinds of state that belong to a worker.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    shared: ClassVar[Tuple[str, ...]] = ()
    own: ClassVar[Tuple[str, ...]] = ()

    @classmethod
    def keys(cls) -> Dict[str, Option]:
        """Its options."""
        return {field.name: field.metadata["option"] for field in fields(cls)}

    @classmethod
    def defaults(cls) -> Dict[str, Any]:
        """The values of those options that need not be given."""
        return {field.name: field.default for field in fields(cls) if field.default is not MISSING}

    def described(self) -> Dict[str, Any]:
        """The values of its options, as plain values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {k: v.item() if isinstance(v, np.generic) else v for k, v in values.items()}

    def rounds(self, shapes: Shapes) -> Mapping[str, Shapes]:
        """The shapes of the vectors of each kind of round, given those of the parameters."""
        raise NotImplementedError

    def begin(self, parameters: Arrays) -> Dict[str, Dict[str, Array]]:
        """The state before the first step: by its kind and by parameter, arrays of their own."""
        return {}

    def step(self, at: Step, state: Mapping[str, Dict[str, Array]]) -> Rounds:
        """Make one step. This is a generator: it yields rounds, and is sent their averages.

        Each value of `state` is changed in place, or replaced in its dictionary.
        """
        raise NotImplementedError
