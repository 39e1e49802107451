"""The compiled library (libgluon_gc.so), called on NumPy arrays. Needs no framework."""

from .batch import Batch, StateOfCall, StateReference
from .codec import Codec
from .framing import (
    frame,
    frame_bytes,
    frame_words,
    framed,
    message_rows,
    row_list_bytes,
    rows_head_bytes,
    unframe,
)
from .gpu import runs_on_gpu
from .half import float_from_half, half_from_float
from .handle import addresses
from .library import (
    PATH,
    Position,
    Rows,
    StateAddresses,
    Status,
    Traits,
    compressors,
    isas,
    library,
    names,
)
from .low_rank import accumulate, multiply, orthonormalise, project
from .state import Layout as Layout  # a type
from .state import State, as_text, position
from .stream import draw, jump, jump_to_worker
from .values import sum_of_squares, values_finite

__all__ = [
    "PATH",
    "Batch",
    "Codec",
    "Position",
    "Rows",
    "State",
    "StateAddresses",
    "StateOfCall",
    "StateReference",
    "Status",
    "Traits",
    "accumulate",
    "addresses",
    "as_text",
    "compressors",
    "draw",
    "float_from_half",
    "frame",
    "frame_bytes",
    "frame_words",
    "framed",
    "half_from_float",
    "isas",
    "jump",
    "jump_to_worker",
    "library",
    "message_rows",
    "multiply",
    "names",
    "orthonormalise",
    "position",
    "project",
    "row_list_bytes",
    "rows_head_bytes",
    "runs_on_gpu",
    "sum_of_squares",
    "unframe",
    "values_finite",
]
