"""The arrays of an algorithm in a checkpoint, by parameter index."""

from __future__ import annotations

from typing import Dict, Mapping, Sequence

import mxnet as mx
import numpy as np
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray

from ...algorithms.driver import Driver, is_arriving
from ...checkpoint import LOCAL, OF_ALL, Place
from ...checkpoint.cutting import Arrays
from ..trainer.parameters import broadcast_to_contexts, first_copy

_PARAMETER = "parameter"
"""`Place.what` of this worker's own parameter."""


class AlgorithmStates:
    """Saves and restores an algorithm's state and this worker's own parameters.

    Parameters
    ----------
    driver : Driver
        Runs the algorithm, counts the steps, and holds the state.
    params : mapping
        The parameters that the algorithm averages, by index.
    """

    def __init__(self, driver: Driver, params: Mapping[int, Parameter]) -> None:
        self._driver, self._params = driver, params

    def arrays(self) -> Dict[Place, NDArray]:
        """The algorithm's state and this worker's parameters, by parameter index."""
        numbers = {param.name: i for i, param in self._params.items()}
        saved = {
            Place(i, LOCAL, _PARAMETER): first_copy(param) for i, param in self._params.items()
        }
        for kind, arrays in self._driver.saved_state().items():
            node = OF_ALL if self._driver.is_shared(kind) else LOCAL
            saved.update({Place(numbers[name], node, kind): a for name, a in arrays.items()})
        return saved

    def check(self, file: str, arrays: Mapping[Place, np.ndarray], strict: bool) -> None:
        """Raise ValueError unless a file has the arrays that `arrays` returns, in their shapes.

        If not strict, arrays may be missing. Arrays of other nodes are ignored.
        """
        for place, own in self.arrays().items():
            if is_arriving(place.what):
                continue  # of this trainer's steps: a file of another step has others
            saved = arrays.get(place)
            found = "missing" if saved is None else f"{saved.shape} of {saved.dtype.name}"
            expected = f"{own.shape} of {np.dtype(own.dtype).name}"
            if found != expected and (strict or saved is not None):
                name = self._params[place.tensor].name
                raise ValueError(
                    f"'{file}' does not fit: the {place.what} of '{name}' is {found} there, but "
                    f"{expected} here"
                )

    def regrouped(self, files: Sequence[Arrays]) -> Arrays:
        """Each worker's arrays that `Algorithm.regrouped` makes from the files of all workers."""
        states = []
        for arrays in files:
            state: Dict[str, Dict[int, np.ndarray]] = {}
            for place, array in arrays.items():
                if place.node in (LOCAL, OF_ALL):
                    state.setdefault(place.what, {})[place.tensor] = array
            states.append(state)
        return {
            Place(i, LOCAL, kind): array
            for kind, arrays in self._driver.algorithm.regrouped(states).items()
            for i, array in arrays.items()
        }

    def load(self, arrays: Mapping[Place, np.ndarray], steps: int) -> None:
        """Restore arrays that `arrays` returned after this number of steps.

        State without an array starts as in the first step.
        """
        values = {
            place: mx.nd.array(a, ctx=first_copy(self._params[place.tensor]).context, dtype=a.dtype)
            for place, a in arrays.items()
        }
        own_places = [place for place in values if place[1:3] == (LOCAL, _PARAMETER)]
        for place in own_places:
            values.pop(place).copyto(first_copy(self._params[place.tensor]))
        broadcast_to_contexts(self._params.values())
        state = self._driver.algorithm.begin(
            {param.name: first_copy(param) for param in self._params.values()}
        )
        for place, value in values.items():
            state.setdefault(place.what, {})[self._params[place.tensor].name] = value
        self._driver.go_on(steps, state)
