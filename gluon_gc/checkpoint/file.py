"""The file that DistributedTrainer.save_states writes, and files that are whole or not there.

One behind the other it has

- the line ``gluon_gc states 4``, whose number is that of the format;
- the header, a line of JSON: what must fit the trainer that loads it (``world_size``, ``rank``,
  ``momentum``, ``algorithm``, and of each parameter ``name``, ``shape``, ``dtype``,
  ``compression`` and ``senders``), then ``steps``, ``optimizer_bytes`` and the ``arrays``: of each
  the parameter's number, who carries it over, what it is, the element that it begins at, dtype,
  shape. Each parameter has the ``learning_rate`` when its gradient was last exchanged as well;
- the arrays, in the order of the header, row by row, little-endian;
- the optimizer's states, as MXNet pickles them: the only part that can run code;
- the XXH3 of all this, 16 bytes, which finds damage, not deceit.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
from typing import Any, BinaryIO, Dict, Iterable, Iterator, Mapping, NamedTuple, Tuple, Union

import numpy as np
import xxhash

_NAME, _FORMAT = "gluon_gc states", 4
_DIGEST_BYTES = 16
_BLOCK_BYTES = 2**22  # that are read or written at once
LOCAL, OF_ALL = "local", "trainer"
"""Nodes, as `Place.node`: one worker alone, and all workers, whose arrays are equal."""
STREAM = "stream"
"""What a random stream is, as `Place.what`."""
_PICKLE = b"\x80"  # the first byte of one


class Place(NamedTuple):
    """What an array is of.

    Parameters
    ----------
    tensor : int or str
        The parameter's number in a file; what a store calls its gradient.
    node : str
        Who carries it over: "worker", whose arrays count as shares of a sum over workers,
        "aggregator", "trainer", whose are equal on all workers, or "local": one worker alone.
    what : str
        "residual" or "momentum", flat; "stream": of each chunk where it begins and ends, and the
        two words of its random stream, uint64, shape (chunks, 4). In the file, the kind of an
        algorithm's round is in front of these, as in "difference/residual". A trainer's and a
        local array have the shape of the parameter: "parameter", or a kind of an algorithm's state.
    begin : int
        Which element of the tensor it begins at. Only an aggregator's may be in several arrays.
    """

    tensor: Union[int, str]
    node: str
    what: str
    begin: int = 0


Layout = Dict[Place, Tuple[Tuple[int, ...], str]]
"""Shape and dtype of each array."""


class States(NamedTuple):
    """What a file holds: the header, the arrays, read-only, and the optimizer's states."""

    header: Dict[str, Any]
    arrays: Dict[Place, np.ndarray]
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


def write(
    name: str,
    header: Mapping[str, Any],
    layout: Layout,
    arrays: Iterable[Tuple[Place, np.ndarray]],
    optimizer: bytes,
) -> None:
    """Write such a file, in the place of what is there.

    The arrays are taken one by one, in the order of their layout.
    """
    table = [
        [*place, np.dtype(dtype).newbyteorder("<").str, shape]
        for place, (shape, dtype) in layout.items()
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
        for place, array in arrays:
            assert (place, (array.shape, array.dtype.name)) == next(expected, None)
            put(np.ascontiguousarray(array, array.dtype.newbyteorder("<")))
        put(optimizer)
        file.write(digest.digest())


def _blocks(part: Any) -> Iterator[memoryview]:
    """What is in memory, in blocks that the processor still has after it has written them."""
    view = memoryview(part)
    if not view.nbytes:
        return
    view = view.cast("B")
    for begin in range(0, len(view), _BLOCK_BYTES):
        yield view[begin : begin + _BLOCK_BYTES]


def is_pickle(name: str) -> bool:
    """Whether a file begins as a pickle does, as one of gluon.Trainer.save_states."""
    with open(name, "rb") as file:
        return file.read(1) == _PICKLE


def read(name: str) -> States:
    """Read such a file, of which nothing is unpickled; arrays are read when they are used.

    Raises
    ------
    ValueError
        It is not one, or of another format, or damaged.
    """
    with open(name, "rb") as file:
        begin = _begun(name, file)
        size = os.fstat(file.fileno()).st_size
        if not _is_whole(file, size):
            raise ValueError(f"'{name}' is damaged: its checksum does not fit its {size} bytes")
        file.seek(begin)
        try:
            return _contents(file)
        except Exception as error:  # a header may be anything
            problem = f"'{name}' is damaged: its header does not fit it ({error!r})"
            raise ValueError(problem) from None


def header(name: str) -> Dict[str, Any]:
    """The header of such a file, which may be damaged; ValueError if it has none."""
    with open(name, "rb") as file:
        _begun(name, file)
        return json.loads(file.readline())


def _begun(name: str, file: BinaryIO) -> int:
    """Read the first line of a file, which must be right; where the header begins."""
    kind, _, number = file.readline(100).rstrip(b"\n").decode("latin-1").rpartition(" ")
    if kind != _NAME:
        raise ValueError(f"'{name}' is not a file of DistributedTrainer.save_states")
    if number != str(_FORMAT):
        raise ValueError(f"'{name}' has format {number}, but this gluon_gc reads {_FORMAT}")
    return file.tell()


def _contents(file: BinaryIO) -> States:
    """What a file has from its header on."""
    header = json.loads(file.readline())
    at = file.tell()
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    arrays = {}
    for *place, dtype, shape in header.pop("arrays"):
        array = np.frombuffer(mapped, np.dtype(dtype), math.prod(shape), at).reshape(shape)
        arrays[Place(*place)] = array
        at += array.nbytes
    return States(header, arrays, mapped[at : at + header.pop("optimizer_bytes")])


def _is_whole(file: BinaryIO, size: int) -> bool:
    """Whether the last bytes of a file are the digest of those before."""
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
