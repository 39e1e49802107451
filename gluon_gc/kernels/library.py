"""Loads the compiled library and declares its C interface, operators/core/abi.h."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Mapping, NamedTuple

import numpy as np

from .. import env
from ..log import warn_once

_pointer, _size, _integer = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_ISAS = ("scalar", "avx2", "avx512")
CUDA = 16
"""gluon_gc_cuda: the number that stands for the GPU instead of an instruction set."""
TICKET_BYTES = 64
"""gluon_gc_ticket_bytes: the bytes of the ticket that each call of a codec for CUDA needs."""


class Needs(ctypes.Structure):
    """gluon_gc_needs."""

    __slots__ = ()  # a name that is not a field is an error
    _fields_ = [
        ("payload_bytes", _size),
        ("memory", _size * 2),
        ("momentum", _size),
        ("workspace_bytes", _size),
        ("draws", ctypes.c_uint64),
        ("length_at", _integer),
    ]


class Traits(NamedTuple):
    """Properties that all codecs of a compressor share.

    Parameters
    ----------
    draws : bool
        Whether the compressor draws random numbers.
    draws_alike : bool
        Whether all nodes draw the same numbers. Decoding then needs the position that `compress`
        had.
    summable : bool
        Whether payloads are arrays of values that can be summed without decoding.
    accumulates : bool
        Whether the compressor itself applies momentum and accumulates the elements that it does not
        send.
    cuda : bool
        Whether the compressor has kernels for CUDA.
    """

    draws: bool
    draws_alike: bool
    summable: bool
    accumulates: bool
    cuda: bool


class _Traits(ctypes.Structure):
    """gluon_gc_traits."""

    __slots__ = ()
    _fields_ = [(name, _integer) for name in Traits._fields]


class Position(ctypes.Structure):
    """gluon_gc_position: a position in the random stream, `draws` draws after `state`."""

    __slots__ = ()
    _fields_ = [("state", ctypes.c_uint64 * 2), ("draws", ctypes.c_uint64)]


class Status(ctypes.Structure):
    """gluon_gc_status: the total length of the payloads, and `finite`, 1 if all elements are."""

    __slots__ = ()
    _fields_ = [("bytes", ctypes.c_uint64), ("finite", ctypes.c_uint64)]


class StateAddresses(ctypes.Structure):
    """gluon_gc_state: the addresses of a codec's momentum and of its memory."""

    __slots__ = ()
    _fields_ = [("momentum", _pointer), ("memory", _pointer * 2)]


class Call(ctypes.Structure):
    """gluon_gc_call."""

    __slots__ = ()
    _fields_ = [
        ("codec", _pointer),
        ("values", _pointer),
        ("scale", ctypes.c_double),
        ("factor", _pointer),
        ("ratio", ctypes.c_double),
        ("state", StateAddresses),
        ("earlier", ctypes.POINTER(StateAddresses)),
        ("position", Position),
        ("payload", _pointer),
        ("payloads", _pointer),
        ("stride", _size),
        ("count", _size),
        ("add", _integer),
        ("workspace", _pointer),
        ("status", ctypes.POINTER(Status)),
        ("threads", _integer),
        ("stream", _pointer),
        ("ticket", _pointer),
    ]


class Conversion(ctypes.Structure):
    """gluon_gc_conversion."""

    __slots__ = ()
    _fields_ = [
        ("from_", _pointer),
        ("to", _pointer),
        ("n", _size),
        ("from_itemsize", _integer),
        ("to_itemsize", _integer),
        ("scale", ctypes.c_double),
        ("factor", _pointer),
        ("nonfinite", _pointer),
    ]


class Values(ctypes.Structure):
    """gluon_gc_values."""

    __slots__ = ()
    _fields_ = [("x", _pointer), ("n", _size), ("itemsize", _integer)]


class Clipping(ctypes.Structure):
    """gluon_gc_clipping."""

    __slots__ = ()
    _fields_ = [
        ("scale", ctypes.c_double),
        ("max_norm", ctypes.c_double),
        ("factor", _pointer),
        ("workspace", _pointer),
        ("stream", _pointer),
    ]


class Rows(ctypes.Structure):
    """gluon_gc_rows."""

    __slots__ = ()
    _fields_ = [("bytes", _size), ("row_words", _size), ("rows", _size)]


class LowRank(ctypes.Structure):
    """gluon_gc_low_rank."""

    __slots__ = ()
    _fields_ = [
        ("rows", _size),
        ("columns", _size),
        ("rank", _size),
        ("itemsize", _integer),
        ("threads", _integer),
        ("isa", _integer),
    ]


VERSION = 4
"""The gluon_gc_abi_version of these declarations."""
STRUCTS = {
    "needs": Needs,
    "traits": _Traits,
    "position": Position,
    "status": Status,
    "state": StateAddresses,
    "call": Call,
    "conversion": Conversion,
    "values": Values,
    "clipping": Clipping,
    "rows": Rows,
    "low_rank": LowRank,
}


def _declared() -> str:
    """The versions and sizes that this module declares, in the form of gluon_gc_abi."""
    numbers = {"version": VERSION, "cuda": CUDA, "ticket_bytes": TICKET_BYTES}
    numbers.update((name, ctypes.sizeof(struct)) for name, struct in STRUCTS.items())
    return " ".join(f"{name}={number}" for name, number in numbers.items())


def _require_same_interface(path: Path, loaded: ctypes.CDLL) -> None:
    """Raise ImportError unless a library has the C interface that this module declares."""
    theirs = "version=0"  # from before gluon_gc_abi existed
    if hasattr(loaded, "gluon_gc_abi"):
        loaded.gluon_gc_abi.restype = ctypes.c_char_p
        theirs = loaded.gluon_gc_abi().decode()
    if theirs != _declared():
        raise ImportError(
            f"{path} has another C interface than this gluon_gc. The library's: {theirs}; "
            f"gluon_gc's: {_declared()}. Install gluon_gc again, so that both are built together, "
            "or unset GLUON_GC_LIBRARY if it names an old build"
        )


PATH = Path(env.get("GLUON_GC_LIBRARY") or Path(__file__).parent.with_name("libgluon_gc.so"))
if not PATH.exists():
    raise ImportError(
        f"{PATH} does not exist: install gluon_gc. If it is installed, start Python outside of its "
        "source folder, or run pip install -e . there"
    )
library = ctypes.CDLL(str(PATH))
_require_same_interface(PATH, library)

_message, _calls = ctypes.c_char_p, (ctypes.POINTER(Call), _size)
_low_rank = ctypes.POINTER(LowRank)
_FUNCTIONS = {
    "new": (_message, _message, _message, _size, _integer, _integer, ctypes.POINTER(_pointer)),
    "free": (None, _pointer),
    "need": (None, _pointer, ctypes.POINTER(Needs)),
    "compressor": (_message, _size, ctypes.POINTER(_Traits)),
    "best_isa": (_integer,),
    "cuda_ready": (_message, _message),
    "clear": (_message, _pointer, _size, _pointer),
    "cuda_code": (_message, _message, _pointer),
    "compress": (_message, *_calls),
    "aggregate": (_message, *_calls),
    "decompress": (_message, *_calls),
    "inspect": (_message, *_calls),
    "used": (_size, _pointer, _pointer, _size),
    "valid": (_integer, _pointer, _pointer, _size),
    "residual": (_message, *_calls),
    "restore": (_message, *_calls),
    "convert": (_message, ctypes.POINTER(Conversion), _size, _pointer),
    "clip_workspace": (_size, ctypes.POINTER(Values), _size),
    "clip": (_message, ctypes.POINTER(Values), _size, ctypes.POINTER(Clipping)),
    "draw": (None, Position, _size, _pointer),
    "jump": (None, _pointer, ctypes.c_uint64),
    "jump_to_worker": (None, _pointer, ctypes.c_uint64),
    "sum_of_squares": (ctypes.c_double, _pointer, _size, _integer, _integer, _integer),
    "values_finite": (_integer, _pointer, _size, _integer, _integer, _integer),
    "half_from_float": (None, _pointer, _size, ctypes.c_float, _pointer, _integer, _integer),
    "float_from_half": (None, _pointer, _size, _pointer, _integer, _integer),
    "accumulate": (None, _low_rank, *[_pointer] * 6),
    "project": (None, _low_rank, *[_pointer] * 3),
    "multiply": (None, _low_rank, *[_pointer] * 3),
    "orthonormalise": (None, _pointer, _size, _size, _integer),
    "frame_words": (_size, _size),
    "frame_bytes": (_size, _size),
    "message_rows": (None, _size, _integer, _integer, ctypes.POINTER(Rows)),
    "row_list_bytes": (_size, _size),
    "rows_head_bytes": (_size, _size),
    "frame": (None, _pointer, _size, _pointer, _integer, _integer),
    "unframe": (None, _pointer, _size, _pointer, _integer, _integer),
    "framed": (_integer, _pointer, _size, _integer),
    "limit": (_message, _message, _pointer, _pointer, _pointer, _size, _integer, _integer),
}
for _name, (_result, *_arguments) in _FUNCTIONS.items():
    _function = getattr(library, "gluon_gc_" + _name)
    _function.restype, _function.argtypes = _result, _arguments


def check(message: bytes | None) -> None:
    """Raise ValueError if a function of the library returned an error message."""
    if message is not None:
        raise ValueError(message.decode())


@lru_cache(maxsize=None)
def compressors() -> Mapping[str, Traits]:
    """The traits of the library's compressors, by name."""
    traits_by_name: dict[str, Traits] = {}
    while True:
        traits = _Traits()
        name = library.gluon_gc_compressor(len(traits_by_name), ctypes.byref(traits))
        if name is None:
            return MappingProxyType(traits_by_name)
        flags = (bool(getattr(traits, field)) for field in Traits._fields)
        traits_by_name[name.decode()] = Traits(*flags)


def names() -> tuple[str, ...]:
    """The names of the compressors."""
    return tuple(compressors())


def runs_on_gpu(source: str) -> bool:
    """Whether this process can run the kernels of a source file in operators/cuda.

    If it cannot, one warning in the log gives the reason.

    Parameters
    ----------
    source : str
        The name of a compressor, "convert" or "clip".
    """
    problem = cuda_problem(source)
    if problem:
        warn_once("gradients on a GPU are copied to the CPU to be compressed: %s", problem)
    return not problem


def cuda_problem(source: str) -> str:
    """Why this process cannot run the kernels of a source file; "" if it can."""
    reason = library.gluon_gc_cuda_ready(source.encode())
    return "" if reason is None else reason.decode()


def isas() -> tuple[str, ...]:
    """The instruction sets of this machine that the library uses, the slowest first."""
    return _ISAS[: library.gluon_gc_best_isa() + 1]


def isa_number(name: str | None) -> int:
    """The library's number of an instruction set, by default of the best one."""
    available = isas()
    if name is None:
        return len(available) - 1
    if name not in available:
        raise ValueError(f"isa must be one of {available} on this machine, got {name!r}")
    return available.index(name)


def address_of(
    name: str, array: np.ndarray | None, size: int, dtype: Any, writes: bool = False
) -> int | None:
    """Check the dtype, size and layout of an array, and return its address. None for None."""
    if array is None:
        return None
    if array.dtype != dtype:
        raise TypeError(f"{name} must be {np.dtype(dtype)}, got {array.dtype}")
    if array.size != size:
        raise ValueError(f"{name} must have {size} elements, got {array.size}")
    if not array.flags.c_contiguous or (writes and not array.flags.writeable):
        raise ValueError(f"{name} must be C-contiguous{' and writeable' if writes else ''}")
    return array.ctypes.data


def output_of(name: str, array: np.ndarray | None, size: int, dtype: Any) -> np.ndarray:
    """Check an array for output, and return it. Return a new array for None."""
    if array is None:
        return np.empty(size, dtype)
    address_of(name, array, size, dtype, writes=True)
    return array
