"""The version of gluon_gc. Workers and servers compare it when they connect."""

__version__ = "0.1.0"
