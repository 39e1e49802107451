"""The compiled kernels on NumPy arrays, for tests and benchmarks; needs no MXNet.

Every function takes ``isa``, one of `isas()`, the best by default, and most take ``threads``.
Neither changes a bit of what comes out. Arrays must be C-contiguous and of the stated dtype;
nothing is converted: else they raise TypeError or ValueError. T is float32 or float64.

All ``compress`` take, beside what is their own, by keyword:

gradient_scale : float
    g = gradient * gradient_scale.
momentum, mu : array of T, shape (n,), and float, optional
    Updated in place: m = mu m + g; g becomes g + mu m. (dgc has its own formula.)
residual, ratio : array of T, shape (n,), and float, optional
    p = g + ratio e; e is updated in place and becomes p - D(p), where D(p) is what the payload
    decodes to. (onebit and dgc keep another state: see their `feedback`.)
payload : array, optional
    Where to write.
"""

from .bytegrad import Bytegrad
from .dgc import Dgc, DgcConfig
from .dithering import Dithering
from .finite import values_finite
from .framing import frame, frame_words, framed, unframe
from .half import float_from_half, half_from_float
from .library import isas, library
from .onebit import Onebit
from .randomk import Randomk
from .stream import stream_draw, stream_jump, stream_jump_to_worker
from .topk import Topk

bytegrad, dgc, dithering = Bytegrad(), Dgc(), Dithering()
onebit, randomk, topk = Onebit(), Randomk(), Topk()

__all__ = [
    "DgcConfig",
    "bytegrad",
    "dgc",
    "dithering",
    "float_from_half",
    "frame",
    "frame_words",
    "framed",
    "half_from_float",
    "isas",
    "library",
    "onebit",
    "randomk",
    "stream_draw",
    "stream_jump",
    "stream_jump_to_worker",
    "topk",
    "unframe",
    "values_finite",
]
