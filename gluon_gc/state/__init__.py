"""States that outlive a step: named arrays, their file, their checks, and who continues from them.

An array has a key (`Place`). `file` writes and reads the arrays of a worker, `chunks` joins and
cuts those of chunks, `fitting` checks whether they fit, and `division` divides them among workers.
"""

from .file import (
    LOCAL,
    OF_ALL,
    STREAM,
    Arrays,
    Layout,
    Place,
    States,
    header,
    is_pickle,
    read,
    replacing,
    write,
)

__all__ = [
    "LOCAL",
    "OF_ALL",
    "STREAM",
    "Arrays",
    "Layout",
    "Place",
    "States",
    "header",
    "is_pickle",
    "read",
    "replacing",
    "write",
]
