"""The text of the language models: the source of Python's own standard library, in bytes.

Every machine that runs the examples has this text. Workers must have the same version of Python.
"""

from __future__ import annotations

import os
import sysconfig
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

_LEFT_OUT = {
    # Packages that some distributions do not install with Python.
    *("dist-packages", "ensurepip", "idlelib", "lib2to3", "site-packages", "tkinter", "turtledemo"),
    # Tests, and tables.
    *("encodings", "pydoc_data", "test", "tests"),
}
_MADE_HERE = ("config-", "_sysconfigdata")  # names of files that differ between machines
_VALIDATION = 20  # one file in 20 is for validation


class Text(NamedTuple):
    """The text of one worker.

    Attributes
    ----------
    training : ndarray
        The bytes of this worker's share of the training files, uint8.
    validation : ndarray
        The bytes of all validation files, uint8, the same on all workers.
    digest : int
        A 32-bit checksum of the names and sizes of all files.
    """

    training: np.ndarray
    validation: np.ndarray
    digest: int


def load_text(rank: int, size: int, folder: Path | None = None) -> Text:
    """Read the validation files, and this worker's share of the training files.

    Parameters
    ----------
    rank, size : int
        The rank of this worker, and the number of workers.
    folder : Path, optional
        The folder of the files. Default: the standard library of this Python.
    """
    folder = folder or Path(sysconfig.get_paths()["stdlib"])
    files = _files(folder)
    names = [f"{file.relative_to(folder).as_posix()} {file.stat().st_size}" for file in files]
    validation = files[::_VALIDATION]
    training = [file for i, file in enumerate(files) if i % _VALIDATION]
    share = training[rank::size]
    if not share:
        raise ValueError(f"{folder} has {len(training)} training files, too few for {size} workers")
    return Text(_bytes(share), _bytes(validation), zlib.crc32("\n".join(names).encode()))


def require_same_text(text: Text, total: float, size: int) -> None:
    """Raise ValueError unless all workers read the same files.

    Parameters
    ----------
    text : Text
        The text of this worker.
    total : float
        The sum of the digests of all workers.
    size : int
        The number of workers.
    """
    if total != text.digest * size:
        raise ValueError("the workers have different standard libraries: use one version of Python")


def _files(folder: Path) -> list[Path]:
    """Return the files in the order of their names."""
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [f for f in folders if f not in _LEFT_OUT and not f.startswith(_MADE_HERE)]
        named = (n for n in names if n.endswith(".py") and not n.startswith(_MADE_HERE))
        found += [Path(parent, name) for name in named]
    return sorted(found, key=lambda file: file.relative_to(folder).as_posix())


def _bytes(files: list[Path]) -> np.ndarray:
    return np.frombuffer(b"".join(file.read_bytes() for file in files), np.uint8)


def training_windows(text: Text, batch_size: int, context: int, seed: list[int]) -> np.ndarray:
    """Return the windows of one step, uint8 of shape (batch_size, context + 1).

    Parameters
    ----------
    text : Text
    batch_size : int
    context : int
        The number of bytes that a model reads. It predicts each window's bytes from the second on.
    seed : list of int
        The run's seed, the step and the worker's rank, which determine the windows.
    """
    begins = np.random.default_rng(seed).integers(len(text.training) - context, size=batch_size)
    return _windows(text.training, begins, context)


def validation_windows(text: Text, count: int, context: int, rank: int, size: int) -> np.ndarray:
    """Return this worker's share of `count` windows, which are at equal distances.

    The result is uint8 of shape (n, context + 1). The n of all workers add up to `count`.
    """
    if count < size:
        raise ValueError(f"--eval-windows must be at least {size}, for {size} workers, got {count}")
    begins = np.linspace(0, len(text.validation) - context - 1, count).astype(np.int64)
    return _windows(text.validation, begins[rank::size], context)


def _windows(data: np.ndarray, begins: np.ndarray, context: int) -> np.ndarray:
    return data[begins[:, None] + np.arange(context + 1)]
