"""The compressors that "auto" chose for a trainer: the same on all workers, in all steps."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any, Dict, Iterable, List, Mapping, Sequence

import numpy as np
from mxnet.ndarray import NDArray

from ...auto import selection
from ...auto.algorithm import AutomaticAlgorithm, Decision
from ...auto.choice import Measured
from ...compression import CompressionParams, candidates
from ...plan import Tensor
from ...state.matching import pairs
from ..exchange.exchange import Exchange
from . import probe


class Automatic:
    """The choices of "auto" for the parameters of a trainer, by parameter index."""

    def __init__(self) -> None:
        self._chosen: Dict[int, str] = {}

    def settled(
        self, exchange: Exchange, tensors: Sequence[Tensor], gradients: Sequence[NDArray]
    ) -> List[Tensor]:
        """Replace "auto" in these tensors by the chosen compressors; all workers call it.

        If rank 0 has already chosen a tensor's compressor, the choice stays. For the other tensors
        all workers measure, and rank 0 chooses.

        Parameters
        ----------
        exchange : Exchange
        tensors : sequence of Tensor
            In the order of backward.
        gradients : sequence of NDArray
            The gradients of these tensors, which backward may still be computing.
        """
        arrays = dict(zip((tensor.name for tensor in tensors), gradients))
        undecided = [tensor for tensor in tensors if tensor.params.accuracy is not None]
        if not undecided:
            return list(tensors)
        previous = [self._chosen.get(tensor.index) for tensor in undecided]
        names = of_root(exchange, previous)
        if None in names:
            chosen = _choose(exchange, undecided, [arrays[tensor.name] for tensor in undecided])
            names = of_root(exchange, [old or new for old, new in zip(names, chosen)])
        self._chosen.update((tensor.index, name) for tensor, name in zip(undecided, names))
        return [self._with_choice(tensor) for tensor in tensors]

    def _with_choice(self, tensor: Tensor) -> Tensor:
        if tensor.params.accuracy is None:
            return tensor
        return replace(tensor, params=candidates(tensor.params)[self._chosen[tensor.index]])

    def recall(self, saved: Mapping[int, Any], params: Mapping[int, CompressionParams]) -> None:
        """Take over the choices in a checkpoint, for parameters without a choice.

        Parameters
        ----------
        saved : mapping
            The result of `saved_compressions`.
        params : mapping
            The compression of each of the trainer's parameters, by index.
        """
        for i, identity in saved.items():
            if params[i].accuracy is not None:
                candidate = selection.recalled(params[i], identity)
                if candidate is not None:
                    self._chosen.setdefault(i, candidate)


def saved_compressions(
    header: Mapping[str, Any], here: Sequence[Mapping[str, Any]]
) -> Dict[int, Any]:
    """The compression of each parameter in a checkpoint, by its index in the trainer.

    `here` is the result of `Averaging.named_parameters`. The header is not checked yet, so keys may
    be missing. The result is then empty.
    """
    saved = header.get("parameters", [])
    if not all({"name", "shape", "dtype"} <= set(parameter) for parameter in saved):
        return {}
    return {i: saved[number].get("compression") for number, i in pairs(saved, here)[0]}


def decided(
    exchange: Exchange,
    automatic: AutomaticAlgorithm,
    tensors: Sequence[Tensor],
    shapes: Sequence[Sequence[int]],
) -> Decision:
    """The decision for an algorithm; all workers call it.

    Parameters
    ----------
    exchange : Exchange
    automatic : AutomaticAlgorithm
    tensors, shapes
        See `AutomaticAlgorithm.choose`.
    """
    topology = exchange.topology()

    def measure(compressors: Mapping[str, CompressionParams]) -> Measured:
        return probe.measured(exchange, topology, compressors)

    seconds, says = probe.slowest(exchange, automatic.seconds), exchange.rank == 0
    return automatic.choose(tensors, shapes, topology, measure, seconds, says)


def of_root(exchange: Exchange, value: Any) -> Any:
    """Rank 0's value, which consists of plain Python values."""
    if exchange.num_workers == 1:
        return value
    data = json.dumps(value).encode()
    (size,) = np.frombuffer(exchange.bytes_of_root(np.int64(len(data)).tobytes()), np.int64)
    return json.loads(exchange.bytes_of_root(data[:size].ljust(size)))


def _choose(
    exchange: Exchange, tensors: Sequence[Tensor], gradients: Sequence[NDArray]
) -> List[str]:
    """The best compressor for each tensor. The log of rank 0 gives the reasons."""
    topology = exchange.topology()

    def measure(compressors: Mapping[str, CompressionParams]) -> Measured:
        return probe.measured(exchange, topology, compressors)

    ready = _ready(gradients)
    return selection.chosen(tensors, topology, measure, ready, says=exchange.rank == 0)


def _ready(gradients: Iterable[NDArray]) -> List[float]:
    """For each gradient, the seconds from the first gradient until it is ready.

    The call waits for the first backward. Later ones are assumed to be twice as fast, so its times
    are halved.
    """
    times = []
    for gradient in gradients:
        gradient.wait_to_read()
        times.append(time.perf_counter())
    return [(at - times[0]) / 2 for at in times]
