"""Calls ps-lite in MXNet's C++ library, without MXNet's Python package.

The scheduler does not need that package, and importing it takes 2 seconds.
"""

from __future__ import annotations

import ctypes
import importlib.util
import threading
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Callable

from ..leaving import die

_CONTROLLER_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


def is_installed() -> bool:
    """Whether MXNet is installed. Importing it may still fail."""
    return importlib.util.find_spec("mxnet") is not None


@lru_cache(maxsize=None)
def library() -> ctypes.CDLL:
    """The same library that MXNet's Python package loads. ImportError: MXNet is not installed."""
    mxnet = importlib.util.find_spec("mxnet")
    path = mxnet and Path(mxnet.origin).with_name("libinfo.py")
    if path is None or not path.exists():
        import_module("gluon_gc.mxnet")  # raises the ImportError that says how to install MXNet
    spec = importlib.util.spec_from_file_location("mxnet_libinfo", path)
    libinfo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(libinfo)
    loaded = ctypes.CDLL(libinfo.find_lib_path()[0])
    loaded.MXGetLastError.restype = ctypes.c_char_p
    return loaded


def _check(status: int) -> None:
    if status != 0:
        raise RuntimeError(library().MXGetLastError().decode())


def create() -> ctypes.c_void_p:
    """Create a node of ps-lite from the environment, and return its handle."""
    handle = ctypes.c_void_p()
    _check(library().MXKVStoreCreate(b"dist", ctypes.byref(handle)))
    return handle


def serve(
    node: ctypes.c_void_p, control: Callable[[int, bytes, object], None], wait: Callable[[], None]
) -> None:
    """Serve until `wait` returns. Then the process must end by `leaving.end`.

    ps-lite's own shutdown is not used: it waits for all nodes, even for those that are gone, and
    counts some nodes twice if PS_RESEND is set. So a thread remains inside ps-lite. `control`
    receives the commands that workers send.
    """
    controller = _CONTROLLER_TYPE(control)

    def run() -> None:
        try:
            _check(library().MXKVStoreRunServer(node, controller, None))
        except RuntimeError as error:
            die(str(error))

    threading.Thread(target=run, name="ps-lite", daemon=True).start()
    wait()


def leave_alone(node: ctypes.c_void_p) -> None:
    """Let a worker end without waiting for the others when its handle is freed (see `serve`)."""
    _check(library().MXKVStoreSetBarrierBeforeExit(node, 0))
