"""Packing: a round's arrays as a payload, with this worker's residuals, and payloads as arrays."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Any, Dict, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from .. import env, kernels
from ..compression import stream
from ..exchange import plan
from ..exchange.coder import Coder
from ..exchange.plan import Slice, Tensor

Arrays = Dict[str, np.ndarray]
"""Flat arrays by the name of their parameter."""


class Packed(NamedTuple):
    """The payloads of a round's chunks, and the name of a parameter with a NaN, or ""."""

    payloads: list[memoryview]
    nonfinite: str


class _Chunk(NamedTuple):
    piece: Slice
    dtype: str  # of the compressor's arithmetic, or of the values that are sent
    coder: Coder | None  # None if it is sent uncompressed


class Packing:
    """Packs and unpacks the arrays of one kind of round.

    All workers cut the tensors into the same chunks. The residuals are this worker's.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = {tensor.name: tensor for tensor in tensors}
        entropy = os.urandom(16)  # decoding needs no random numbers
        most, least = env.get("BYTEPS_PARTITION_BYTES"), env.get("BYTEPS_MIN_COMPRESS_BYTES")
        self._chunks: list[_Chunk] = []
        for tensor in tensors:
            for chunk in plan.cut([tensor], most, least):
                (piece,), coder = chunk.slices, None
                if chunk.params is not None:
                    start = stream.unseeded(entropy, tensor.index, piece.begin)
                    coder = Coder(chunk.params, chunk.size, chunk.dtype, tuple(start.tolist()))
                self._chunks.append(_Chunk(piece, chunk.dtype, coder))
        plan.warn_if_uncompressed(list(tensors), least)

    def set_epoch(self, epoch: int) -> None:
        """See `Coder.set_epoch`."""
        for chunk in self._coded():
            chunk.coder.set_epoch(epoch)

    def take_back(self) -> None:
        """Return the residuals to those before the last `pack`."""
        for chunk in self._coded():
            chunk.coder.take_back()

    def residuals(self) -> Arrays:
        """The sum of what was packed and is not in a payload yet, for tensors with feedback."""
        found: Arrays = {}
        for chunk in self._coded():
            residual = chunk.coder.state().get("residual")
            if residual is not None:
                piece = chunk.piece
                whole = found.setdefault(piece.tensor, self._zeros(piece.tensor))
                whole[piece.begin : piece.end] = residual
        return found

    def shares(self) -> Iterator[tuple[str, float]]:
        """For each chunk its parameter, and its share of the elements."""
        total = sum(chunk.piece.size for chunk in self._chunks)
        return ((chunk.piece.tensor, chunk.piece.size / total) for chunk in self._chunks)

    def pack(self, values: Mapping[str, np.ndarray]) -> Packed:
        """Compress flat arrays, one of each tensor, in its dtype."""
        payloads: dict[_Chunk, np.ndarray] = {}
        nonfinite, groups = [], defaultdict(list)
        for chunk in self._chunks:
            if chunk.coder is None:
                own = values[chunk.piece.tensor][chunk.piece.begin : chunk.piece.end]
                payloads[chunk] = own.astype(chunk.dtype).view(np.uint8)
                if not np.isfinite(payloads[chunk].view(chunk.dtype)).all():
                    nonfinite.append(chunk.piece.tensor)
            else:
                groups[self._tensors[chunk.piece.tensor].params, chunk.dtype].append(chunk)
        for group in groups.values():
            codecs = [chunk.coder.codec for chunk in group]
            buffers = [np.empty(codec.payload_bytes, np.uint8) for codec in codecs]
            batch = kernels.Batch("compress", codecs, payload=buffers)
            addresses = [_address(values[c.piece.tensor], c.piece.begin) for c in group]
            positions = [chunk.coder.take_draws() for chunk in group]
            batch(addresses, positions, states=[chunk.coder.turn(False) for chunk in group])
            for chunk, codec, buffer, status in zip(group, codecs, buffers, batch.statuses):
                payloads[chunk] = buffer[: codec.used(buffer)]
                if not status.finite:
                    nonfinite.append(chunk.piece.tensor)
        return Packed([payloads[chunk].data for chunk in self._chunks], (nonfinite or [""])[0])

    def unpack(self, lengths: Sequence[int], body: memoryview) -> Iterator[tuple[Slice, Any]]:
        """Return the slices of a payload of any worker, and their values.

        ValueError if a payload does not fit, or has a NaN or an infinity.
        """
        if len(lengths) != len(self._chunks) or sum(lengths) != len(body):
            raise ValueError("it has other chunks")
        end = 0
        for chunk, length in zip(self._chunks, lengths):
            begin, end = end, end + length
            values = _decoded(chunk, np.frombuffer(body[begin:end], np.uint8))
            if not np.isfinite(values).all():
                raise ValueError(f"parameter {chunk.piece.tensor} has a NaN or an infinity")
            yield chunk.piece, values

    def mean(self, weighted: Sequence[tuple[float, Sequence[int], memoryview]]) -> Arrays:
        """The weighted mean of payloads: of the weight, the lengths and the body of each.

        They are added in this order, so all workers get the same bits.
        """
        total = sum(weight for weight, _, _ in weighted)
        sums = {name: self._zeros(name) for name in self._tensors}
        for number, (weight, lengths, body) in enumerate(weighted):
            share = weight / total
            for piece, values in self.unpack(lengths, body):
                part = sums[piece.tensor][piece.begin : piece.end]
                values = values.astype(part.dtype, copy=False)  # float16 would round each product
                if number:
                    part += share * values
                else:
                    np.multiply(values, share, out=part)
        return sums

    def _zeros(self, name: str) -> np.ndarray:
        return np.zeros(self._tensors[name].size, self._tensors[name].dtype)

    def _coded(self) -> Iterator[_Chunk]:
        return (chunk for chunk in self._chunks if chunk.coder is not None)


def _decoded(chunk: _Chunk, payload: np.ndarray) -> np.ndarray:
    """The values of a payload. ValueError if it does not fit."""
    if chunk.coder is None:
        if len(payload) != chunk.piece.size * np.dtype(chunk.dtype).itemsize:
            raise ValueError(f"parameter {chunk.piece.tensor} has another size")
        return payload.view(chunk.dtype)
    codec = chunk.coder.codec
    row = np.zeros(max(codec.payload_bytes, len(payload)), np.uint8)
    row[: len(payload)] = payload
    if codec.used(row) != len(payload):
        raise ValueError(f"the payload of parameter {chunk.piece.tensor} has another size")
    return codec.decompress(row)[0]


def _address(values: np.ndarray, begin: int) -> int:
    return values.ctypes.data + begin * values.itemsize
