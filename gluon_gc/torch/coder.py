"""Coder: the codec of one compressed chunk, with its residual, momentum and random stream."""

from __future__ import annotations

import copy
import ctypes
from dataclasses import replace
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

import numpy as np
import torch
import torch.distributed as dist

from .. import kernels
from ..compression import CompressionParams
from ..compression import stream as streams
from ..plan import Chunk
from ..random_streams import StreamStarts
from . import gpu


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
    carried : kernels.State
        The residual and momentum, in the codec's own form.
    """

    device = gpu.CPU

    def __init__(
        self, params: CompressionParams, n: int, dtype: str, start: Optional[streams.State]
    ) -> None:
        self._params, self._n, self._dtype, self._start = params, n, dtype, start
        self._stream = streams.Stream(start)
        self._epoch: Optional[int] = None
        self.set_epoch(None)
        self.carried = self.codec.state()
        self._kept: Optional[Tuple[List[Any], streams.Stream]] = None  # copies

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
            self._scale_momentum(mu / before)

    def _set_options(self, options: Mapping[str, Any]) -> None:
        self.codec.set_options(options)

    def _scale_momentum(self, factor: float) -> None:
        self.carried.momentum[:] *= factor

    @property
    def _momentum_has_mu(self) -> bool:
        """Whether the momentum array is multiplied by mu already: dgc's form of Nesterov's."""
        return self.codec.traits.accumulates and self._params.nesterov

    def add_momentum(self, values: np.ndarray) -> None:
        """Add values, shape (n,), to the momentum."""
        carried = self.carried
        carried.momentum[:] += values * (self._params.mu if self._momentum_has_mu else 1)
        self.carried = carried

    @property
    def has_fixed_length(self) -> bool:
        """Whether all payloads have the same length."""
        return self.codec.length_at is None or self._params.compressor.full

    def take_draws(self) -> kernels.Position:
        """Return the position of the next call in the random stream, and advance the stream."""
        *state, drawn = self._stream.take(self.codec.draws)
        return kernels.position(state, drawn)

    def use_memory(self, memory: torch.Tensor) -> None:
        """Let error feedback keep its only array in this tensor, shape (codec.memory[0],)."""
        self.carried = kernels.State(self.carried.momentum, (memory.numpy(),))

    # Steps that are undone

    def keep(self) -> None:
        """Copy the residual, momentum and random stream, for `take_back`."""
        buffers = self._kept[0] if self._kept else None
        self._kept = self._copies(buffers), copy.copy(self._stream)

    def take_back(self) -> None:
        """Return to the state at the last `keep`, or to the start if there was none."""
        self._return_to(self._kept)

    def _return_to(self, kept: Optional[Tuple[List[Any], streams.Stream]]) -> None:
        arrays, stream = kept or (None, streams.Stream(self._start))
        self._stream = copy.copy(stream)
        self._overwrite(arrays)

    def _copies(self, buffers: Optional[List[Any]] = None) -> List[Any]:
        """Return copies of the arrays in use, in these buffers if they are given."""
        buffers = buffers or [np.empty_like(array) for array in _arrays(self.carried)]
        for target, array in zip(buffers, _arrays(self.carried)):
            target[:] = array
        return buffers

    def _overwrite(self, arrays: Optional[List[Any]]) -> None:
        """Write the copies back to the arrays in use; None: write zeros."""
        for i, array in enumerate(_arrays(self.carried)):
            array[:] = 0 if arrays is None else arrays[i]

    # Checkpoints

    def state(self, undone: bool = False) -> Dict[str, np.ndarray]:
        """Return the arrays for a checkpoint.

        They are "residual" and "momentum", shape (n,), and "stream", shape (2,).

        `undone`: as they would be after `take_back`.
        """
        if undone:
            now = self._copies(), self._stream
            self.take_back()
            state = self.state()
            self._return_to(now)
            return state
        state = {}
        if self.codec.traits.draws:
            state["stream"] = self.stream_state()
        if self.codec.memory:
            state["residual"] = self.codec.residual(self.carried)
        if self.codec.momentum:
            state["momentum"] = self.carried.momentum.copy()
        return state

    def stream_state(self) -> np.ndarray:
        """Return the state of the random stream, shape (2,)."""
        return self._stream.state()

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from the result of `state`."""
        if self.codec.traits.draws:
            self._stream.load_state(state["stream"])
        carried = self.carried
        if self.codec.memory:
            self.codec.restore(carried, np.ascontiguousarray(state["residual"]))
        if self.codec.momentum:
            carried.momentum[:] = state["momentum"]
        self.carried = carried


def _arrays(state: kernels.State) -> List[np.ndarray]:
    """Return the arrays of a codec's state."""
    return [array for array in (state.momentum, *state.memory) if array is not None]


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
        self.device, self._tensors = device, None
        super().__init__(params, n, dtype, start)

    def set_epoch(self, epoch: Optional[int]) -> None:
        super().set_epoch(epoch)
        self.gpu_codec = self._params.codec(self._n, self._dtype, epoch, "cuda")

    def _set_options(self, options: Mapping[str, Any]) -> None:
        super()._set_options(options)
        self.gpu_codec.set_options(options)

    def _scale_momentum(self, factor: float) -> None:
        with gpu.queue(self.device):
            self._tensors[0].mul_(factor)

    @property
    def carried(self) -> kernels.State:
        """A copy of the residual and momentum in host memory."""
        momentum, *memory = (None if t is None else t.cpu().numpy() for t in self._tensors)
        return kernels.State(momentum, tuple(memory))

    @carried.setter
    def carried(self, state: kernels.State) -> None:
        arrays = (state.momentum, *state.memory)
        with gpu.queue(self.device):
            if self._tensors is None:
                self._tensors = [a if a is None else self._like(a) for a in arrays]
            for tensor, array in zip(self._tensors, arrays):
                if tensor is not None:
                    tensor.copy_(torch.from_numpy(array))

    def use_memory(self, memory: torch.Tensor) -> None:
        momentum, _ = self._tensors
        self._tensors = [momentum, memory]

    def _copies(self, buffers: Optional[List[Any]] = None) -> List[Any]:
        with gpu.queue(self.device):
            return [tensor.clone() for tensor in self._tensors if tensor is not None]

    def _overwrite(self, arrays: Optional[List[Any]]) -> None:
        tensors = [tensor for tensor in self._tensors if tensor is not None]
        with gpu.queue(self.device):
            for i, tensor in enumerate(tensors):
                if arrays is None:
                    tensor.zero_()
                else:
                    tensor.copy_(arrays[i])

    def _like(self, array: np.ndarray) -> torch.Tensor:
        return torch.empty_like(torch.from_numpy(array), device=self.device)

    @property
    def addresses(self) -> Tuple[Optional[int], Any]:
        """The GPU addresses of momentum and memory, in the form of the library."""
        momentum, *memory = (None if t is None else t.data_ptr() for t in self._tensors)
        return momentum, (ctypes.c_void_p * 2)(*memory)


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
