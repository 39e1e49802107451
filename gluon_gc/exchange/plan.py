"""Plans the exchange of gradients: cuts them into chunks, and assigns messages to servers.

A chunk is summed by one server, or by the worker that does its work. A message carries one chunk,
or several small ones, and some bytes besides their payloads.

    gradient                         chunks
    compressed, large                several, nearly equal
    compressed, not large            one, or several: see below
    compressed, row-sparse           one
    uncompressed, large              several, nearly equal
    uncompressed, up to SMALL_BYTES  one for several tensors, like a bucket of DDP
    uncompressed, neither            one

A gradient is large if it is larger than the partition size. If the messages of a dense, compressed
gradient are larger than 96 KiB on average, it is cut finer, unless that takes 1 % more bytes.

Each worker computes the plan itself. The workers first compare the tensors (`facts`) and settings
such as BYTEPS_PARTITION_BYTES, so all plans are equal.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import (
    Any,
    Callable,
    Hashable,
    Iterable,
    Iterator,
    Sequence,
    TypeVar,
)

import numpy as np

from ..compression import CompressionParams
from ..kernels import frame_words, rows_head_bytes
from ..log import warn_once
from .agreement import Facts

ON_NONFINITE = ("raise", "skip", "propagate")
SMALL_BYTES = 64 * 1024
"""The maximum size of a chunk of several small tensors, and of a message of several chunks."""
T = TypeVar("T")

_MESSAGE_BYTES = 96 * 1024  # if the messages of a tensor are larger on average, it is cut finer


def require_on_nonfinite(value: Any) -> None:
    """Raise ValueError unless `value` is one of `ON_NONFINITE`."""
    if value not in ON_NONFINITE:
        raise ValueError(f"on_nonfinite must be one of {ON_NONFINITE}, got {value!r}")


@dataclass(frozen=True)
class Tensor:
    """Describes a gradient, or another array that the workers average. It holds no values."""

    name: str  # unique, and the same on all workers
    size: int  # number of elements
    dtype: str
    params: CompressionParams
    index: int = 0  # the parameter's position, added to the seed: each has its own random stream
    called: str = ""  # the name in error messages, needed if on_nonfinite is "raise"
    on_nonfinite: str = "propagate"  # or "raise", or "skip": the caller then skips the step
    rows: int = 0  # of a row-sparse tensor; only rows with a gradient are sent. 0: dense
    offset: int = 0  # of a shard: its first element in the whole tensor, for random streams

    @property
    def num_bytes(self) -> int:
        return self.size * np.dtype(self.dtype).itemsize

    @property
    def floating(self) -> bool:
        return self.dtype.startswith("float")

    @property
    def checked(self) -> bool:
        """Whether an uncompressed tensor is checked for NaNs and infinities."""
        return self.floating and self.on_nonfinite != "propagate"

    @property
    def refused(self) -> str:
        """The tensor's name in the error that a NaN or infinity raises; "" if it raises none."""
        return self.called if self.on_nonfinite == "raise" else ""


@dataclass(frozen=True)
class Slice:
    """The elements `begin`, ..., `end` - 1 of the flattened tensor with the name `tensor`."""

    tensor: str
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class Chunk:
    """The unit that is summed: a slice of one tensor, or several small uncompressed tensors."""

    slices: tuple[Slice, ...]  # one, or of several tensors if uncompressed
    dtype: str  # of the compressor's arithmetic, or else of the values that are sent
    params: CompressionParams | None  # None if the values are sent and summed uncompressed
    # The most bytes that a worker sends to a parameter server for this chunk in a step: the payload
    # and, unless the server sums payloads as they are, its framing.
    message_bytes: int
    rows: int = 0  # of a row-sparse tensor; 0: dense

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.slices)

    @property
    def aggregated(self) -> bool:
        """Whether a server or worker sums all workers' payloads and compresses the sum again."""
        return self._decoded_for_sum and self.params.exchange == "two_way"

    @property
    def gathered(self) -> bool:
        """Whether every worker receives and sums all payloads, as those of row-sparse chunks."""
        return self._decoded_for_sum and self.params.exchange == "gather"

    @property
    def _decoded_for_sum(self) -> bool:
        """Whether payloads must be decoded before they can be summed.

        Payloads of a dense chunk with a summable compressor, such as randomk, are arrays of values.
        """
        if self.params is None:
            return False
        return self.rows > 0 or not self.params.compressor.traits.summable


def _slices(tensor: Tensor, partition_bytes: int) -> Iterator[Slice]:
    """Cut a tensor into slices of nearly equal size, each of at most `partition_bytes`.

    The largest message decides when all have arrived, so no slice should be larger than the others.
    """
    max_elements = max(1, partition_bytes // np.dtype(tensor.dtype).itemsize)
    count = max(1, -(-tensor.size // max_elements))
    length = max(1, -(-tensor.size // count))
    for begin in range(0, tensor.size, length):
        yield Slice(tensor.name, begin, min(begin + length, tensor.size))


def working_dtype(dtype: str) -> str:
    """The dtype of a compressor's arithmetic: float64 for float64, float32 for all other dtypes."""
    return "float64" if dtype == "float64" else "float32"


def _wire_dtype(tensor: Tensor) -> str:
    """The dtype in which an uncompressed tensor is sent and summed.

    MXNet's parameter server sums only floats. integers.py makes the sums of integers exact.
    """
    if not tensor.floating:
        return "float64"
    return "float16" if tensor.params.fp16 else tensor.dtype


def _compressed_chunks(tensor: Tensor, partition_bytes: int) -> list[Chunk]:
    """The chunks of a compressed tensor.

    A server sends the sum back only after it has received a whole message, so with smaller messages
    it begins earlier.
    """
    dtype = working_dtype(tensor.dtype)
    if tensor.rows:
        payload = rows_head_bytes(tensor.rows)
        payload += tensor.params.codec(tensor.size, dtype).payload_bytes
        whole = Slice(tensor.name, 0, tensor.size)
        return [Chunk((whole,), dtype, tensor.params, _framed_bytes(payload), tensor.rows)]
    chunks = _equal_chunks(tensor, dtype, partition_bytes)
    total = sum(chunk.message_bytes for chunk in chunks)
    if total > _MESSAGE_BYTES * len(chunks):
        finer = _equal_chunks(tensor, dtype, max(1, tensor.num_bytes * _MESSAGE_BYTES // total))
        if sum(chunk.message_bytes for chunk in finer) < 1.01 * total:
            return finer
    return chunks


def _framed_bytes(payload_bytes: int) -> int:
    """The bytes of a payload after framing (kernels/framing.py)."""
    return 4 * frame_words(payload_bytes)


def _equal_chunks(tensor: Tensor, dtype: str, partition_bytes: int) -> list[Chunk]:
    slices = list(_slices(tensor, partition_bytes))
    message_bytes = {}
    for size in {piece.size for piece in slices}:  # at most two sizes: the last may be shorter
        payload = tensor.params.codec(size, dtype).payload_bytes
        summable = tensor.params.compressor.traits.summable
        message_bytes[size] = payload if summable else _framed_bytes(payload)
    return [Chunk((piece,), dtype, tensor.params, message_bytes[piece.size]) for piece in slices]


def _uncompressed_chunks(
    tensors: Sequence[Tensor], dtype: str, partition_bytes: int
) -> list[Chunk]:
    """The chunks of uncompressed tensors that are sent in the same dtype.

    Small slices share a chunk of at most `SMALL_BYTES`, or `partition_bytes` if that is less. If a
    tensor shrinks on the wire, its neighbouring slices may share one: they become one slice.
    """
    itemsize = np.dtype(dtype).itemsize
    max_elements = min(partition_bytes, SMALL_BYTES) // itemsize
    slices = [piece for tensor in tensors for piece in _slices(tensor, partition_bytes)]
    groups = batches(
        slices,
        lambda piece: piece.size,
        lambda piece: "small" if piece.size <= max_elements else None,
        most=max_elements,
    )
    return [
        Chunk(tuple(_joined(group)), dtype, None, itemsize * sum(piece.size for piece in group))
        for group in groups
    ]


def _joined(slices: Sequence[Slice]) -> Iterator[Slice]:
    """Join neighbouring slices of one tensor."""
    for name, pieces in itertools.groupby(slices, lambda piece: piece.tensor):
        first, *others = pieces
        yield Slice(name, first.begin, others[-1].end if others else first.end)


def batches(
    items: Iterable[T],
    size: Callable[[T], float],
    kind: Callable[[T], Hashable | None] = lambda item: "",
    most: float = math.inf,
    enough: float = math.inf,
) -> list[list[T]]:
    """Group items of one kind into batches, which are in the order of their first items.

    A batch has a total size of at most `most`, and gets no more items when it has `enough`. An item
    of kind None has a batch of its own.
    """
    found: list[list[T]] = []
    growing: dict[Hashable, tuple[list[T], float]] = {}
    for item in items:
        key, added = kind(item), size(item)
        batch, total = growing.get(key, ([], 0))
        if not batch or total >= enough or total + added > most:
            batch, total = [], 0
            found.append(batch)
        batch.append(item)
        if key is not None:
            growing[key] = batch, total + added
    return found


def cut(tensors: Sequence[Tensor], partition_bytes: int, min_compress_bytes: int) -> list[Chunk]:
    """Cut tensors into chunks: compressed ones in the order of the tensors, then uncompressed ones.

    Uncompressed tensors of one dtype, also on the wire, share chunks, up to `SMALL_BYTES`. Larger
    ones do not: a chunk is summed by one server, and none of its tensors is ready before all of it
    has been summed. Uncompressed row-sparse tensors are exchanged in another way. Row-sparse
    tensors are not cut.

    The sizes are BYTEPS_PARTITION_BYTES and BYTEPS_MIN_COMPRESS_BYTES, before compression.
    """
    chunks: list[Chunk] = []
    uncompressed: dict[tuple[str, str], list[Tensor]] = {}
    for tensor in tensors:
        if travels_compressed(tensor, min_compress_bytes):
            chunks.extend(_compressed_chunks(tensor, partition_bytes))
        else:
            uncompressed.setdefault((_wire_dtype(tensor), tensor.dtype), []).append(tensor)
    for (dtype, _), group in uncompressed.items():
        chunks.extend(_uncompressed_chunks(group, dtype, partition_bytes))
    return chunks


def travels_compressed(tensor: Tensor, min_compress_bytes: int) -> bool:
    """Whether a tensor is compressed: it has a compressor, a float dtype, and enough bytes."""
    return (
        tensor.params.compressor is not None
        and tensor.floating
        and tensor.num_bytes >= min_compress_bytes
    )


def warn_if_uncompressed(tensors: Sequence[Tensor], min_compress_bytes: int) -> None:
    """Warn once if tensors have a compressor and elements, but none of them is compressed."""
    named = [tensor for tensor in tensors if tensor.params.compressor and tensor.num_bytes]
    if not named or any(travels_compressed(tensor, min_compress_bytes) for tensor in named):
        return
    sizes = [tensor.num_bytes for tensor in named if tensor.floating]
    warn_once(
        "compression_params name a compressor, but nothing is compressed: %s",
        f"the largest tensor has {max(sizes)} bytes, and BYTEPS_MIN_COMPRESS_BYTES is "
        f"{min_compress_bytes}"
        if sizes
        else f"tensors of dtype {named[0].dtype} are never compressed",
    )


def applies_momentum(tensor: Tensor, min_compress_bytes: int) -> bool:
    """Whether the compressor applies momentum to a tensor, so that the optimizer must not."""
    return tensor.params.mu is not None and travels_compressed(tensor, min_compress_bytes)


def params_for_dimensions(params: CompressionParams, dimensions: int) -> CompressionParams:
    """The params for a gradient with this number of dimensions.

    As in the reference implementation of DGC, vectors such as biases are sent uncompressed if the
    compressor accumulates unsent elements.
    """
    accumulates = params.compressor is not None and params.compressor.traits.accumulates
    return CompressionParams(fp16=params.fp16) if accumulates and dimensions == 1 else params


def facts(tensors: Sequence[Tensor]) -> Facts:
    """The facts about tensors that must be the same on all workers before they are exchanged."""
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


def assign(loads: Sequence[int], num_servers: int) -> list[int]:
    """Assign loads to servers so that the servers' totals are nearly equal.

    The largest load is assigned first. Each load goes to the server with the smallest total so far.
    A load is the bytes of a message, or another measure of the work that it causes.
    """
    totals = [0] * num_servers
    servers = [0] * len(loads)
    for index in sorted(range(len(loads)), key=lambda i: (-loads[i], i)):
        server = totals.index(min(totals))
        servers[index] = server
        totals[server] += loads[index]
    return servers
