"""The bytes and seconds of a step, computed from the meters of channels."""

from __future__ import annotations

from typing import Any, Collection, Dict, Iterable, Iterator, Mapping, Tuple

from ... import stats
from ...plan import Tensor
from ..engine.operators import KEPT_SPANS
from ..exchange.channel import Metered
from ..exchange.exchange import Exchange

_SECONDS = ("compress_seconds", "wait_seconds", "decompress_seconds")


def of_step(
    exchange: Exchange, tensors: Mapping[str, Tensor], reset: bool = False
) -> Dict[str, Any]:
    """The average stats of a step, for each tensor and in total; waits for the exchanges.

    Parameters
    ----------
    exchange : Exchange
    tensors : mapping
        The tensors, by their names in the stats.
    reset : bool
        Whether the next call averages only over the steps after this one.
    """
    names = {tensor.name for tensor in tensors.values()}
    measured = stats.by_tensor(_messages(exchange, names))
    exposed = _exposed_seconds(exchange.channels.of(names))
    if reset:
        for channel in exchange.channels.of(names):
            channel.count_again()
    return stats.report(
        {called: stats.Size(tensor.num_bytes, tensor.size) for called, tensor in tensors.items()},
        {called: measured[tensor.name] for called, tensor in tensors.items()},
        exposed_seconds=exposed,
    )


def _messages(
    exchange: Exchange, names: Collection[str]
) -> Iterator[Tuple[Dict[str, float], Iterable[Tuple[str, float]]]]:
    """The measurements of each channel of these tensors, and its tensors' shares of them."""
    for channel in exchange.channels.of(names):
        done = channel.done()
        steps = done["calls"]
        pushed, pulled = exchange.message_bytes(channel, done)
        seconds = {field: done[field] / steps if steps else 0.0 for field in _SECONDS}
        yield {"pushed_bytes": pushed, "pulled_bytes": pulled, **seconds}, channel.shares()


def _exposed_seconds(channels: Iterable[Metered]) -> float:
    """The average seconds of a step from the last gradient's start to the last average."""
    spans = [channel.spans() for channel in channels]
    kept_from = max((min(steps) for steps in spans if len(steps) == KEPT_SPANS), default=0)
    exposed = []
    for step in {step for steps in spans for step in steps if step >= kept_from}:
        begins, ends = zip(*(steps[step] for steps in spans if step in steps))
        exposed.append(max(ends) - max(begins))
    return sum(exposed) / len(exposed) if exposed else 0.0
