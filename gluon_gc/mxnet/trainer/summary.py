"""A summary of a trainer's exchange in words, for its log line and `repr`."""

from __future__ import annotations

from typing import Collection, Dict, Hashable, List

from mxnet.gluon import Trainer

from ...compression import CompressionParams
from ..exchange.channel import Channel
from ..exchange.exchange import Exchange
from .averaging import Averaging


def of_trainer(trainer: Trainer, averaging: Averaging, given: CompressionParams) -> List[str]:
    """Lines about how a trainer's tensors travel; `given` is the trainer's own compression."""
    exchange, names, noun = averaging.exchange, averaging.names(), averaging.noun
    head = (
        f"{type(trainer).__name__}: {type(trainer.optimizer).__name__}, {exchange.type}, "
        f"worker {exchange.rank} of {exchange.num_workers}"
    )
    if averaging.described is not None:
        head = f"{head}, algorithm {averaging.described}"
    if not names:
        return [head, f"no {noun}s yet: {of_params(given)}"]
    return [head, *_of_tensors(exchange, names, noun)]


def _of_tensors(exchange: Exchange, names: Collection[str], noun: str) -> List[str]:
    """One line for all tensors with the same compression."""
    by_compression: Dict[Hashable, List[Channel]] = {}
    for channel in exchange.channels.of(names):
        by_compression.setdefault(channel.params or channel.dtype, []).append(channel)
    return [_line(channels, noun) for channels in by_compression.values()]


def _line(channels: List[Channel], noun: str) -> str:
    params, dtype = channels[0].params, channels[0].dtype
    tensors = {name for channel in channels for name in channel.tensors}
    size = sum(channel.size for channel in channels)
    chunks = sum(len(channel.chunks) for channel in channels)
    counts = (
        f"{_counted(len(tensors), noun)} of {_counted(size, 'element')}, in "
        f"{_counted(chunks, 'chunk')} and {_counted(len(channels), 'message')}"
    )
    return f"{counts}: {of_params(params) if params else f'uncompressed, {dtype}'}"


def of_params(params: CompressionParams) -> str:
    """The compression_params, and the momentum that is applied before the compressor."""
    momentum = f", momentum {params.mu}" if params.mu is not None else ""
    return f"{params.given() or 'uncompressed'}{momentum}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
