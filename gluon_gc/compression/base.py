"""What a compressor is, and the registry of those that exist."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar, Dict, Sequence, Tuple, Type

from mxnet.ndarray import NDArray

registry: Dict[str, Type["Compressor"]] = {}
"""The compressors by the name that compression_params gives them."""


def register(compressor: Type["Compressor"]) -> Type["Compressor"]:
    """Class decorator: make a compressor available under its name."""
    registry[compressor.name] = compressor
    return compressor


@dataclass(frozen=True)
class Compressor:
    """Turns a float array into bytes and back; knows nothing of training and keeps no state.

    A subclass has its options as fields, and operators ``gluon_gc_NAME_*`` in the library.
    """

    name: ClassVar[str]
    description: ClassVar[str]

    def payload_bytes(self, n: int, itemsize: int) -> int:
        """Size of the payload of n elements of `itemsize` bytes."""
        raise NotImplementedError

    def memory_sizes(self, n: int) -> Tuple[int, ...]:
        """Number of elements of each array that error feedback keeps for a chunk of n."""
        raise NotImplementedError

    def restore(self, memory: Sequence[NDArray], residual: NDArray) -> None:
        """Set the memory so that the next call adds exactly `residual`, shape (n,)."""
        raise NotImplementedError

    def attributes(self) -> Dict[str, object]:
        """The options, as the operators take them."""
        return asdict(self)
