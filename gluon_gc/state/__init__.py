"""Checkpoints: the file format, the checks when one is loaded, and the redistribution of states."""

from .file import (
    LOCAL,
    OF_ALL,
    STREAM,
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
    "Layout",
    "Place",
    "States",
    "header",
    "is_pickle",
    "read",
    "replacing",
    "write",
]
