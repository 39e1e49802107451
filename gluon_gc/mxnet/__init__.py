"""The MXNet Gluon front end: all public names of gluon_gc, as in byteps.mxnet."""

import sys
from typing import Any

import gluon_gc

_INSTALL = "install gluon_gc with pip install '.[mxnet]', or '.[cu112]' for CUDA 11.2"


def _import_mxnet() -> None:
    """Import MXNet. If that fails, the ImportError says what to install."""
    if sys.version_info >= (3, 12):
        version = ".".join(map(str, sys.version_info[:2]))
        raise ImportError(
            f"MXNet 1.9.1 needs Python 3.8 to 3.11, got {version}; gluon_gc.torch needs no MXNet"
        )
    try:
        import mxnet  # noqa: F401
    except ModuleNotFoundError as error:
        raise ImportError(f"gluon_gc needs MXNet 1.9.1 ({error}): {_INSTALL}") from None
    except AttributeError:
        import numpy

        if tuple(map(int, numpy.__version__.split(".")[:2])) < (1, 24):
            raise
        raise ImportError(
            f"MXNet 1.9.1 needs numpy<1.24, got {numpy.__version__}: {_INSTALL}"
        ) from None


_import_mxnet()

__all__ = gluon_gc.__all__


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'gluon_gc.mxnet' has no attribute '{name}'")
    return getattr(gluon_gc, name)


def __dir__() -> list:
    return __all__
