"""What travels compressed how, in words."""

from __future__ import annotations

from typing import Collection, Dict, Hashable, List

from ..compression import CompressionParams
from .channel import Channel
from .exchange import CompressingKVStore


def of_store(store: CompressingKVStore) -> str:
    """Which backend it is, and which of its workers this is."""
    return f"{store.type}, worker {store.rank} of {store.num_workers}"


def of_tensors(store: CompressingKVStore, names: Collection[str], noun: str) -> List[str]:
    """A line for those of these tensors, called by a noun, that travel in one way."""
    by_compression: Dict[Hashable, List[Channel]] = {}
    for channel in store.channels_of(names):
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
    """As compression_params, and which momentum comes before the compressor."""
    momentum = f", momentum {params.mu}" if params.mu is not None else ""
    return f"{params.given() or 'uncompressed'}{momentum}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
