"""The compiled library (libgluon_gc.so), called on NumPy arrays. Needs no framework."""

from .batch import Batch, StateOfCall, StateReference
from .codec import Codec, State, addresses, as_text
from .codec import Layout as Layout  # a type
from .framing import (
    frame,
    frame_bytes,
    frame_words,
    message_rows,
    row_list_bytes,
    rows_head_bytes,
    unframe,
)
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
    runs_on_gpu,
)
from .low_rank import accumulate, multiply, orthonormalise, project
from .memory import aligned_zeros
from .stream import jump, jump_to_worker, position
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
    "aligned_zeros",
    "as_text",
    "compressors",
    "frame",
    "frame_bytes",
    "frame_words",
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
