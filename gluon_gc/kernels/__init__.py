"""The compiled kernels on NumPy arrays, for tests and benchmarks; needs no MXNet.

Every function takes ``isa``, one of `isas()`, the best by default, and most take ``threads``.
Neither changes a bit of what comes out. Arrays must be C-contiguous and of the stated dtype;
nothing is converted. T is float32 or float64.
"""

from .bytegrad import (
    bytegrad_capacity,
    bytegrad_compress,
    bytegrad_decompress,
    bytegrad_decompress_add,
    bytegrad_decompress_sum,
    bytegrad_valid,
)
from .dgc import (
    DgcConfig,
    dgc_capacity,
    dgc_compress,
    dgc_decompress,
    dgc_decompress_add,
    dgc_decompress_sum,
    dgc_valid,
)
from .dithering import (
    dithering_allows,
    dithering_capacity,
    dithering_compress,
    dithering_decompress,
    dithering_decompress_add,
    dithering_decompress_sum,
    dithering_valid,
)
from .framing import frame, frame_words, framed, unframe
from .half import float_from_half, half_from_float
from .library import isas, library
from .onebit import (
    onebit_compress,
    onebit_decompress,
    onebit_decompress_add,
    onebit_decompress_sum,
    onebit_payload_bytes,
    onebit_residual,
)
from .randomk import randomk_compress, randomk_decompress, randomk_decompress_add
from .stream import stream_draw, stream_jump, stream_jump_to_worker
from .topk import (
    topk_compress,
    topk_decompress,
    topk_decompress_add,
    topk_decompress_sum,
    topk_payload_bytes,
    topk_valid,
)

__all__ = [
    "DgcConfig",
    "bytegrad_capacity",
    "bytegrad_compress",
    "bytegrad_decompress",
    "bytegrad_decompress_add",
    "bytegrad_decompress_sum",
    "bytegrad_valid",
    "dgc_capacity",
    "dgc_compress",
    "dgc_decompress",
    "dgc_decompress_add",
    "dgc_decompress_sum",
    "dgc_valid",
    "dithering_allows",
    "dithering_capacity",
    "dithering_compress",
    "dithering_decompress",
    "dithering_decompress_add",
    "dithering_decompress_sum",
    "dithering_valid",
    "float_from_half",
    "frame",
    "frame_words",
    "framed",
    "half_from_float",
    "isas",
    "library",
    "onebit_compress",
    "onebit_decompress",
    "onebit_decompress_add",
    "onebit_decompress_sum",
    "onebit_payload_bytes",
    "onebit_residual",
    "randomk_compress",
    "randomk_decompress",
    "randomk_decompress_add",
    "stream_draw",
    "stream_jump",
    "stream_jump_to_worker",
    "topk_compress",
    "topk_decompress",
    "topk_decompress_add",
    "topk_decompress_sum",
    "topk_payload_bytes",
    "topk_valid",
    "unframe",
]
