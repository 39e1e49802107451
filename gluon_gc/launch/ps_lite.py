"""ps-lite as it is in MXNet's library, taken from there without MXNet's Python.

MXNet's Python takes two seconds to import, which the scheduler does not need.
"""

from __future__ import annotations

import ctypes
import importlib.util
import threading
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Callable

from .leaving import die

_CONTROLLER_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


def is_installed() -> bool:
    """Whether there is an MXNet, which may still fail to be imported."""
    return importlib.util.find_spec("mxnet") is not None


@lru_cache(maxsize=None)
def library() -> ctypes.CDLL:
    """MXNet's library, the one that MXNet's Python loads.

    Raises
    ------
    ImportError
        MXNet is not installed.
    """
    mxnet = importlib.util.find_spec("mxnet")
    path = mxnet and Path(mxnet.origin).with_name("libinfo.py")
    if path is None or not path.exists():
        import_module("gluon_gc.mxnet")  # an error, which says what to install
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
    """The handle of a node whose role and cluster are in the environment."""
    handle = ctypes.c_void_p()
    _check(library().MXKVStoreCreate(b"dist", ctypes.byref(handle)))
    return handle


def serve(
    node: ctypes.c_void_p,
    control: Callable[[int, bytes, object], None],
    wait: Callable[[], None],
) -> None:
    """Serve until `wait` returns; `control` takes the commands that workers send.

    ps-lite's own end is left out: it waits for all nodes, also for those that are gone, and counts
    some twice where PS_RESEND is set. A thread stays in ps-lite, so that `leaving.end` must end the
    process.
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
    """Let a worker leave without the others, when its handle is freed (see `serve`)."""
    _check(library().MXKVStoreSetBarrierBeforeExit(node, 0))
