"""Cuts tensors into the chunks that travel, and spreads them over servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from .agreement import Facts
from .compression import CompressionParams
from .kernels import frame_words, rows_head_bytes

ON_NONFINITE = ("raise", "skip", "propagate")
SMALL_BYTES = 64 * 1024  # what is smaller travels with others, up to this
_LARGE_BYTES = 128 * 1024  # what is compressed and larger is cut finer


def require_on_nonfinite(value: Any) -> None:
    """Raise ValueError unless it is a known action for a NaN or an infinity."""
    if value not in ON_NONFINITE:
        raise ValueError(f"on_nonfinite must be one of {ON_NONFINITE}, got {value!r}")


@dataclass(frozen=True)
class Tensor:
    """A gradient, or another vector, as the plan sees it.

    Parameters
    ----------
    name : str
    size : int
        Number of elements.
    dtype : str
    params : CompressionParams
    index : int
        The number of the parameter in its trainer. It is added to the compressor's seed.
    called : str
        The tensor's name in errors.
    on_nonfinite : str
        What a NaN or an infinity of a floating tensor does: "raise" an error, be counted ("skip"),
        or "propagate".
    rows : int
        The number of rows of a row-sparse tensor, which sends only some of them; 0: dense.
    """

    name: str
    size: int
    dtype: str
    params: CompressionParams
    index: int = 0
    called: str = ""
    on_nonfinite: str = "propagate"
    rows: int = 0

    @property
    def num_bytes(self) -> int:
        return self.size * np.dtype(self.dtype).itemsize

    @property
    def floating(self) -> bool:
        return self.dtype.startswith("float")

    @property
    def checked(self) -> bool:
        """Whether uncompressed values are searched for NaNs and infinities."""
        return self.floating and self.on_nonfinite != "propagate"

    @property
    def refused(self) -> str:
        """The tensor's name in the error about a NaN or an infinity; "": there is no such error."""
        return self.called if self.on_nonfinite == "raise" else ""


@dataclass(frozen=True)
class Slice:
    """Elements `begin` to `end` of a tensor."""

    tensor: str
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class Chunk:
    """A part of a tensor that is compressed and sent as one.

    Parameters
    ----------
    slices : tuple of Slice
        One slice if compressed; a plain chunk may fuse several tensors.
    dtype : str
        The dtype of the arithmetic (compressed) or on the wire (plain).
    params : CompressionParams, optional
        None: the values are summed uncompressed.
    message_bytes : int
        The bytes that one worker sends in one direction, at most.
    rows : int
        The number of rows of a row-sparse tensor, which sends only some of them; 0: dense.
    """

    slices: Tuple[Slice, ...]
    dtype: str
    params: Optional[CompressionParams]
    message_bytes: int
    rows: int = 0

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.slices)

    @property
    def aggregated(self) -> bool:
        """Whether an aggregator decodes the payloads and compresses their sum."""
        return self._has_payloads and self.params.exchange == "two_way"

    @property
    def gathered(self) -> bool:
        """Whether every worker gets all payloads."""
        return self._has_payloads and self.params.exchange == "gather"

    @property
    def _has_payloads(self) -> bool:
        """Whether payloads must be decoded before they are summed."""
        if self.params is None:
            return False
        return self.rows > 0 or not self.params.compressor.traits.summable


def _pieces(tensor: Tensor, partition_bytes: int) -> Iterator[Slice]:
    """Slices of even sizes, because the other chunks wait for the largest message."""
    most = max(1, partition_bytes // np.dtype(tensor.dtype).itemsize)
    pieces = max(1, -(-tensor.size // most))
    step = max(1, -(-tensor.size // pieces))
    for begin in range(0, tensor.size, step):
        yield Slice(tensor.name, begin, min(begin + step, tensor.size))


def working_dtype(dtype: str) -> str:
    """The dtype that a compressor computes in: float64 for float64, else float32."""
    return "float64" if dtype == "float64" else "float32"


def _wire_dtype(tensor: Tensor) -> str:
    """The dtype in which a plain sum travels; the server sums floats only."""
    if not tensor.floating:
        return "float64"
    return "float16" if tensor.params.fp16 else tensor.dtype


def _compressed(tensor: Tensor, partition_bytes: int) -> List[Chunk]:
    """Chunks with small messages, unless smaller chunks take more bytes in all."""
    dtype = working_dtype(tensor.dtype)
    if tensor.rows:
        payload = rows_head_bytes(tensor.rows)
        payload += tensor.params.codec(tensor.size, dtype).payload_bytes
        whole = Slice(tensor.name, 0, tensor.size)
        return [Chunk((whole,), dtype, tensor.params, 4 * frame_words(payload), tensor.rows)]
    chunks = _evenly(tensor, dtype, partition_bytes)
    total = sum(chunk.message_bytes for chunk in chunks)
    if total > _LARGE_BYTES * len(chunks):
        finer = _evenly(tensor, dtype, max(1, tensor.num_bytes * _LARGE_BYTES // total))
        if sum(chunk.message_bytes for chunk in finer) < 1.01 * total:
            return finer
    return chunks


def _evenly(tensor: Tensor, dtype: str, partition_bytes: int) -> List[Chunk]:
    pieces = list(_pieces(tensor, partition_bytes))
    message_bytes = {}
    for size in {piece.size for piece in pieces}:  # two at most
        payload = tensor.params.codec(size, dtype).payload_bytes
        summable = tensor.params.compressor.traits.summable
        message_bytes[size] = payload if summable else 4 * frame_words(payload)
    return [Chunk((piece,), dtype, tensor.params, message_bytes[piece.size]) for piece in pieces]


def _fused(tensors: Sequence[Tensor], dtype: str, partition_bytes: int) -> List[Chunk]:
    itemsize = np.dtype(dtype).itemsize
    most = min(partition_bytes, SMALL_BYTES) // itemsize
    fused: List[List[Slice]] = []
    small: List[Slice] = []
    total = most
    for tensor in tensors:
        for piece in _pieces(tensor, partition_bytes):
            if piece.size > most:
                fused.append([piece])
                continue
            if total + piece.size > most:
                small, total = [], 0
                fused.append(small)
            small.append(piece)
            total += piece.size
    return [
        Chunk(tuple(pieces), dtype, None, itemsize * sum(piece.size for piece in pieces))
        for pieces in fused
    ]


def cut(tensors: Sequence[Tensor], partition_bytes: int, min_compress_bytes: int) -> List[Chunk]:
    """Cut tensors into chunks of at most `partition_bytes` of values.

    A tensor with a compressor and at least `min_compress_bytes` is compressed chunk by chunk, one
    in rows as a whole; the others travel plain. Small plain tensors of one dtype are fused. Large
    ones are not, because all tensors of a message go to one server and wait for each other.
    """
    chunks: List[Chunk] = []
    plain: Dict[str, List[Tensor]] = {}
    for tensor in tensors:
        if travels_compressed(tensor, min_compress_bytes):
            chunks.extend(_compressed(tensor, partition_bytes))
        else:
            plain.setdefault(_wire_dtype(tensor), []).append(tensor)
    for dtype, group in plain.items():
        chunks.extend(_fused(group, dtype, partition_bytes))
    return chunks


def travels_compressed(tensor: Tensor, min_compress_bytes: int) -> bool:
    """Whether a tensor is compressed: a float one, with a compressor, and large enough."""
    return (
        tensor.params.compressor is not None
        and tensor.floating
        and tensor.num_bytes >= min_compress_bytes
    )


def applies_momentum(tensor: Tensor, min_compress_bytes: int) -> bool:
    """Whether a tensor's compressor applies the momentum, so that nothing is left to apply."""
    return tensor.params.mu is not None and travels_compressed(tensor, min_compress_bytes)


def params_for_dimensions(params: CompressionParams, dimensions: int) -> CompressionParams:
    """How a gradient with this number of dimensions is compressed.

    A compressor that accumulates leaves vectors uncompressed, as the reference implementation of
    DGC does.
    """
    accumulates = params.compressor is not None and params.compressor.traits.accumulates
    return CompressionParams(fp16=params.fp16) if accumulates and dimensions == 1 else params


def facts(tensors: Sequence[Tensor]) -> Facts:
    """Facts that must be the same on all workers before they exchange these tensors."""
    return [
        (
            tensor.called or f"tensor '{tensor.name}'",
            {
                "name": tensor.name,
                "elements": tensor.size,
                "dtype": tensor.dtype,
                "rows": tensor.rows,
                "on_nonfinite": tensor.on_nonfinite,
                **tensor.params.identity(),
            },
        )
        for tensor in tensors
    ]


def spread(loads: Sequence[int], num_servers: int) -> List[int]:
    """The server of each load, so that the servers' sums are even.

    The largest load comes first. Each goes to the server with the smallest sum so far.
    """
    carried = [0] * num_servers
    servers = [0] * len(loads)
    for index in sorted(range(len(loads)), key=lambda i: (-loads[i], i)):
        server = carried.index(min(carried))
        servers[index] = server
        carried[server] += loads[index]
    return servers
