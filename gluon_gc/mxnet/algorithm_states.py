"""The arrays of an algorithm in a checkpoint, by the number of the parameter."""

from __future__ import annotations

from typing import Dict, Mapping

import mxnet as mx
import numpy as np
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray

from ..algorithms import Algorithm
from ..algorithms.driver import Driver
from ..checkpoint import LOCAL, OF_ALL, Place
from .parameters import first_copy, spread

_PARAMETER = "parameter"
"""This worker's parameter, as `Place.what`."""


class AlgorithmStates:
    """The state of an algorithm, and this worker's own parameters.

    Parameters
    ----------
    algorithm : Algorithm
    driver : Driver
        It counts the steps, and has the state.
    params : mapping
        The parameters that the algorithm averages, by number.
    """

    def __init__(
        self, algorithm: Algorithm, driver: Driver, params: Mapping[int, Parameter]
    ) -> None:
        self._algorithm, self._driver, self._params = algorithm, driver, params

    def arrays(self) -> Dict[Place, NDArray]:
        """The algorithm's state and this worker's parameters, by the parameter's number."""
        numbers = {param.name: i for i, param in self._params.items()}
        kept = {Place(i, LOCAL, _PARAMETER): first_copy(param) for i, param in self._params.items()}
        for kind, arrays in self._driver.state.items():
            node = OF_ALL if kind in self._algorithm.shared else LOCAL
            kept.update({Place(numbers[name], node, kind): a for name, a in arrays.items()})
        return kept

    def check(self, file: str, arrays: Mapping[Place, np.ndarray], strict: bool) -> None:
        """Raise ValueError unless a file has the arrays that `arrays` returns, in their shapes.

        If not strict, arrays may be missing. Arrays of other nodes are not looked at.
        """
        for place, here in self.arrays().items():
            there = arrays.get(place)
            found = "missing" if there is None else f"{there.shape} of {there.dtype.name}"
            expected = f"{here.shape} of {np.dtype(here.dtype).name}"
            if found != expected and (strict or there is not None):
                name = self._params[place.tensor].name
                raise ValueError(
                    f"'{file}' does not fit: the {place.what} of '{name}' is {found} there, but "
                    f"{expected} here"
                )

    def load(self, arrays: Mapping[Place, np.ndarray], steps: int) -> None:
        """Go on from arrays that `arrays` returned, after this number of steps.

        State without an array is as at the beginning.
        """
        values = {
            place: mx.nd.array(a, ctx=first_copy(self._params[place.tensor]).context, dtype=a.dtype)
            for place, a in arrays.items()
        }
        own = [place for place in values if place[1:3] == (LOCAL, _PARAMETER)]
        for place in own:
            values.pop(place).copyto(first_copy(self._params[place.tensor]))
        spread(self._params.values())
        state = self._algorithm.begin(
            {param.name: first_copy(param) for param in self._params.values()}
        )
        for place, value in values.items():
            state.setdefault(place.what, {})[self._params[place.tensor].name] = value
        self._driver.go_on(steps, state)
