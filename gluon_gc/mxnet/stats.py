"""What a step moves and takes, from the meters of channels."""

from __future__ import annotations

from typing import Any, Collection, Dict, Mapping

from ..plan import Tensor
from .exchange import CompressingKVStore

_BYTES = ("pushed_bytes", "pulled_bytes")
_SECONDS = ("compress_seconds", "wait_seconds", "decompress_seconds")


def of_step(
    store: CompressingKVStore, tensors: Mapping[str, Tensor], reset: bool = False
) -> Dict[str, Any]:
    """The stats of a step on average, of these tensors and in all.

    Parameters
    ----------
    store : CompressingKVStore
        Whose exchanges are waited for.
    tensors : mapping
        What to call each tensor.
    reset : bool
        Whether the next averages are of later steps alone.
    """
    names = {tensor.name for tensor in tensors.values()}
    measured = _measured(store, names)
    fields = {called: measured[tensor.name] for called, tensor in tensors.items()}
    if reset:
        for channel in store.channels_of(names):
            channel.count_again()
    total = {field: sum(of[field] for of in fields.values()) for field in (*_BYTES, *_SECONDS)}
    return {
        "tensors": {
            called: _with_ratios(tensor.num_bytes, tensor.size, fields[called])
            for called, tensor in tensors.items()
        },
        "total": _with_ratios(
            sum(tensor.num_bytes for tensor in tensors.values()),
            sum(tensor.size for tensor in tensors.values()),
            total,
        ),
    }


def _measured(store: CompressingKVStore, names: Collection[str]) -> Dict[str, Dict[str, float]]:
    """By tensor its share of what was done in its channels."""
    measured: Dict[str, Dict[str, float]] = {}
    for channel in store.channels_of(names):
        done = channel.done()
        steps = done.get("calls", 0)
        fields = dict(zip(_BYTES, store.message_bytes(channel, done)))
        fields.update((field, done[field] / steps if steps else 0.0) for field in _SECONDS)
        for name, share in channel.shares():
            tensor = measured.setdefault(name, dict.fromkeys(fields, 0.0))
            for field, value in fields.items():
                tensor[field] += share * value
    return measured


def _with_ratios(raw_bytes: int, size: int, fields: Mapping[str, float]) -> Dict[str, float]:
    pushed = fields["pushed_bytes"]
    return {
        "raw_bytes": raw_bytes,
        "ratio": raw_bytes / pushed if pushed else 0.0,
        "bits_per_element": 8 * pushed / size if size else 0.0,
        **fields,
    }
