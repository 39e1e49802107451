"""Checkpoints: their file, whether they fit, and how they are cut and shared out anew."""

from .file import STREAM, Layout, Place, States, header, is_pickle, read, replacing, write

__all__ = [
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
