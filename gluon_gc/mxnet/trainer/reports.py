"""What a trainer reports: its exchange in words, and the bytes and seconds of a step."""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Any,
    Collection,
    Dict,
    Hashable,
    Iterable,
    Iterator,
    List,
    Mapping,
    Tuple,
)

from mxnet.gluon import Trainer

from ...compression import CompressionParams
from ...exchange import statistics
from ...exchange.plan import Tensor
from ..engine.operators import KEPT_SPANS
from ..exchange.channel import Channel, Metered
from ..exchange.exchange import Exchange

if TYPE_CHECKING:
    from .averaging import Averaging

_SECONDS = ("compress_seconds", "wait_seconds", "decompress_seconds")


def summary(trainer: Trainer, averaging: Averaging, given: CompressionParams) -> List[str]:
    """Lines about how a trainer's tensors travel; `given` is the trainer's own compression."""
    exchange, names, noun = averaging.exchange, averaging.names(), averaging.noun
    connection = f"{exchange.type}, worker {exchange.rank} of {exchange.num_workers}"
    run = averaging.run
    if run is not None:
        connection = f"worker {run.worker} of the run at {run.url}"
    head = f"{type(trainer).__name__}: {type(trainer.optimizer).__name__}, {connection}"
    if averaging.described is not None:
        head = f"{head}, algorithm {averaging.described}"
    if run is not None:
        return [head, _of_params(given)]
    if not names:
        return [head, f"no {noun}s yet: {_of_params(given)}"]
    by_compression: Dict[Hashable, List[Channel]] = {}
    for channel in exchange.channels.of(names):
        by_compression.setdefault(channel.params or channel.dtype, []).append(channel)
    return [head, *(_line(channels, noun) for channels in by_compression.values())]


def _line(channels: List[Channel], noun: str) -> str:
    """The line of all tensors with the same compression."""
    params, dtype = channels[0].params, channels[0].dtype
    tensors = {name for channel in channels for name in channel.tensors}
    size = sum(channel.size for channel in channels)
    chunks = sum(len(channel.chunks) for channel in channels)
    counts = (
        f"{_counted(len(tensors), noun)} of {_counted(size, 'element')}, in "
        f"{_counted(chunks, 'chunk')} and {_counted(len(channels), 'message')}"
    )
    return f"{counts}: {_of_params(params) if params else f'uncompressed, {dtype}'}"


def _of_params(params: CompressionParams) -> str:
    """The compression_params, and the momentum that is applied before the compressor."""
    momentum = f", momentum {params.mu}" if params.mu is not None else ""
    return f"{params.given() or 'uncompressed'}{momentum}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def stats_of_step(
    exchange: Exchange, tensors: Mapping[str, Tensor], reset: bool = False
) -> Dict[str, Any]:
    """The average stats of a step, for each tensor and in total; waits for exchanges."""
    names = {tensor.name for tensor in tensors.values()}
    measured = statistics.by_tensor(_messages(exchange, names))
    exposed = _exposed_seconds(exchange.channels.of(names))
    if reset:
        for channel in exchange.channels.of(names):
            channel.count_again()
    return statistics.report(
        {
            called: statistics.Size(tensor.num_bytes, tensor.size)
            for called, tensor in tensors.items()
        },
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
