"""Checkpoints: their file, whether they fit, and how they are cut and shared out anew."""

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
