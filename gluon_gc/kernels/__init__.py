"""The compiled library on NumPy arrays; needs no MXNet."""

from .batch import Batch
from .codec import Codec, State, as_text, position, runs_on_gpu
from .codec import Layout as Layout  # a type
from .framing import frame, frame_bytes, frame_words, framed, message_rows, unframe
from .half import float_from_half, half_from_float
from .library import PATH, Position, Rows, Status, Traits, compressors, isas, library, names
from .stream import draw, jump, jump_to_worker
from .values import sum_of_squares, values_finite

__all__ = [
    "PATH",
    "Batch",
    "Codec",
    "Position",
    "Rows",
    "State",
    "Status",
    "Traits",
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
    "names",
    "position",
    "runs_on_gpu",
    "sum_of_squares",
    "unframe",
    "values_finite",
]
