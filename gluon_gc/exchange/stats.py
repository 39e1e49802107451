"""Computes the result of compression_stats from measurements of messages, for both front ends."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Mapping, NamedTuple, Tuple

FIELDS = ("pushed_bytes", "pulled_bytes", "compress_seconds", "wait_seconds", "decompress_seconds")
"""The measurements of a message: the bytes that this worker sends and receives in a step, and
seconds, averaged over steps. Chunks overlap, so the seconds may exceed those of the step."""

Fields = Mapping[str, float]


class Size(NamedTuple):
    """The size of a tensor: its bytes without compression, and its number of elements."""

    raw_bytes: int
    elements: int


def by_tensor(
    messages: Iterable[Tuple[Fields, Iterable[Tuple[str, float]]]],
) -> Dict[str, Dict[str, float]]:
    """The `FIELDS` of each tensor, by name, from those of its messages.

    Each message has its `FIELDS`, and for each of its tensors the name and the share of the
    message, from 0 to 1.
    """
    measured: Dict[str, Dict[str, float]] = {}
    for fields, shares in messages:
        for name, share in shares:
            tensor = measured.setdefault(name, dict.fromkeys(FIELDS, 0.0))
            for field in FIELDS:
                tensor[field] += share * fields[field]
    return measured


def report(
    sizes: Mapping[str, Size], measured: Mapping[str, Fields], **of_total: float
) -> Dict[str, Any]:
    """Return the result of compression_stats: a dict with "tensors" by name, and "total".

    Each entry has `FIELDS`, raw_bytes (of the uncompressed tensor), ratio (raw_bytes /
    pushed_bytes, or None if nothing was sent) and bits_per_element. A tensor that is missing in
    `measured`, the result of `by_tensor`, has not been sent yet. `of_total` are further entries of
    "total".
    """
    zeros = dict.fromkeys(FIELDS, 0.0)
    fields = {name: measured.get(name, zeros) for name in sizes}
    total = {
        field: sum(tensor_fields[field] for tensor_fields in fields.values()) for field in FIELDS
    }
    whole = Size(
        sum(size.raw_bytes for size in sizes.values()),
        sum(size.elements for size in sizes.values()),
    )
    return {
        "tensors": {name: _with_ratios(size, fields[name]) for name, size in sizes.items()},
        "total": _with_ratios(whole, {**total, **of_total}),
    }


def _with_ratios(size: Size, fields: Fields) -> Dict[str, Any]:
    pushed = fields["pushed_bytes"]
    return {
        "raw_bytes": size.raw_bytes,
        "ratio": size.raw_bytes / pushed if pushed else None,
        "bits_per_element": 8 * pushed / size.elements if size.elements else 0.0,
        **fields,
    }
