"""What compression_stats has of a tensor, or of all tensors, in both front ends."""

from __future__ import annotations

from typing import Any, Dict, Mapping


def with_ratios(raw_bytes: int, size: int, fields: Mapping[str, float]) -> Dict[str, Any]:
    """Add raw_bytes, ratio and bits_per_element to measured fields.

    Parameters
    ----------
    raw_bytes : int
        Of `size` elements, uncompressed.
    fields : mapping
        With pushed_bytes, if anything was sent. If nothing was sent, the ratio is None.
    """
    pushed = fields.get("pushed_bytes", 0.0)
    return {
        "raw_bytes": raw_bytes,
        "ratio": raw_bytes / pushed if pushed else None,
        "bits_per_element": 8 * pushed / size if size else 0.0,
        **fields,
    }
