"""The interface between the exchange and a front end's arrays."""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Collection,
    ContextManager,
    Iterable,
    Optional,
    Protocol,
    Sequence,
)

from .. import kernels
from ..compression import CompressionParams
from ..compression.base import Compressor
from .plan import Slice

if TYPE_CHECKING:
    from ..compression import stream
    from .chunk import ExchangedChunk
    from .coder import Coder
    from .coding import Buffers, Parts
    from .collectives import Collectives
    from .job import Job
    from .transport import Members

Array = Any
"""A front end's array, in host memory or on a GPU. A slice of it shares its memory."""

Positions = Optional[Sequence[kernels.Position]]
Ratios = Optional[Sequence[float]]
States = Sequence[kernels.StateOfCall]


class Values(Protocol):
    """The values of the tensors in a job: flat arrays of float32 or float64, on one device.

    Attributes
    ----------
    device
    names : collection of str
        The tensors.
    dtypes : tuple of str
        Their dtypes, in the order of the names.
    """

    device: Any
    names: Collection[str]
    dtypes: tuple[str, ...]

    def of(self, piece: Slice) -> Array:
        """Return the values of a slice."""

    def addresses(self, pieces: Sequence[Slice]) -> list[int]:
        """Return the memory addresses of the values of slices."""

    def queue(self) -> ContextManager[int | None]:
        """Return a context for work on the values, which begins after they were computed.

        It yields the stream of a GPU, or None. At its end, all copies to or from host memory are
        complete. Other work of a GPU is in the thread's stream.
        """


class Order(Protocol):
    """The order of the work on some memory."""

    def queue(self) -> ContextManager[int | None]:
        """Return a context for work after all work so far; see `Values.queue`."""


class Calls(Protocol):
    """Calls of the library for chunks with the same compression.

    Attributes
    ----------
    delivered : list of ExchangedChunk
        The chunks whose sum this worker gets.
    """

    delivered: list[ExchangedChunk]

    def compress(
        self, job: Job, states: States, positions: Positions, ratios: Ratios
    ) -> Iterable[None]:
        """Write the payloads of the job's values to the buffers; see `Coding.encode`."""

    def aggregate(self, states: States, positions: Positions) -> None:
        """As the owner, write the payloads of the sums to the buffers."""

    def decompress(self, job: Job, positions: Positions) -> Iterable[bool]:
        """Write the sums to the job's values. Return for each whether it is finite.

        To read the result may take until a GPU has written the sums. It is empty if nobody asks.
        """


class Arrays(Protocol):
    """What a front end does with its arrays. Dtypes are names, such as "bfloat16".

    Attributes
    ----------
    host
        The device of arrays in host memory.
    """

    host: Any

    def memory(self, size: int, device: Any = None) -> Array:
        """Allocate zeros for messages: uint8, in the memory of a GPU.

        None: a NumPy array in host memory, which a GPU can copy fast.
        """

    def view(self, room: Array, dtype: str) -> Array:
        """View bytes, as a NumPy array or in GPU memory, as values in the same memory."""

    def address(self, values: Array) -> int:
        """Return the memory address of values."""

    def order(self, device: Any, memory: Iterable[Array]) -> Order:
        """Return the order of the work on some memory of a device, which several threads use."""

    def itemsize(self, dtype: str) -> int:
        """Return the bytes of an element."""

    def copy(self, source: Array, target: Array, scale: float = 1.0) -> None:
        """Write source * scale to target, which may have another device or dtype."""

    def multiply(self, values: Array, factor: float) -> None:
        """Multiply values in place."""

    def zero(self, values: Array) -> None:
        """Set values to zero."""

    def sum_rows(self, rows: Array, total: Array) -> None:
        """Add the rows in their order, in at least float32, and round the sum to total's dtype."""

    def check_finite(self, values: Array) -> Callable[[], bool]:
        """Check values for NaNs and infinities; the result tells whether there are none.

        It waits until a GPU has checked them.
        """

    def in_host_memory(self, device: Any) -> bool:
        """Return whether the CPU can read arrays of this device."""

    def keeps_payloads(self, device: Any, compressor: Compressor | None) -> bool:
        """Return whether payloads of a fixed length stay in the memory of this GPU.

        None: whether values do.
        """

    def coder(
        self,
        device: Any,
        params: CompressionParams,
        n: int,
        dtype: str,
        start: stream.State | None = None,
        decodes_only: bool = False,
    ) -> Coder:
        """Return a coder of values on a device; see `Coder`."""

    def calls(self, parts: Parts, buffers: Buffers) -> Calls:
        """Return the calls for the chunks of a `Coding`."""

    def device_collectives(self, device: Any, members: Members) -> Collectives:
        """Return the collectives of payloads or values that stay in the memory of GPUs.

        All members call this together.
        """
