"""What "auto" has chosen for a trainer: the same on all workers, for as long as it trains."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any, Dict, Iterable, List, Mapping, Sequence

import numpy as np
from mxnet.ndarray import NDArray

from ..auto import selection
from ..auto.choice import Measured
from ..compression import CompressionParams, candidates
from ..plan import Tensor
from . import probe
from .exchange import Exchange


class Automatic:
    """What "auto" has chosen for the parameters of a trainer, by their numbers."""

    def __init__(self) -> None:
        self._chosen: Dict[int, str] = {}

    def settled(
        self, exchange: Exchange, tensors: Sequence[Tensor], gradients: Sequence[NDArray]
    ) -> List[Tensor]:
        """The tensors, whose params say how they are compressed; all workers call it.

        What rank 0 had chosen before stays. Else all measure, and rank 0 chooses.

        Parameters
        ----------
        exchange : Exchange
        tensors : sequence of Tensor
            In the order of backward.
        gradients : sequence of NDArray
            These tensors, which backward may be about to make.
        """
        arrays = dict(zip((tensor.name for tensor in tensors), gradients))
        undecided = [tensor for tensor in tensors if tensor.params.accuracy is not None]
        if not undecided:
            return list(tensors)
        known = [self._chosen.get(tensor.index) for tensor in undecided]
        names = _of_root(exchange, known)
        if None in names:
            chosen = _choose(exchange, undecided, [arrays[tensor.name] for tensor in undecided])
            names = _of_root(exchange, [old or new for old, new in zip(names, chosen)])
        self._chosen.update((tensor.index, name) for tensor, name in zip(undecided, names))
        return [self._with_choice(tensor) for tensor in tensors]

    def _with_choice(self, tensor: Tensor) -> Tensor:
        if tensor.params.accuracy is None:
            return tensor
        return replace(tensor, params=candidates(tensor.params)[self._chosen[tensor.index]])

    def recall(
        self,
        saved: Sequence[Mapping[str, Any]],
        names: Mapping[int, str],
        params: Mapping[int, CompressionParams],
    ) -> None:
        """Choose again what a checkpoint has, where nothing was chosen yet.

        Parameters
        ----------
        saved : sequence of mapping
            The parameters that its header lists.
        names, params : mapping
            Those of the trainer's parameters, by number.
        """
        by_name = {parameter["name"]: parameter for parameter in saved}
        if by_name.keys().isdisjoint(names.values()):  # they are then taken in their order
            by_name = {names[i]: saved[i] for i in names if i < len(saved)}
        for i, name in names.items():
            if params[i].accuracy is None or name not in by_name:
                continue
            candidate = selection.recalled(params[i], by_name[name]["compression"])
            if candidate is not None:
                self._chosen.setdefault(i, candidate)


def _of_root(exchange: Exchange, value: Any) -> Any:
    """What rank 0 has, made of plain values."""
    if exchange.num_workers == 1:
        return value
    data = json.dumps(value).encode()
    (size,) = np.frombuffer(exchange.bytes_of_root(np.int64(len(data)).tobytes()), np.int64)
    return json.loads(exchange.bytes_of_root(data[:size].ljust(size)))


def _choose(
    exchange: Exchange, tensors: Sequence[Tensor], gradients: Sequence[NDArray]
) -> List[str]:
    """What is best for each tensor; the log of rank 0 says why."""
    topology = exchange.topology()

    def measure(compressors: Mapping[str, CompressionParams]) -> Measured:
        return probe.measured(exchange, topology, compressors)

    ready = _ready(gradients)
    return selection.chosen(tensors, topology, measure, ready, says=exchange.rank == 0)


def _ready(gradients: Iterable[NDArray]) -> List[float]:
    """Seconds from the first of these to each, once backward runs at its usual speed.

    The first backward, which this waits for, is taken to run at half of it.
    """
    times = []
    for gradient in gradients:
        gradient.wait_to_read()
        times.append(time.perf_counter())
    return [(at - times[0]) / 2 for at in times]
