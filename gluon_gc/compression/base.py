"""What a compressor is, and the registry of those that exist."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar, Dict, Optional, Sequence, Tuple, Type

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

    Attributes
    ----------
    draws : str, optional
        Whether it draws random numbers: "alike" if all nodes need the same, "apart" if each has a
        part of the stream of its own.
    summable : bool
        A payload is an array of values, and the payload of a sum is the sum of payloads.
    variable : bool
        A payload may be shorter than `payload_bytes`, and begins with its length in bytes, as a
        uint32.
    accumulates : bool
        It keeps what it does not send and applies momentum by itself, as feedback "vanilla" would;
        vectors travel uncompressed, and payloads are gathered.
    hierarchical : bool
        Whether gradients are summed within a node first, unless compression_params say.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    draws: ClassVar[Optional[str]] = None
    summable: ClassVar[bool] = False
    variable: ClassVar[bool] = False
    accumulates: ClassVar[bool] = False
    hierarchical: ClassVar[bool] = False

    def payload_bytes(self, n: int, itemsize: int) -> int:
        """Size of the payload of n elements of `itemsize` bytes, or the most that it can be."""
        raise NotImplementedError

    def memory_sizes(self, n: int, itemsize: int) -> Tuple[int, ...]:
        """Number of elements of each array that error feedback keeps for a chunk of n.

        Unless a compressor says otherwise: the residual.
        """
        return (n,)

    def restore(self, memory: Sequence[NDArray], residual: NDArray) -> None:
        """Set the memory so that the next call adds exactly `residual`, shape (n,)."""
        (kept,) = memory
        kept[:] = residual

    def seed_offset(self, n: int) -> int:
        """What is added to the seed of a chunk of n elements."""
        return 0

    def options(self) -> Dict[str, object]:
        """The options, as compression_params have them."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def attributes(self, n: int, epoch: Optional[int] = None) -> Dict[str, object]:
        """What the operators are told for a chunk of n elements; None: no epoch was ever set."""
        return self.options()


def refuse_whole_share(k: float) -> None:
    """Raise ValueError if k is 1.0, as of all elements, where 1 means one of them."""
    if k == 1 and isinstance(k, float):
        raise ValueError(
            f"compression_params['k'] must be a share below 1 or a whole number, got {k!r}: "
            "1 is one element of each chunk; to send all, leave the compressor out"
        )


def element_count(k: float, n: int) -> int:
    """How many of n elements k asks for: a share (0 < k < 1, at least one) or a number."""
    return min(n, max(1, int(k * n if k < 1 else k)))
