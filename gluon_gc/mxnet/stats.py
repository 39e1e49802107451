"""What a step moves and takes, from the meters of channels."""

from __future__ import annotations

from typing import Any, Collection, Dict, Iterable, Mapping

from ..plan import Tensor
from ..stats import with_ratios
from .channel import Metered
from .exchange import Exchange
from .operators import KEPT_SPANS

_BYTES = ("pushed_bytes", "pulled_bytes")
_SECONDS = ("compress_seconds", "wait_seconds", "decompress_seconds")


def of_step(
    exchange: Exchange, tensors: Mapping[str, Tensor], reset: bool = False
) -> Dict[str, Any]:
    """The stats of a step on average, of these tensors and in all.

    Parameters
    ----------
    exchange : Exchange
        Whose exchanges are waited for.
    tensors : mapping
        What to call each tensor.
    reset : bool
        Whether the next averages are of later steps alone.
    """
    names = {tensor.name for tensor in tensors.values()}
    measured, exposed = _measured(exchange, names), _exposed_seconds(exchange.channels.of(names))
    fields = {called: measured[tensor.name] for called, tensor in tensors.items()}
    if reset:
        for channel in exchange.channels.of(names):
            channel.count_again()
    total = {
        field: sum(of_tensor[field] for of_tensor in fields.values())
        for field in (*_BYTES, *_SECONDS)
    }
    return {
        "tensors": {
            called: with_ratios(tensor.num_bytes, tensor.size, fields[called])
            for called, tensor in tensors.items()
        },
        "total": with_ratios(
            sum(tensor.num_bytes for tensor in tensors.values()),
            sum(tensor.size for tensor in tensors.values()),
            {**total, "exposed_seconds": exposed},
        ),
    }


def _measured(exchange: Exchange, names: Collection[str]) -> Dict[str, Dict[str, float]]:
    """By tensor its share of what was done in its channels."""
    measured: Dict[str, Dict[str, float]] = {}
    for channel in exchange.channels.of(names):
        done = channel.done()
        steps = done["calls"]
        fields = dict(zip(_BYTES, exchange.message_bytes(channel, done)))
        fields.update((field, done[field] / steps if steps else 0.0) for field in _SECONDS)
        for name, share in channel.shares():
            tensor = measured.setdefault(name, dict.fromkeys(fields, 0.0))
            for field, value in fields.items():
                tensor[field] += share * value
    return measured


def _exposed_seconds(channels: Iterable[Metered]) -> float:
    """Of a step on average: after the last gradient was handed over, until all were back."""
    spans = [channel.spans() for channel in channels]
    kept_from = max((min(steps) for steps in spans if len(steps) == KEPT_SPANS), default=0)
    exposed = []
    for step in {step for steps in spans for step in steps if step >= kept_from}:
        begins, ends = zip(*(steps[step] for steps in spans if step in steps))
        exposed.append(max(ends) - max(begins))
    return sum(exposed) / len(exposed) if exposed else 0.0
