"""Reads and writes the file of DistributedTrainer.save_states, and replaces files atomically.

The file has, in this order:

- the line ``gluon_gc states 4``, where 4 is the number of the format;
- the header, one line of JSON;
- the arrays, in the order of the header, C-contiguous, little-endian;
- the optimizer's states, as MXNet pickles them. Only this part can run code when it is loaded;
- the XXH3 checksum of all this, 16 bytes. It detects damage, but not manipulation.

The keys of the header:

- ``world_size``, ``rank``, ``momentum``, ``algorithm``: they must fit the trainer that loads it;
- ``parameters``: the ``name``, ``shape``, ``dtype`` and ``compression`` of each, which must fit
  too. Also ``position`` in the network's order, ``senders``, the number of nodes that
  kept a residual, and ``learning_rate``, the rate when the gradient was last exchanged, or null
  if the residual does not follow it;
- ``steps``: the number of steps so far; ``optimizer_bytes``: the length of the optimizer's states;
- ``arrays``: for each array the fields of its `Key`, the dtype and the shape.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
from typing import Any, BinaryIO, Dict, Iterable, Iterator, Mapping, NamedTuple, Tuple

import numpy as np
import xxhash

_NAME, _FORMAT = "gluon_gc states", 4
_DIGEST_BYTES = 16
_BLOCK_BYTES = 2**22  # bytes that are read or written at once
LOCAL, OF_ALL = "local", "trainer"
"""Values of `Key.node`: arrays of one worker alone, and arrays that are equal on all workers."""
STREAM = "stream"
"""The value of `Key.what` for random streams."""
_PICKLE = b"\x80"  # the first byte of a pickle


class Key(NamedTuple):
    """Identifies an array of a checkpoint.

    node: the owner of the array.

    - "worker": each worker has its own, and only the sum over workers matters.
    - "aggregator": the node that sums payloads. Only its states may consist of several arrays.
    - "trainer": equal on all workers.
    - "local": one worker alone.

    what: the kind of the array.

    - "residual" or "momentum": flat.
    - "stream": uint64, shape (chunks, 4). Each row has the first element of a chunk, the end, and
      the two words of its random stream.
    - With the nodes "trainer" and "local", "parameter" or a kind of an algorithm's state, in the
      shape of the parameter.

    In a file, the first three begin with the kind of an algorithm's round: "difference/residual".
    """

    tensor: int | str  # in a file the parameter's number, elsewhere the tensor's name
    node: str
    what: str
    begin: int = 0  # the first element of the array in the tensor


Arrays = Dict[Key, np.ndarray]
Layout = Dict[Key, Tuple[Tuple[int, ...], str]]
"""Shape and dtype of each array."""


class States(NamedTuple):
    """The contents of a file: header, arrays (read-only), and the optimizer's pickled states."""

    header: dict[str, Any]
    arrays: Arrays
    optimizer: bytes


@contextlib.contextmanager
def replacing(name: str) -> Iterator[str]:
    """Replace a file atomically. Yields the name of a temporary file to write.

    After the block, the temporary file is flushed to disk and renamed to `name`. If anything fails
    before, the old file stays as it is.

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


def write(
    name: str,
    header: Mapping[str, Any],
    layout: Layout,
    arrays: Iterable[tuple[Key, np.ndarray]],
    optimizer: bytes,
) -> None:
    """Write a file, and replace an old one atomically.

    `header` is without ``arrays`` and ``optimizer_bytes``. The arrays, in the order of `layout`,
    are taken one at a time, so that not all of them need be in memory.
    """
    table = [
        [*key, np.dtype(dtype).newbyteorder("<").str, shape]
        for key, (shape, dtype) in layout.items()
    ]
    whole = {**header, "arrays": table, "optimizer_bytes": len(optimizer)}
    digest = xxhash.xxh3_128()
    with replacing(name) as new, open(new, "wb") as file:

        def put(part: Any) -> None:
            for block in _blocks(part):
                file.write(block)
                digest.update(block)

        put(f"{_NAME} {_FORMAT}\n{json.dumps(whole)}\n".encode())
        expected = iter(layout.items())
        for key, array in arrays:
            assert (key, (array.shape, array.dtype.name)) == next(expected, None)
            put(np.ascontiguousarray(array, array.dtype.newbyteorder("<")))
        put(optimizer)
        file.write(digest.digest())


def _blocks(part: Any) -> Iterator[memoryview]:
    """The bytes of an array in blocks that fit into the cache, for writing and then hashing."""
    view = memoryview(part)
    if not view.nbytes:
        return
    view = view.cast("B")
    for begin in range(0, len(view), _BLOCK_BYTES):
        yield view[begin : begin + _BLOCK_BYTES]


def is_pickle(name: str) -> bool:
    """Whether a file begins like a pickle, as the files of gluon.Trainer.save_states do."""
    with open(name, "rb") as file:
        return file.read(1) == _PICKLE


def read(name: str) -> States:
    """Read and check a file; ValueError if it is damaged, or not a file of `write`.

    Nothing is unpickled. Arrays are mapped, and read when they are used.
    """
    with open(name, "rb") as file:
        begin = _begun(name, file)
        size = os.fstat(file.fileno()).st_size
        if not _is_whole(file, size):
            raise ValueError(f"'{name}' is damaged: its checksum does not fit its {size} bytes")
        file.seek(begin)
        try:
            return _contents(file)
        except Exception as error:  # a wrong header may cause any error
            problem = f"'{name}' is damaged: its header does not fit its contents ({error!r})"
            raise ValueError(problem) from None


def header(name: str) -> dict[str, Any]:
    """Read the header of a file, without checking the rest. Raise ValueError if it has none."""
    with open(name, "rb") as file:
        _begun(name, file)
        return json.loads(file.readline())


def _begun(name: str, file: BinaryIO) -> int:
    """Read and check the first line of a file. Return the position of the header."""
    kind, _, number = file.readline(100).rstrip(b"\n").decode("latin-1").rpartition(" ")
    if kind != _NAME:
        raise ValueError(f"'{name}' is not a file of DistributedTrainer.save_states")
    if number != str(_FORMAT):
        raise ValueError(f"'{name}' has format {number}, but this gluon_gc reads {_FORMAT}")
    return file.tell()


def _contents(file: BinaryIO) -> States:
    """Read the contents of a file, from the header on."""
    header = json.loads(file.readline())
    at = file.tell()
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    arrays = {}
    for *key, dtype, shape in header.pop("arrays"):
        array = np.frombuffer(mapped, np.dtype(dtype), math.prod(shape), at).reshape(shape)
        arrays[Key(*key)] = array
        at += array.nbytes
    return States(header, arrays, mapped[at : at + header.pop("optimizer_bytes")])


def _is_whole(file: BinaryIO, size: int) -> bool:
    """Whether the last bytes of a file are the checksum of the bytes before."""
    file.seek(0)
    digest, left = xxhash.xxh3_128(), size - _DIGEST_BYTES
    block = memoryview(bytearray(min(size, _BLOCK_BYTES)))
    while left > 0:
        count = file.readinto(block[: min(left, len(block))])
        if not count:
            return False
        digest.update(block[:count])
        left -= count
    return file.read(_DIGEST_BYTES) == digest.digest()
