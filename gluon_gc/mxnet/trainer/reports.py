"""What a trainer reports: its exchange in words, and the bytes and seconds of a step."""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Any,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
)

from mxnet.gluon import Trainer

from ...compression import CompressionParams
from ...exchange import statistics
from ...exchange.plan import Tensor
from ..engine.operators import KEPT_SPANS
from ..exchange.channel import Channel
from ..exchange.channels import AnyChannel
from ..exchange.exchange import Exchange

if TYPE_CHECKING:
    from .averaging import Averaging

_SECONDS = ("compress_seconds", "wait_seconds", "decompress_seconds")


def summary(trainer: Trainer, averaging: Averaging, given: CompressionParams) -> list[str]:
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
    by_compression: dict[Hashable, list[Channel]] = {}
    for channel in exchange.channels.of(names):
        by_compression.setdefault(channel.params or channel.dtype, []).append(channel)
    return [head, *(_line(channels, noun) for channels in by_compression.values())]


def _line(channels: list[Channel], noun: str) -> str:
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
    exchange: Exchange,
    tensors: Mapping[str, Tensor],
    reset: bool = False,
    window: statistics.Window = statistics.STATS,
    steps: int = 0,
) -> dict[str, Any]:
    """The average stats of a step, for each tensor and in total; waits for exchanges.

    The steps are those since the last `reset` of the window.
    `steps`: their number; 0: only the steps count in which a tensor was exchanged.
    """
    names = {tensor.name for tensor in tensors.values()}
    channels = exchange.channels.of(names)
    done = {channel: window.of(channel, reset) for channel in channels}
    measured = statistics.by_tensor(_messages(exchange, done, steps))
    exposed, exchanging = _seconds(done, steps)
    return statistics.report(
        {
            called: statistics.Size(tensor.num_bytes, tensor.size)
            for called, tensor in tensors.items()
        },
        {called: measured[tensor.name] for called, tensor in tensors.items()},
        exposed_seconds=exposed,
        exchange_seconds=exchanging,
    )


def _messages(
    exchange: Exchange, done: Mapping[AnyChannel, Mapping[str, float]], steps: int
) -> Iterator[tuple[dict[str, float], Iterable[tuple[str, float]]]]:
    """The measurements of each channel, and its tensors' shares of them."""
    for channel, fields in done.items():
        calls = fields["calls"]
        pushed, pulled = exchange.message_bytes(channel, fields)
        each = {field: fields[field] / calls if calls else 0.0 for field in _SECONDS}
        each.update(pushed_bytes=pushed, pulled_bytes=pulled)
        share = calls / steps if steps else 1.0
        yield {field: share * value for field, value in each.items()}, channel.shares()


def _seconds(done: Mapping[AnyChannel, Mapping[str, float]], steps: int) -> tuple[float, float]:
    """The average seconds of a step from its last and its first gradient to its last average."""
    spans = [channel.spans(fields["calls"]) for channel, fields in done.items()]
    kept_from = max((min(steps) for steps in spans if len(steps) == KEPT_SPANS), default=0)
    exposed, exchanging = [], []
    for step in {step for steps in spans for step in steps if step >= kept_from}:
        begins, ends = zip(*(steps[step] for steps in spans if step in steps))
        exposed.append(max(ends) - max(begins))
        exchanging.append(max(ends) - min(begins))
    if not exposed:
        return 0.0, 0.0
    calls = max(fields["calls"] for fields in done.values())
    share = calls / steps if steps else 1.0
    return share * sum(exposed) / len(exposed), share * sum(exchanging) / len(exchanging)
