"""What one node keeps for one compressed chunk: a codec, and what it carries over."""

from __future__ import annotations

import ctypes
import os
from typing import Any, Dict, Iterable, Mapping, Optional, Tuple

import numpy as np
import torch
import torch.distributed as dist

from .. import kernels
from ..compression import CompressionParams, stream
from ..compression.stream import State, Stream
from ..plan import Chunk
from . import gpu


class Coder:
    """The codec of n elements with its residual, momentum and random stream.

    Parameters
    ----------
    params : CompressionParams
        With a compressor.
    n : int
        Number of elements.
    dtype : "float32" or "float64"
        Of the arithmetic and the state.
    start : State, optional
        Where its random stream starts, for a compressor that draws.

    Attributes
    ----------
    codec : Codec
    carried : kernels.State
    """

    def __init__(
        self, params: CompressionParams, n: int, dtype: str, start: Optional[State]
    ) -> None:
        self._params, self._n, self._dtype = params, n, dtype
        self._stream = Stream(start)
        self.set_epoch(None)
        self.carried = self.codec.state()

    def set_epoch(self, epoch: Optional[int]) -> None:
        """Compress as in an epoch, counted from 0."""
        self.codec = self._params.codec(self._n, self._dtype, epoch)

    def take_draws(self) -> kernels.Position:
        """Where the next call draws; the stream moves on."""
        *state, drawn = self._stream.take(self.codec.draws)
        return kernels.position(state, drawn)

    # Checkpoints

    def state(self) -> Dict[str, np.ndarray]:
        """What it carries over: "residual" and "momentum", shape (n,), and "stream", shape (2,)."""
        state = {}
        if self.codec.traits.draws:
            state["stream"] = self._stream.state()
        if self.codec.memory:
            state["residual"] = self.codec.residual(self.carried)
        if self.codec.momentum:
            state["momentum"] = self.carried.momentum.copy()
        return state

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from what `state` returned."""
        if self.codec.traits.draws:
            self._stream.load_state(state["stream"])
        carried = self.carried
        if self.codec.memory:
            self.codec.restore(carried, np.ascontiguousarray(state["residual"]))
        if self.codec.momentum:
            carried.momentum[:] = state["momentum"]
        self.carried = carried


class GpuCoder(Coder):
    """One whose residual and momentum are in a GPU's memory, where values are compressed.

    Parameters
    ----------
    device : torch.device
        The GPU; the others are those of `Coder`.

    Attributes
    ----------
    gpu_codec : Codec
        For that GPU; `codec` is the same for the CPU.
    """

    def __init__(self, device: torch.device, *of_coder: Any) -> None:
        self._device, self._kept = device, None
        super().__init__(*of_coder)

    def set_epoch(self, epoch: Optional[int]) -> None:
        super().set_epoch(epoch)
        self.gpu_codec = self._params.codec(self._n, self._dtype, epoch, "cuda")

    @property
    def carried(self) -> kernels.State:
        """A copy of it."""
        momentum, *memory = (None if t is None else t.cpu().numpy() for t in self._kept)
        return kernels.State(momentum, tuple(memory))

    @carried.setter
    def carried(self, state: kernels.State) -> None:
        arrays = (state.momentum, *state.memory)
        with gpu.queue(self._device):
            if self._kept is None:
                self._kept = [a if a is None else self._like(a) for a in arrays]
            for tensor, array in zip(self._kept, arrays):
                if tensor is not None:
                    tensor.copy_(torch.from_numpy(array))

    def _like(self, array: np.ndarray) -> torch.Tensor:
        return torch.empty_like(torch.from_numpy(array), device=self._device)

    @property
    def addresses(self) -> Tuple[Optional[int], Any]:
        """Where momentum and memory are on the GPU, as the library takes them."""
        momentum, *memory = (None if t is None else t.data_ptr() for t in self._kept)
        return momentum, (ctypes.c_void_p * 2)(*memory)


class Seeds:
    """Makes coders, whose random streams start where all workers of a group expect them to.

    Parameters
    ----------
    group : ProcessGroup
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group, self._entropy = group, b""

    def draw(self, chunks: Iterable[Chunk]) -> None:
        """Draw what all share, if one of these chunks needs it; all members call this alike."""
        compressors = {chunk.params.compressor for chunk in chunks if chunk.params is not None}
        if any(one.traits.draws and one.seed is None for one in compressors) and not self._entropy:
            words = [os.urandom(16)]
            source = dist.get_global_rank(self._group, 0)
            dist.broadcast_object_list(words, source, group=self._group)
            (self._entropy,) = words

    def coder(
        self,
        chunk: Chunk,
        params: CompressionParams,
        node: Optional[int],
        index: int,
        begin: int,
        device: torch.device = gpu.CPU,
    ) -> Coder:
        """A worker's, or (None) the aggregator's, for a chunk of values on a device.

        `stream.start` has the others.
        """
        start = None
        if params.compressor.traits.draws:
            start = stream.start(params, chunk.size, node, index, begin, self._entropy)
        of_coder = params, chunk.size, chunk.dtype, start
        if gpu.has_kernels(device, params.compressor):
            return GpuCoder(device, *of_coder)
        return Coder(*of_coder)
