"""What one node keeps for one compressed chunk: a codec, and what it carries over."""

from __future__ import annotations

import copy
import ctypes
import os
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

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
        self._params, self._n, self._dtype, self._start = params, n, dtype, start
        self._stream = Stream(start)
        self.set_epoch(None)
        self.carried = self.codec.state()
        self._kept: Optional[Tuple[List[Any], Stream]] = None  # copies of the arrays, and a stream

    def set_epoch(self, epoch: Optional[int]) -> None:
        """Compress as in an epoch, counted from 0."""
        self.codec = self._params.codec(self._n, self._dtype, epoch)

    def take_draws(self) -> kernels.Position:
        """Where the next call draws; the stream moves on."""
        *state, drawn = self._stream.take(self.codec.draws)
        return kernels.position(state, drawn)

    # Steps that are left out

    def keep(self) -> None:
        """Keep a copy of residual, momentum and random stream, for `take_back`."""
        self._kept = self._copies(), copy.copy(self._stream)

    def take_back(self) -> None:
        """Go back to what `keep` found; without it, to the beginning."""
        if self._kept is None:
            self._stream = Stream(self._start)
            self._overwrite(None)
        else:
            arrays, stream = self._kept
            self._stream = copy.copy(stream)
            self._overwrite(arrays)

    def _copies(self) -> List[Any]:
        kept = self._kept[0] if self._kept else [np.empty_like(a) for a in _arrays(self.carried)]
        for target, array in zip(kept, _arrays(self.carried)):
            target[:] = array
        return kept

    def _overwrite(self, arrays: Optional[List[Any]]) -> None:
        """Write copies to the arrays in use; None: zeros."""
        for i, array in enumerate(_arrays(self.carried)):
            array[:] = 0 if arrays is None else arrays[i]

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


def _arrays(state: kernels.State) -> List[np.ndarray]:
    """The arrays of a codec's state that there are."""
    return [array for array in (state.momentum, *state.memory) if array is not None]


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
        self._device, self._tensors = device, None
        super().__init__(*of_coder)

    def set_epoch(self, epoch: Optional[int]) -> None:
        super().set_epoch(epoch)
        self.gpu_codec = self._params.codec(self._n, self._dtype, epoch, "cuda")

    @property
    def carried(self) -> kernels.State:
        """A copy of it."""
        momentum, *memory = (None if t is None else t.cpu().numpy() for t in self._tensors)
        return kernels.State(momentum, tuple(memory))

    @carried.setter
    def carried(self, state: kernels.State) -> None:
        arrays = (state.momentum, *state.memory)
        with gpu.queue(self._device):
            if self._tensors is None:
                self._tensors = [a if a is None else self._like(a) for a in arrays]
            for tensor, array in zip(self._tensors, arrays):
                if tensor is not None:
                    tensor.copy_(torch.from_numpy(array))

    def _copies(self) -> List[Any]:
        with gpu.queue(self._device):
            return [tensor.clone() for tensor in self._tensors if tensor is not None]

    def _overwrite(self, arrays: Optional[List[Any]]) -> None:
        tensors = [tensor for tensor in self._tensors if tensor is not None]
        with gpu.queue(self._device):
            for i, tensor in enumerate(tensors):
                if arrays is None:
                    tensor.zero_()
                else:
                    tensor.copy_(arrays[i])

    def _like(self, array: np.ndarray) -> torch.Tensor:
        return torch.empty_like(torch.from_numpy(array), device=self._device)

    @property
    def addresses(self) -> Tuple[Optional[int], Any]:
        """Where momentum and memory are on the GPU, as the library takes them."""
        momentum, *memory = (None if t is None else t.data_ptr() for t in self._tensors)
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
