"""Checks gluon_gc's library and the frameworks that are installed.

A framework is imported in a process of its own, because its import may end the process.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Iterator

from .. import env
from ..version import __version__
from . import ERROR, GOOD, WARNING, Finding

_IMPORT_SECONDS = 120
_TORCH, _OBSTORE, _NUMPY = (2, 4), (0, 11), (1, 24)
_MXNET = "1.9.1"


def findings() -> Iterator[Finding]:
    """Check the library, then each framework."""
    python = platform.python_version()
    yield Finding(GOOD, "gluon_gc", f"{__version__}, Python {python}, {Path(__file__).parents[1]}")
    yield _library()
    torch, mxnet = _version("torch"), _version("mxnet") or _version("mxnet-cu112")
    if torch is None and mxnet is None:
        remedy = "pip install torch, or mxnet==1.9.1 with Python 3.8 to 3.11"
        yield Finding(ERROR, "frameworks", "neither PyTorch nor MXNet is installed", remedy)
    if torch is not None:
        yield from _torch(torch)
    if mxnet is not None:
        yield from _mxnet(mxnet)
    horovod = _version("horovod")
    if horovod is not None and mxnet is not None:
        yield _imported("Horovod", horovod, ["-c", "import horovod.mxnet"])[0]
    yield from _mailbox()


def _library() -> Finding:
    try:
        from ..kernels.library import PATH, isas, names
    except (ImportError, OSError, env.ConfigurationError) as error:
        remedy = "pip install gluon_gc again, and start Python outside of its source folder"
        return Finding(ERROR, "library", str(error), remedy)
    text = f"{PATH.name}: {len(names())} compressors, instruction set {isas()[-1]}"
    return Finding(GOOD, "library", text)


def _torch(version: str) -> Iterator[Finding]:
    if _numbers(version) < _TORCH:
        remedy = "pip install --upgrade torch"
        yield Finding(ERROR, "PyTorch", f"{version} is older than 2.4", remedy)
        return
    finding, facts = _imported("PyTorch", version, ["-m", "gluon_gc.torch.facts"])
    yield finding
    if facts:
        yield from _gpus(facts["gpus"])


def _gpus(gpus: dict[str, str]) -> Iterator[Finding]:
    for name, problem in gpus.items():
        if problem:
            remedy = "install gluon_gc where CUDA's compiler or NVRTC is found: docs/guides/gpu.md"
            text = f"gradients are compressed on the CPU: {problem}"
            yield Finding(WARNING, name, text, remedy)
        else:
            yield Finding(GOOD, name, "gradients are compressed on the GPU")
    if not gpus:
        present = sorted(Path("/dev").glob("nvidia[0-9]*"))
        if present:
            text = f"PyTorch finds no GPU, but {present[0]} exists"
            yield Finding(WARNING, "GPU", text, "install a build of PyTorch with CUDA")
        else:
            yield Finding(GOOD, "GPU", "none")


def _mxnet(version: str) -> Iterator[Finding]:
    numpy = _version("numpy") or "0"
    if version != _MXNET:
        yield Finding(ERROR, "MXNet", f"{version} is not {_MXNET}", f"pip install mxnet=={_MXNET}")
    elif _numbers(numpy) >= _NUMPY:
        text = f"{version} cannot be imported with NumPy {numpy}"
        yield Finding(ERROR, "MXNet", text, "pip install 'numpy<1.24'")
    else:
        yield _imported("MXNet", version, ["-m", "gluon_gc.mxnet.facts"])[0]


def _mailbox() -> Iterator[Finding]:
    version, is_needed = _version("obstore"), env.is_set("GLUON_GC_MAILBOX")
    remedy = "pip install 'obstore>=0.11'"
    if version is None and is_needed:
        text = "GLUON_GC_MAILBOX is set, but obstore is not installed"
        yield Finding(ERROR, "mailbox", text, remedy)
    elif version is not None and _numbers(version) < _OBSTORE:
        yield Finding(ERROR if is_needed else WARNING, "mailbox", f"obstore {version}", remedy)
    elif version is not None:
        yield Finding(GOOD, "mailbox", f"obstore {version}")


def _imported(name: str, version: str, words: list[str]) -> tuple[Finding, dict[str, Any]]:
    """Import a framework in another Python; return the finding and what that Python prints."""
    environ = {key: value for key, value in os.environ.items() if key != "DMLC_ROLE"}
    try:
        done = subprocess.run(
            [sys.executable, *words],
            env=environ,
            capture_output=True,
            text=True,
            timeout=_IMPORT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        text = f"{version}: the import takes more than {_IMPORT_SECONDS} s"
        return Finding(ERROR, name, text, f"try python {shlex.join(words)}"), {}
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        remedy = f"for the whole error: python {shlex.join(words)}"
        return Finding(ERROR, name, f"{version}: {reason}", remedy), {}
    facts = json.loads((done.stdout.splitlines() or ["{}"])[-1])
    return Finding(GOOD, name, ", ".join([version, *facts.get("facts", ())])), facts


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version."""
    first, second = (re.findall(r"\d+", version) + ["0", "0"])[:2]
    return int(first), int(second)
