"""What compression_stats returns, made from the measurements of messages, in both front ends."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Mapping, NamedTuple, Tuple

FIELDS = ("pushed_bytes", "pulled_bytes", "compress_seconds", "wait_seconds", "decompress_seconds")
"""The measurements of a message, averaged over steps."""

Fields = Mapping[str, float]


class Size(NamedTuple):
    """The bytes of an uncompressed tensor, and its number of elements."""

    raw_bytes: int
    elements: int


def by_tensor(
    messages: Iterable[Tuple[Fields, Iterable[Tuple[str, float]]]],
) -> Dict[str, Dict[str, float]]:
    """The measurements of each tensor.

    Parameters
    ----------
    messages : iterable of (mapping, iterable of (str, float))
        For each message its `FIELDS`, and its tensors' names with their shares of the message.
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
    """The dict of "tensors" and "total" that compression_stats returns.

    Parameters
    ----------
    sizes : mapping
        The sizes of the tensors, by name.
    measured : mapping
        As `by_tensor` returns it. Tensors that are missing have not travelled.
    **of_total
        More measurements of all tensors together.
    """
    zeros = dict.fromkeys(FIELDS, 0.0)
    fields = {name: measured.get(name, zeros) for name in sizes}
    total = {field: sum(of_tensor[field] for of_tensor in fields.values()) for field in FIELDS}
    whole = Size(
        sum(size.raw_bytes for size in sizes.values()),
        sum(size.elements for size in sizes.values()),
    )
    return {
        "tensors": {name: _with_ratios(size, fields[name]) for name, size in sizes.items()},
        "total": _with_ratios(whole, {**total, **of_total}),
    }


def _with_ratios(size: Size, fields: Fields) -> Dict[str, Any]:
    """Add raw_bytes, ratio (None if nothing was sent) and bits_per_element to measurements."""
    pushed = fields["pushed_bytes"]
    return {
        "raw_bytes": size.raw_bytes,
        "ratio": size.raw_bytes / pushed if pushed else None,
        "bits_per_element": 8 * pushed / size.elements if size.elements else 0.0,
        **fields,
    }
