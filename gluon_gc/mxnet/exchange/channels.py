"""The declared tensors of an exchange, and the channels that carry them."""

from __future__ import annotations

import math
from typing import Collection, Dict, Iterable, Iterator, List, Sequence, Union

import numpy as np
from mxnet.ndarray import NDArray

from ...plan import Tensor
from .channel import Channel
from .gradient import Gradient
from .sparse import SparseChannel

AnyChannel = Union[Channel, SparseChannel]


class Channels:
    """The channels of an exchange, in the order in which their tensors were declared.

    Attributes
    ----------
    tensors : dict
        The declared tensors by name.
    """

    def __init__(self) -> None:
        self.tensors: Dict[str, Tensor] = {}
        self._channels: List[AnyChannel] = []

    def __iter__(self) -> Iterator[AnyChannel]:
        return iter(self._channels)

    def of(self, names: Collection[str]) -> List[AnyChannel]:
        """The channels that carry these tensors."""
        return [channel for channel in self if not channel.tensors.isdisjoint(names)]

    def add(self, channels: Iterable[AnyChannel]) -> None:
        """Add channels, whose tensors are already in `tensors`."""
        self._channels += channels

    def hide(self, names: Collection[str]) -> List[AnyChannel]:
        """Remove the channels of these tensors, and return them."""
        hidden = dict.fromkeys(self.of(names))
        self._channels = [channel for channel in self if channel not in hidden]
        return list(hidden)

    def require_new(self, tensors: Iterable[Tensor]) -> None:
        """Raise ValueError if a tensor of the same name is declared."""
        for tensor in tensors:
            if tensor.name in self.tensors:
                raise ValueError(f"tensor '{tensor.name}' is declared already")

    def gradient(
        self, name: str, arrays: Sequence[NDArray], targets: Sequence[NDArray]
    ) -> Gradient:
        """The gradient of a tensor, for a `Job`.

        Parameters
        ----------
        name : str
        arrays : sequence of NDArray
            The tensor's copies, one for each context.
        targets : sequence of NDArray
            The arrays that receive the sum.

        Raises
        ------
        ValueError
            An array has another size or dtype than the tensor.
        """
        tensor = self.tensors[name]
        check_fits(arrays, tensor)
        return Gradient(arrays, targets, "row_sparse" if tensor.rows else "default")

    def nonfinite(self, names: Collection[str]) -> int:
        """How many chunk sums of these tensors had a NaN or an infinity so far.

        The number is the same on all workers. The call waits for all exchanges. Uncompressed
        tensors whose `on_nonfinite` is "propagate" are not counted.
        """
        return sum(channel.nonfinite() for channel in self.of(names))

    def set_epoch(self, names: Collection[str], epoch: int) -> None:
        """Tell the compressors of these tensors the epoch, counted from 0."""
        for channel in self.of(names):
            if channel.codec is not None:
                channel.codec.set_epoch(epoch)


def check_fits(arrays: Sequence[NDArray], tensor: Tensor) -> None:
    """Raise ValueError unless these arrays have the size and dtype of the tensor."""
    for array in arrays:
        size, dtype = math.prod(array.shape), np.dtype(array.dtype).name
        if (size, dtype) != (tensor.size, tensor.dtype):
            raise ValueError(
                f"{tensor.called} must have {tensor.size} elements of {tensor.dtype}, as when it "
                f"was declared; got shape {array.shape}, {size} elements of {dtype}"
            )
