"""Runs "auto" for a front end: measures, chooses, and logs the choice with its reason."""

from __future__ import annotations

import json
from typing import Any, Hashable, Iterable, Mapping, Sequence

from .. import env
from ..compression import CompressionParams, candidates
from ..compression.auto import PLAIN
from ..exchange.plan import Tensor
from ..log import logger
from .choice import Choice, Measured, Topology, choose
from .probe import Workers

_NAMES_SHOWN = 3


def chosen(
    tensors: Sequence[Tensor], workers: Workers, ready: Sequence[float] | None = None
) -> list[str]:
    """The chosen candidate of each tensor, in the order in which backward computes them.

    Nothing is compressed without a network. `ready` is that of `choice.choose`.
    """
    compressors = compressors_of(tensors)
    if workers.topology is None or not compressors:
        return [PLAIN] * len(tensors)
    measured = workers.measured(compressors)
    settings = (env.get(f"BYTEPS_{limit}_BYTES") for limit in ("PARTITION", "MIN_COMPRESS"))
    choice = choose(tensors, measured, workers.topology, *settings, ready)
    if workers.logs:
        logger.warning("%s", _explained(tensors, choice, measured, workers.topology))
    return [choice.names[tensor.name] for tensor in tensors]


def saved_choices(
    requested: Mapping[Hashable, CompressionParams], saved: Mapping[Hashable, Any]
) -> dict[Hashable, str]:
    """The names of the candidates that a checkpoint has for requests of "auto", by key.

    `saved` has the identities of the checkpoint's params, by the same keys.
    """
    return {
        key: name
        for key, params in requested.items()
        if params.accuracy is not None and key in saved
        for name, candidate in candidates(params, inner=True).items()
        if is_saved_as(candidate, saved[key])
    }


def is_saved_as(params: CompressionParams, saved: Any) -> bool:
    """Whether a checkpoint has these params, given the identity that it has."""
    return json.loads(json.dumps(params.identity())) == saved


def own_candidates(params: CompressionParams) -> dict[str, CompressionParams]:
    """The compressions among which "auto" chooses for a tensor, by name.

    A tensor with a compressor of its own has only that. Its name is made of its options.
    """
    return candidates(params) if params.accuracy is not None else {repr(params.given()): params}


def compressors_of(tensors: Iterable[Tensor]) -> dict[str, CompressionParams]:
    """All `own_candidates` of these tensors that have a compressor, by name."""
    return {
        name: params
        for tensor_params in {tensor.params: None for tensor in tensors}
        for name, params in own_candidates(tensor_params).items()
        if params.compressor is not None
    }


def _explained(
    tensors: Sequence[Tensor], choice: Choice, measured: Measured, topology: Topology
) -> str:
    by_name: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        by_name.setdefault(choice.names[tensor.name], []).append(tensor)
    accuracy = "/".join(sorted({tensor.params.accuracy for tensor in tensors}))
    listed = "; ".join(
        f"{name} for {len(group)} of {sum(tensor.size for tensor in group):,} elements "
        f"({_listed(group)})"
        for name, group in by_name.items()
    )
    link = f"the link carries {topology.local_size * measured.link.bits / 1e6:,.0f} Mbit/s"
    if measured.inner is not None:
        link += f", and {measured.inner.bits / 1e6:,.0f} Mbit/s inside a machine"
    return (
        f"auto, {accuracy}: {link}; the exchange "
        f"of a step should end {choice.seconds:.3g} s after backward, without compression "
        f"{choice.plain_seconds:.3g} s: {listed}"
    )


def _listed(tensors: Sequence[Tensor]) -> str:
    names = [tensor.called.rpartition(" ")[2] for tensor in tensors]
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
