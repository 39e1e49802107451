"""An algorithm at work in MXNet: a trainer's parameters, and rounds through its store."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray

from ..agreement import Facts
from ..algorithms import Algorithm, Round
from ..algorithms.driver import Driver
from ..algorithms.requirements import first_values
from ..compression import CompressionParams
from ..plan import Tensor
from .algorithm_arguments import require_dense_floats
from .algorithm_states import AlgorithmStates
from .exchange import CompressingKVStore
from .gradient import legacy, params_for, sum_over_contexts
from .parameters import first_copy, spread


class AlgorithmFrontEnd:
    """Runs an algorithm on the parameters of a trainer; the `FrontEnd` of a `Driver`.

    Vectors and state are on the first context of a parameter. The gradients that the algorithm sees
    are sums over the contexts of this worker and over its batch: the optimizer's update divides
    them by the batch size.

    Parameters
    ----------
    algorithm : Algorithm
    name : str
        The first part of the tensors' names in the store.
    params : sequence of Parameter
        The trainer's.
    compression_of : callable
        Gives the compression of a parameter's vectors, by its number.
    on_nonfinite : str
        "raise" or "propagate".

    Attributes
    ----------
    states : AlgorithmStates
        The arrays for checkpoints.
    tensors : dict
        By the parameter's number and the kind of the round, the tensors that the store knows.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        name: str,
        params: Sequence[Parameter],
        compression_of: Callable[[int], CompressionParams],
        on_nonfinite: str,
    ) -> None:
        require_dense_floats(algorithm.name, params)
        self._algorithm, self._name, self._all = algorithm, name, params
        self._compression_of, self._on_nonfinite = compression_of, on_nonfinite
        self._driver = Driver(algorithm, self)
        self._params: Dict[int, Parameter] = {}  # those that the rounds average
        self._shapes: Dict[str, Mapping[str, Tuple[int, ...]]] = {}  # by the kind of the round
        self._store: Optional[CompressingKVStore] = None
        self.states = AlgorithmStates(algorithm, self._driver, self._params)
        self.tensors: Dict[Tuple[int, str], Tensor] = {}

    @property
    def described(self) -> Dict[str, Any]:
        """The algorithm's name and options, as plain values."""
        return {"name": self._algorithm.name, **self._algorithm.described()}

    @property
    def begun(self) -> bool:
        """Whether `begin` was called."""
        return self._store is not None

    def refuse_call(self, call: str) -> None:
        """Raise RuntimeError about a function that averages gradients."""
        raise RuntimeError(
            f"{call} is for averages of gradients in every step, which algorithm "
            f"{self._algorithm.name} does not make: call trainer.step(batch_size), before which "
            "gradients may be changed, or leave out algorithm"
        )

    def require_same_workers(self, goes_on: bool) -> None:
        """Raise RuntimeError unless all workers go on as they were before `suspend`."""
        if not goes_on:
            raise RuntimeError(
                f"algorithm {self._algorithm.name} goes on after bps.resume only with the workers "
                "that were there, with their ranks: save_states before bps.suspend, and "
                "load_states(files, strict=False) into a new trainer"
            )

    def begun_in(self, store: CompressingKVStore, indices: Sequence[int]) -> bool:
        """Whether a store is ready for the rounds of the parameters of these numbers.

        Raises
        ------
        ValueError
            The algorithm averages others.
        """
        changed = self._params.keys() ^ set(indices)
        if self.begun and changed:
            raise ValueError(
                f"the grad_req of parameter {self._all[min(changed)].name} has changed since "
                f"algorithm {self._algorithm.name} began: set it before the first step, or make "
                "another trainer"
            )
        return store is self._store

    def begin(
        self, store: CompressingKVStore, indices: Sequence[int], call: str, facts: Facts
    ) -> None:
        """Declare the rounds, and make the algorithm's state at first; all workers call this.

        Parameters
        ----------
        store : CompressingKVStore
        indices : sequence of int
            The numbers of the parameters, in the order in which forward uses them.
        call : str
            The function of the user that does this.
        facts : Facts
            What the workers must have in common. In the first step that includes the parameters'
            values.
        """
        self._params.clear()
        self._params.update((i, self._all[i]) for i in indices)
        require_dense_floats(self._algorithm.name, self._params.values())
        if call == "step" and not self.begun:
            arrays = ((name, array.asnumpy()) for name, array in self.parameters().items())
            facts = [*facts, *first_values(self._algorithm, arrays)]
        self._driver.begin()
        self.tensors.clear()
        for kind, shapes in self._shapes.items():
            tensors = [self._tensor(kind, i, shapes) for i in self._in_round(shapes)]
            store.declare(tensors, about=facts, call=call)
            self.tensors.update({(tensor.index, kind): tensor for tensor in tensors})
        self._store = store

    def _in_round(self, vectors: Mapping[str, Any]) -> List[int]:
        return [i for i, param in self._params.items() if param.name in vectors]

    def _tensor(self, kind: str, index: int, shapes: Mapping[str, Tuple[int, ...]]) -> Tensor:
        param = self._all[index]
        first = first_copy(param)
        return Tensor(
            f"{self._name}.{kind}.{index}",
            math.prod(shapes[param.name]),
            np.dtype(first.dtype).name,
            params_for(first, self._compression_of(index)),
            index=index,
            called=f"the {kind} of {param.name}",
            on_nonfinite=self._on_nonfinite,
        )

    def step(self, update: Callable[[], None]) -> None:
        """Make a step, in which `update` applies the optimizer to this worker's gradients."""
        for param in self._params.values():
            if param.list_data()[0]._fresh_grad:
                sum_over_contexts(param.list_grad())
        self._driver.step(update)
        spread(self._params.values())

    # The driver's

    def parameters(self) -> Dict[str, NDArray]:
        """This worker's parameters."""
        return {param.name: first_copy(param) for param in self._params.values()}

    def gradients(self) -> Dict[str, NDArray]:
        """This worker's own gradients, of those parameters that have a fresh one."""
        fresh = (param for param in self._params.values() if param.list_data()[0]._fresh_grad)
        return {param.name: legacy(param.list_grad()[:1])[0] for param in fresh}

    def declare(self, kind: str, shapes: Mapping[str, Tuple[int, ...]]) -> None:
        """Note the shapes of a kind of round, which `begin` declares."""
        self._shapes[kind] = shapes

    def average(self, request: Round) -> Dict[str, NDArray]:
        """The averages of a round's vectors over all workers, in new arrays."""
        store, gradients, averages = self._store, {}, {}
        for i in self._in_round(request.vectors):
            name, tensor = self._params[i].name, self.tensors[i, request.kind].name
            vector = request.vectors[name]
            averages[name] = mx.nd.empty(vector.shape, vector.context, vector.dtype)
            gradients[tensor] = store.gradient(tensor, [vector], [averages[name]])
        store.gradient_scale = 1.0 / store.num_workers
        store.exchange(gradients)
        return averages
