"""The MXNet Gluon front end: all public names of gluon_gc, as in byteps.mxnet."""

from typing import Any

import gluon_gc

from .requirements import import_mxnet

import_mxnet()

__all__ = gluon_gc.__all__


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'gluon_gc.mxnet' has no attribute '{name}'")
    return getattr(gluon_gc, name)


def __dir__() -> list:
    return __all__
