"""Checks the limits of this machine."""

from __future__ import annotations

import os
import resource
from typing import Iterator

from .. import env
from . import GOOD, WARNING, Finding

_FILES = 1024
_SHARED_BYTES = 256 * 2**20
_SHARED = "/dev/shm"


def findings() -> Iterator[Finding]:
    """Check the processor's cores, memory, open files and shared memory."""
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    yield Finding(GOOD, "machine", f"{env.cores()} cores, {_gigabytes(pages * page_bytes)} memory")
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"a process may open {files}"
    if files < _FILES:
        remedy = f"ulimit -n {_FILES}" + ("" if most >= _FILES else ", as root")
        text += ": each connection, file and thread pool needs some"
        yield Finding(WARNING, "open files", text, remedy)
    else:
        yield Finding(GOOD, "open files", text)
    yield _shared_memory()


def _shared_memory() -> Finding:
    try:
        shared = os.statvfs(_SHARED)
    except OSError as error:
        remedy = f"mount -t tmpfs tmpfs {_SHARED}"
        return Finding(WARNING, _SHARED, f"{error.strerror}: loaders of data need it", remedy)
    free = shared.f_bavail * shared.f_frsize
    if free < _SHARED_BYTES:
        text = f"{_gigabytes(free)} free: NCCL and PyTorch's DataLoader with workers need more"
        return Finding(WARNING, _SHARED, text, "docker run --shm-size=2g, or remove old files")
    return Finding(GOOD, _SHARED, f"{_gigabytes(free)} free")


def _gigabytes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
