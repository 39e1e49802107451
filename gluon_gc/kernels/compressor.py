"""What the kernels of all compressors share: how they are declared, and called with checked arrays.

What their C functions take, and in which order, is said in operators/core/capi.cpp.
"""

from __future__ import annotations

from typing import Any, ClassVar, Optional

import numpy as np

from .library import (
    address_of,
    declare,
    double,
    integer,
    isa_number,
    itemsize_of,
    library,
    output_of,
    pointer,
    size,
)

_run = integer, integer  # threads, isa


def state_of(name: str, array: Optional[np.ndarray], gradient: np.ndarray) -> Optional[int]:
    """The address of what is kept for each element of a gradient."""
    return address_of(name, array, gradient.size, gradient.dtype, writes=True)


class Compressor:
    """The kernels of a compressor. Each has a class of its own, with one instance.

    It says what C types its compress takes between mu and the payload: those of `feedback`, and
    others.
    """

    name: ClassVar[str]
    feedback_types: ClassVar[tuple] = pointer, double
    compress_types: ClassVar[tuple] = ()

    def __init__(self) -> None:
        shared = pointer, size, double, pointer, double
        own = *self.feedback_types, *self.compress_types
        self._declare("compress", double, *shared, *own, pointer, *_run)

    def feedback(
        self,
        gradient: np.ndarray,
        residual: Optional[np.ndarray] = None,
        ratio: float = 1.0,
    ) -> tuple:
        """Its error feedback as C takes it."""
        return state_of("residual", residual, gradient), ratio

    def _declare(self, function: str, result: Any, *arguments: Any) -> None:
        declare(f"{self.name}_{function}", result, integer, *arguments)

    def _call(self, function: str, dtype: Any, *arguments: Any) -> Any:
        return getattr(library, f"gluon_gc_{self.name}_{function}")(itemsize_of(dtype), *arguments)

    def _compress(
        self,
        gradient: np.ndarray,
        payload_size: int,
        payload_dtype: Any,
        *own: Any,
        gradient_scale: float = 1.0,
        momentum: Optional[np.ndarray] = None,
        mu: float = 0.0,
        payload: Optional[np.ndarray] = None,
        threads: int = 1,
        isa: Optional[str] = None,
        **feedback: Any,
    ) -> tuple[np.ndarray, float]:
        """Calls C with what the package's docstring describes, and ``own`` after the feedback."""
        n, dtype = gradient.size, gradient.dtype
        payload = output_of("payload", payload, payload_size, payload_dtype)
        address = address_of("gradient", gradient, n, dtype)
        shared = address, n, gradient_scale, state_of("momentum", momentum, gradient), mu
        own = *self.feedback(gradient, **feedback), *own
        to = payload.ctypes.data
        return payload, self._call("compress", dtype, *shared, *own, to, threads, isa_number(isa))


class Codec(Compressor):
    """A compressor whose payloads are arrays of uint8 that tell all that was sent.

    What decodes them takes the compressor's own `options` by keyword.
    """

    option_types: ClassVar[tuple] = ()

    def __init__(self) -> None:
        super().__init__()
        own = self.option_types
        self._declare("capacity", size, size, *own)
        self._declare("valid", integer, pointer, size, size, *own, integer)
        self._declare("decompress_add", None, pointer, size, *own, pointer, *_run)
        self._declare("decompress_sum", None, pointer, size, size, size, *own, pointer, *_run)

    def options(self) -> tuple:
        """Its options as C takes them."""
        return ()

    def capacity(self, n: int, dtype: Any = np.float32, **options: Any) -> int:
        """The most bytes of a payload of n elements of ``dtype``."""
        return self._call("capacity", dtype, n, *self.options(**options))

    def valid(
        self,
        payload: np.ndarray,
        n: int,
        dtype: Any = np.float32,
        *,
        isa: Optional[str] = None,
        **options: Any,
    ) -> bool:
        """Whether a payload is one of n elements of ``dtype``, so that it can be decoded."""
        address = address_of("payload", payload, payload.size, np.uint8)
        own = self.options(**options)
        return bool(self._call("valid", dtype, address, payload.size, n, *own, isa_number(isa)))

    def _check(self, payload: np.ndarray, n: int, dtype: Any, **keywords: Any) -> None:
        if not self.valid(payload, n, dtype, **keywords):
            raise ValueError(f"payload must be one of {n} elements")

    def decompress(
        self, payload: np.ndarray, n: int, dtype: Any = np.float32, **keywords: Any
    ) -> np.ndarray:
        """Decode a payload, as `decompress_sum` decodes several."""
        return self.decompress_sum(payload[None], n, dtype, **keywords)

    def decompress_add(
        self,
        payload: np.ndarray,
        out: np.ndarray,
        *,
        threads: int = 1,
        isa: Optional[str] = None,
        **options: Any,
    ) -> np.ndarray:
        """Add what a payload decodes to to ``out``, an array of T, in place; returns it."""
        n, dtype = out.size, out.dtype
        self._check(payload, n, dtype, isa=isa, **options)
        to = address_of("out", out, n, dtype, writes=True)
        own = *self.options(**options), to, threads, isa_number(isa)
        self._call("decompress_add", dtype, payload.ctypes.data, n, *own)
        return out

    def decompress_sum(
        self,
        payloads: np.ndarray,
        n: int,
        dtype: Any = np.float32,
        *,
        out: Optional[np.ndarray] = None,
        threads: int = 1,
        isa: Optional[str] = None,
        **options: Any,
    ) -> np.ndarray:
        """Add up what payloads decode to, the first row first.

        Parameters
        ----------
        payloads : array of uint8, shape (count, stride)
            One payload at the start of each row.
        n : int
            Elements of each.
        dtype : float32 or float64
        out : array of ``dtype``, shape (n,), optional
            Where to write.

        Raises
        ------
        ValueError
            A payload is not `valid`.
        """
        count, stride = payloads.shape
        address = address_of("payloads", payloads, count * stride, np.uint8)
        for payload in payloads:
            self._check(payload, n, dtype, isa=isa, **options)
        out = output_of("out", out, n, dtype)
        own = *self.options(**options), out.ctypes.data, threads, isa_number(isa)
        self._call("decompress_sum", dtype, address, stride, count, n, *own)
        return out
