"""What a step moves and takes, from the meters of channels."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Dict, Mapping

import torch

from .channel import Meter
from .exchange import Exchange


def of_step(
    exchange: Exchange, tensors: Mapping[str, torch.Tensor], reset: bool
) -> Dict[str, Any]:
    """The stats of a step on average, of these tensors and in all."""
    sums = {name: _sum(exchange, name, reset) for name in tensors}
    total: Dict[str, float] = {}
    for fields in sums.values():
        for field, value in fields.items():
            total[field] = total.get(field, 0.0) + value
    return {
        "tensors": {
            name: _with_ratios(tensor.numel() * tensor.itemsize, tensor.numel(), sums[name])
            for name, tensor in tensors.items()
        },
        "total": _with_ratios(
            sum(tensor.numel() * tensor.itemsize for tensor in tensors.values()),
            sum(tensor.numel() for tensor in tensors.values()),
            total,
        ),
    }


def _sum(exchange: Exchange, name: str, reset: bool) -> Dict[str, float]:
    """What was done for a tensor in a step, on average."""
    total: Dict[str, float] = {}
    for channel in exchange.channels_of(name):
        fields = asdict(channel.meter)
        steps = fields.pop("steps")
        for field, value in fields.items():
            total[field] = total.get(field, 0.0) + (value / steps if steps else 0.0)
        if reset:
            channel.meter = Meter()
    return total


def _with_ratios(raw_bytes: int, size: int, fields: Mapping[str, float]) -> Dict[str, float]:
    pushed = fields.get("pushed_bytes", 0.0)
    return {
        "raw_bytes": raw_bytes,
        "ratio": raw_bytes / pushed if pushed else 0.0,
        "bits_per_element": 8 * pushed / size if size else 0.0,
        **fields,
    }
