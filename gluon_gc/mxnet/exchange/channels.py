"""The channels of an exchange: which chunks share a message, and which GPU compresses it."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import (
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Sequence,
    Union,
)

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from ...exchange import plan
from ...exchange.plan import Chunk, Tensor
from .channel import Channel
from .gradient import Gradient, Gradients
from .sparse import SparseChannel

AnyChannel = Union[Channel, SparseChannel]
_MESSAGES_PER_OWNER = 2  # if there are enough chunks
_assign = lru_cache(maxsize=64)(plan.assign)  # it takes 0.1 ms for 200 channels


class Channels:
    """The declared tensors by name, and their channels, in the order of declaration."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._channels: list[AnyChannel] = []

    def __iter__(self) -> Iterator[AnyChannel]:
        return iter(self._channels)

    def of(self, names: Collection[str]) -> list[AnyChannel]:
        return [channel for channel in self if not channel.tensors.isdisjoint(names)]

    def add(self, channels: Iterable[AnyChannel]) -> None:
        self._channels += channels

    def hide(self, names: Collection[str]) -> list[AnyChannel]:
        """Remove the channels of these tensors, and return them."""
        hidden = dict.fromkeys(self.of(names))
        self._channels = [channel for channel in self if channel not in hidden]
        return list(hidden)

    def require_new(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            if tensor.name in self.tensors:
                raise ValueError(f"tensor '{tensor.name}' is declared already")

    def gradient(
        self, name: str, arrays: Sequence[NDArray], targets: Sequence[NDArray]
    ) -> Gradient:
        """The gradient of a tensor for a `Job`. `targets` receive the sum."""
        tensor = self.tensors[name]
        check_fits(arrays, tensor)
        return Gradient(arrays, targets, "row_sparse" if tensor.rows else "default")

    def nonfinite(self, names: Collection[str]) -> int:
        """How many chunk sums had a NaN or an infinity, on any worker; waits for all exchanges."""
        return sum(channel.nonfinite() for channel in self.of(names))

    def set_epoch(self, names: Collection[str], epoch: int) -> None:
        for channel in self.of(names):
            if channel.coder is not None:
                channel.coder.set_epoch(epoch)


def check_fits(arrays: Sequence[NDArray], tensor: Tensor) -> None:
    for array in arrays:
        size, dtype = math.prod(array.shape), np.dtype(array.dtype).name
        if (size, dtype) != (tensor.size, tensor.dtype):
            raise ValueError(
                f"{tensor.called} must have {tensor.size} elements of {tensor.dtype}, as when it "
                f"was declared; got shape {array.shape}, {size} elements of {dtype}"
            )


def in_messages(
    chunks: Sequence[Chunk], owners: int = 1, share_messages: bool = True
) -> list[list[Chunk]]:
    """Group chunks into messages, which are in the order of their first chunks.

    Chunks with the same compression share messages of up to `plan.SMALL_BYTES`. A row-sparse chunk
    has a message of its own. So has a plain chunk, which already fuses several tensors. If several
    `owners` aggregate messages, there are enough messages for all of them. If not `share_messages`,
    only chunks of one tensor share a message.
    """
    most = plan.SMALL_BYTES
    if owners > 1:
        most = min(
            most, sum(chunk.message_bytes for chunk in chunks) // (_MESSAGES_PER_OWNER * owners)
        )

    def kind(chunk: Chunk) -> Hashable | None:
        if chunk.params is None or chunk.rows:
            return None
        return chunk.params, chunk.dtype, None if share_messages else chunk.slices[0].tensor

    return plan.batches(chunks, lambda chunk: chunk.message_bytes, kind, most)


def gpus_of(
    channels: Sequence[Channel], gradients: Gradients, able: Callable[[Channel], bool]
) -> list[mx.Context | None]:
    """The GPU that compresses each channel's gradients; None: the CPU does.

    GPUs compress only if all gradients that they can compress have copies on the same GPUs. Each
    GPU then gets an even share of the elements, the same in every step with these channels. `able`
    tells whether a GPU can compress a channel; it is called only if there are gradients on GPUs.
    """
    if not any(gradient.from_gpus for gradient in gradients.values()):
        return [None] * len(channels)
    compressible = [channel for channel in channels if able(channel)]
    names = {name for channel in compressible for name in channel.tensors if name in gradients}
    contexts = {gradients[name].gpus for name in names}
    (gpus,) = contexts if len(contexts) == 1 else ((),)
    if not gpus:
        return [None] * len(channels)
    shares = _assign(tuple(channel.size for channel in compressible), len(gpus))
    number_of = dict(zip(compressible, shares))
    return [gpus[number_of[c]] if c in number_of else None for c in channels]
