"""Imports MXNet, and says what to install if that fails."""

from __future__ import annotations

import sys

_INSTALL = "install gluon_gc with pip install '.[mxnet]', or '.[cu112]' for CUDA 11.2"


def import_mxnet() -> None:
    """Import MXNet."""
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
