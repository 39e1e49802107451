"""The file that DistributedTrainer.save_states writes, and files that are whole or not there.

One behind the other it has

- the line ``gluon_gc states 1``, whose number is that of the format;
- the header, a line of JSON: what must fit the trainer that loads it (``world_size``, ``rank``,
  ``momentum``, and of each parameter ``name``, ``shape``, ``dtype`` and ``compression``), then
  ``learning_rate``, the ``arrays`` (name, dtype, shape) and ``optimizer_bytes``;
- the arrays, in the order of the header, row by row, little-endian;
- the optimizer's states, as MXNet pickles them: the only part that can run code;
- the SHA-256 of all this, 32 bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any, Dict, Iterator, Mapping, NamedTuple, Tuple

import numpy as np

_NAME, _FORMAT = "gluon_gc states", 1
_DIGEST_BYTES = 32
_PICKLE = b"\x80"  # the first byte of one

Layout = Dict[str, Tuple[Tuple[int, ...], str]]
"""By the name of an array its shape and dtype."""


class States(NamedTuple):
    """What a file holds: the header, the arrays by name, read-only, and the optimizer's states."""

    header: Dict[str, Any]
    arrays: Dict[str, np.ndarray]
    optimizer: bytes


@contextlib.contextmanager
def replacing(name: str) -> Iterator[str]:
    """The name of a new file, which takes the place of `name` once it is written and on disk.

    If anything fails before that, what was there is left as it is.

    Examples
    --------
    >>> with replacing("net.params") as new:
    ...     net.save_parameters(new)
    """
    path = os.path.realpath(name)
    new = f"{path}.{os.getpid()}.tmp"
    try:
        yield new
        _to_disk(new)
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
        raise
    _to_disk(os.path.dirname(path))


def _to_disk(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(name: str, states: States) -> None:
    """Write such a file, in the place of what is there."""
    arrays = {key: _little_endian(array) for key, array in states.arrays.items()}
    header = {
        **states.header,
        "arrays": [[key, array.dtype.str, array.shape] for key, array in arrays.items()],
        "optimizer_bytes": len(states.optimizer),
    }
    start = f"{_NAME} {_FORMAT}\n{json.dumps(header)}\n".encode()
    digest = hashlib.sha256()
    with replacing(name) as new, open(new, "wb") as file:
        for part in (start, *(array.data for array in arrays.values()), states.optimizer):
            file.write(part)
            digest.update(part)
        file.write(digest.digest())


def _little_endian(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<"))


def read(name: str) -> States:
    """Read such a file, of which nothing is unpickled.

    Raises
    ------
    ValueError
        It is not one, or of another format, or damaged.
    """
    data = Path(name).read_bytes()
    first, _, rest = data.partition(b"\n")
    kind, _, number = first.decode("latin-1").rpartition(" ")
    if kind != _NAME:
        hint = "; it may be one of gluon.Trainer.save_states" if data[:1] == _PICKLE else ""
        raise ValueError(f"'{name}' is not a file of DistributedTrainer.save_states{hint}")
    if number != str(_FORMAT):
        raise ValueError(f"'{name}' has format {number}, but this gluon_gc reads {_FORMAT}")
    if hashlib.sha256(memoryview(data)[:-_DIGEST_BYTES]).digest() != data[-_DIGEST_BYTES:]:
        raise ValueError(f"'{name}' is damaged: its checksum does not fit its {len(data)} bytes")
    try:
        return _contents(data, *rest.split(b"\n", 1))
    except Exception as error:  # a header may be anything
        raise ValueError(f"'{name}' is damaged: its header does not fit it ({error!r})") from None


def _contents(data: bytes, line: bytes, behind: bytes) -> States:
    header, at = json.loads(line), len(data) - len(behind)
    arrays = {}
    for key, dtype, shape in header.pop("arrays"):
        count = math.prod(shape)
        arrays[key] = np.frombuffer(data, np.dtype(dtype), count, at).reshape(shape)
        at += arrays[key].nbytes
    return States(header, arrays, data[at : at + header.pop("optimizer_bytes")])


def check_header(name: str, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raise ValueError unless the header of a file has what is expected."""
    expected = json.loads(json.dumps(expected))
    for key in ("world_size", "rank", "momentum"):
        _check(name, key, found[key], expected[key])
    there, here = found["parameters"], expected["parameters"]
    _check(name, "number of parameters", len(there), len(here))
    for number, (a, b) in enumerate(zip(there, here)):
        for key in ("shape", "dtype", "compression"):
            what = f"{key} of parameter {number} ('{a['name']}' there, '{b['name']}' here)"
            _check(name, what, a[key], b[key])


def check_arrays(name: str, arrays: Mapping[str, np.ndarray], layout: Layout) -> None:
    """Raise ValueError unless a file's arrays are those of a layout."""
    there = {key: (array.shape, array.dtype.name) for key, array in arrays.items()}
    for key in sorted(there.keys() | layout.keys()):
        if there.get(key) != layout.get(key):
            values = [
                "{1} of shape {0}".format(*of[key]) if key in of else "missing"
                for of in (there, layout)
            ]
            raise ValueError(
                f"'{name}' does not fit: {key} is {values[0]} there, but {values[1]} here; it "
                "loads with the backend, the nodes and the BYTEPS_PARTITION_BYTES and "
                "BYTEPS_MIN_COMPRESS_BYTES that it was saved with"
            )


def _check(name: str, what: str, there: Any, here: Any) -> None:
    if there != here:
        raise ValueError(f"'{name}' does not fit: the {what} is {there} there, but {here} here")
