"""Coder: the codec of one compressed chunk, with its residual, momentum and random stream."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch
import torch.distributed as dist

from .. import kernels
from ..compression import CompressionParams
from ..compression import stream as streams
from ..plan import Chunk
from ..random_streams import StreamStarts
from . import gpu

_Before = Tuple[int, int]
"""The number of a copy of the state, and the draws from the random stream at that time."""


class Coder:
    """The codec of n elements, with its residual, momentum and random stream.

    Parameters
    ----------
    params : CompressionParams
        It has a compressor.
    n : int
        The number of elements.
    dtype : "float32" or "float64"
        The dtype of the arithmetic and of the state.
    start : stream.State, optional
        The start of the random stream; None if the compressor draws no random numbers.

    Attributes
    ----------
    codec : Codec
    device : torch.device
        The device that compresses.
    """

    device = gpu.CPU

    def __init__(
        self, params: CompressionParams, n: int, dtype: str, start: Optional[streams.State]
    ) -> None:
        self._params, self._n, self._dtype = params, n, dtype
        self._stream = streams.Stream(start)
        self._epoch: Optional[int] = None
        self.set_epoch(None)
        self._copies: List[Any] = []  # of the state; others than the current one are earlier states
        self._references: List[kernels.StateReference] = []  # to the copies
        self._has_foreign_memory = False
        self._now = self._add_copy()
        self._before: Optional[_Before] = None  # `take_back` returns there
        self._last: Optional[_Before] = None  # `take_back_last` returns there

    def set_epoch(self, epoch: Optional[int]) -> None:
        """Set the epoch, counted from 0; None: compress as after the warm-up."""
        self._epoch = epoch
        self.codec = self._params.codec(self._n, self._dtype, epoch)

    def set_momentum(self, mu: float) -> None:
        """Set the coefficient of momentum, if the coder applies any."""
        before = self._params.mu
        if before is None or before == mu:
            return
        self._params = replace(self._params, mu=mu)
        self._set_options(self._params.options(self._epoch))
        if self._momentum_has_mu:
            state = self._in_host_memory(self._now)
            state.momentum[:] *= mu / before
            self._write(state)

    def _set_options(self, options: Mapping[str, Any]) -> None:
        self.codec.set_options(options)

    @property
    def _momentum_has_mu(self) -> bool:
        """Whether the momentum array is multiplied by mu already: dgc's form of Nesterov's."""
        return self.codec.traits.accumulates and self._params.nesterov

    def replace_momentum(self, values: np.ndarray) -> None:
        """Continue with these values, shape (n,), as the momentum."""
        state = self._in_host_memory(self._now)
        state.momentum[:] = values * (self._params.mu if self._momentum_has_mu else 1)
        self._write(state)

    @property
    def has_fixed_length(self) -> bool:
        """Whether all payloads have the same length."""
        return self.codec.length_at is None or self._params.compressor.full

    def take_draws(self) -> kernels.Position:
        """Return the position of the next call in the random stream, and advance the stream."""
        *state, drawn = self._stream.take(self.codec.draws)
        return kernels.position(state, drawn)

    # Calls read one copy of the state and write another, so that they can be taken back

    def in_place(self) -> kernels.StateOfCall:
        """Return the state for a call that cannot be taken back."""
        return self._references[self._now].words, 0

    def turn(self, continues: bool) -> kernels.StateOfCall:
        """Return the state for a call that can be taken back.

        If it continues the last calls, `take_back` undoes them, too.
        """
        now, count = self._now, len(self._copies)
        self._last = now, self._stream.drawn
        if not continues or self._before is None:
            self._before = self._last
        if self._has_foreign_memory:
            return self.in_place()
        kept = self._before[0]
        free = (now + 1) % count
        if free == kept:
            free = (kept + 1) % count
        self._now = self._add_copy() if free in (now, kept) else free
        return self._references[self._now].words, self._references[now].pointer

    def take_back(self) -> None:
        """Return to the state before the last `turn` that did not continue another."""
        self._return_to(self._before)

    def take_back_last(self) -> None:
        """Return to the state before the last `turn`."""
        self._return_to(self._last)

    def _return_to(self, before: _Before) -> None:
        self._now, self._stream.drawn = before

    def _add_copy(self) -> int:
        """Allocate memory for a copy of the state, and return its number."""
        state = self.codec.state()
        self._copies.append(state)
        return self._refer_to(kernels.addresses(self.codec, state))

    def _refer_to(self, addresses: kernels.StateAddresses) -> int:
        self._references.append(kernels.StateReference(addresses))
        return len(self._references) - 1

    def _in_host_memory(self, number: int) -> kernels.State:
        """Return a copy of the state in the codec's own form, perhaps the copy itself."""
        return self._copies[number]

    def _write(self, state: kernels.State) -> None:
        """Replace the current copy, which `_in_host_memory` returned."""

    def use_memory(self, memory: torch.Tensor) -> None:
        """Let error feedback keep its only array in this tensor, shape (codec.memory[0],).

        `take_back` then returns the random stream only: the caller takes back the array.
        """
        self._has_foreign_memory = True
        (state,) = self._copies
        self._copies = [kernels.State(state.momentum, (memory.numpy(),))]
        addresses = kernels.addresses(self.codec, self._copies[0])
        self._references = [kernels.StateReference(addresses)]

    # Checkpoints

    def state(self, undone: bool = False) -> Dict[str, np.ndarray]:
        """Return the arrays for a checkpoint.

        They are "residual" and "momentum", shape (n,), and "stream", shape (2,).

        `undone`: as they would be after `take_back`.
        """
        before = self._before if undone else None
        number, drawn = before or (self._now, None)
        kept, state = self._in_host_memory(number), {}
        if self.codec.traits.draws:
            state["stream"] = self._stream.state(drawn)
        if self.codec.memory:
            state["residual"] = self.codec.residual(kept)
        if self.codec.momentum:
            state["momentum"] = kept.momentum.copy()
        return state

    def stream_state(self) -> np.ndarray:
        """Return the state of the random stream, shape (2,)."""
        return self._stream.state()

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from the result of `state`."""
        if self.codec.traits.draws:
            self._stream.load_state(state["stream"])
        kept = self._in_host_memory(self._now)
        if self.codec.memory:
            self.codec.restore(kept, np.ascontiguousarray(state["residual"]))
        if self.codec.momentum:
            kept.momentum[:] = state["momentum"]
        self._write(kept)


class GpuCoder(Coder):
    """A coder that compresses on a GPU. The residual and momentum are in GPU memory.

    Parameters
    ----------
    device : torch.device
        The GPU.
    params, n, dtype, start
        See `Coder`.

    Attributes
    ----------
    gpu_codec : Codec
        The codec for this GPU. `codec` is the same codec for the CPU.
    """

    def __init__(
        self,
        device: torch.device,
        params: CompressionParams,
        n: int,
        dtype: str,
        start: Optional[streams.State],
    ) -> None:
        self.device = device
        super().__init__(params, n, dtype, start)

    def set_epoch(self, epoch: Optional[int]) -> None:
        super().set_epoch(epoch)
        self.gpu_codec = self._params.codec(self._n, self._dtype, epoch, "cuda")

    def _set_options(self, options: Mapping[str, Any]) -> None:
        super()._set_options(options)
        self.gpu_codec.set_options(options)

    def _add_copy(self) -> int:
        state = self.codec.state()
        with gpu.queue(self.device):
            tensors = [
                None if array is None else torch.from_numpy(array).to(self.device, copy=True)
                for array in (state.momentum, *state.memory)
            ]
        self._copies.append(tensors)
        return self._refer_to(_gpu_addresses(tensors))

    def _in_host_memory(self, number: int) -> kernels.State:
        with gpu.queue(self.device):
            arrays = [None if t is None else t.cpu().numpy().copy() for t in self._copies[number]]
        return kernels.State(arrays[0], tuple(arrays[1:]))

    def _write(self, state: kernels.State) -> None:
        with gpu.queue(self.device):
            for tensor, array in zip(self._copies[self._now], (state.momentum, *state.memory)):
                if tensor is not None:
                    gpu.copy(torch.from_numpy(array), tensor)

    def use_memory(self, memory: torch.Tensor) -> None:
        self._has_foreign_memory = True
        ((momentum, _),) = self._copies
        self._copies = [[momentum, memory]]
        self._references = [kernels.StateReference(_gpu_addresses(self._copies[0]))]


def _gpu_addresses(tensors: Sequence[Optional[torch.Tensor]]) -> kernels.StateAddresses:
    momentum, *memory = (None if tensor is None else tensor.data_ptr() for tensor in tensors)
    return kernels.StateAddresses(momentum, (ctypes.c_void_p * 2)(*memory))


def coder_on(device: torch.device, chunk: Chunk, start: Optional[streams.State] = None) -> Coder:
    """Return the coder of a chunk with values on a device; `start` is that of `Coder`."""
    if gpu.has_kernels(device, chunk.params.compressor):
        return GpuCoder(device, chunk.params, chunk.size, chunk.dtype, start)
    return Coder(chunk.params, chunk.size, chunk.dtype, start)


class Coders:
    """Creates coders whose random streams are consistent on all workers of a group.

    Parameters
    ----------
    group : ProcessGroup
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group, self._starts = group, StreamStarts(self._of_root)

    def _of_root(self, own: bytes) -> bytes:
        words = [own]
        dist.broadcast_object_list(words, dist.get_global_rank(self._group, 0), group=self._group)
        return words[0]

    def draw(self, chunks: Iterable[Chunk]) -> None:
        """Share random bytes if one of these chunks needs them. All workers call this together."""
        self._starts.draw(chunks)

    def of_worker(
        self, chunk: Chunk, node: int, index: int, begin: int, device: torch.device
    ) -> Coder:
        """Return the coder of a worker, or of a machine, for a chunk with values on a device.

        `StreamStarts.start` explains the other parameters.
        """
        return coder_on(device, chunk, self._starts.start(chunk, node, index, begin))

    def of_aggregator(
        self, chunk: Chunk, index: int, begin: int, device: Optional[torch.device] = None
    ) -> Coder:
        """Return the coder with which a chunk's owner aggregates, on a GPU or in host memory."""
        start = self._starts.start(chunk, None, index, begin)
        arguments = chunk.params.aggregators, chunk.size, chunk.dtype, start
        return Coder(*arguments) if device is None else GpuCoder(device, *arguments)
