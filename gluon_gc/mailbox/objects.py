"""The objects of a run: their names in the store, and their bytes.

An object has a header, which is a dict that JSON can hold, and a body of any bytes. In the store it
is: the magic number, a checksum of all that follows, the header's length, the header, the body.
"""

from __future__ import annotations

import json
import re
import struct
from typing import Any, NamedTuple, Union

import xxhash

_MAGIC = b"GGC mailbox 1\n"
_DIGEST_BYTES = 16
_LENGTH = struct.Struct("<I")
_DIGITS = 8  # of a round's number in names, so that names are in the order of the rounds
Bytes = Union[bytes, bytearray, memoryview]

JOB, SHARDS = "job", "shards"


class DamagedError(ValueError):
    """An object is not what was written: it was cut short or altered, or is another program's."""


class Object(NamedTuple):
    """The contents of an object, and the checksum of both as hexadecimal text."""

    header: dict[str, Any]
    body: memoryview
    digest: str


def pack(header: dict[str, Any], *body: Bytes) -> bytes:
    """Return the bytes of an object with this header, and a body that is joined from parts."""
    text = json.dumps(header).encode()
    parts = (_LENGTH.pack(len(text)), text, *body)
    checksum = xxhash.xxh3_128()
    for part in parts:
        checksum.update(part)
    return b"".join((_MAGIC, checksum.digest(), *parts))


def unpack(name: str, data: Bytes) -> Object:
    """Read the bytes of an object. DamagedError, which names it, if it is not what was written."""
    view = memoryview(data)
    begin = len(_MAGIC) + _DIGEST_BYTES
    checksum, rest = view[len(_MAGIC) : begin], view[begin:]
    if view[: len(_MAGIC)] != _MAGIC or xxhash.xxh3_128_digest(rest) != checksum:
        raise DamagedError(f"object '{name}' is damaged: it was cut short or altered")
    (length,) = _LENGTH.unpack_from(rest)
    end = _LENGTH.size + length
    header = json.loads(bytes(rest[_LENGTH.size : end]))
    return Object(header, rest[end:], checksum.hex())


def rounds_folder(kind: str) -> str:
    return f"{kind}/rounds/"


def round_folder(kind: str, number: int) -> str:
    return f"{rounds_folder(kind)}{number:0{_DIGITS}}/"


def result_name(kind: str, number: int) -> str:
    return f"{round_folder(kind, number)}result"


def payloads_folder(kind: str, number: int) -> str:
    return f"{round_folder(kind, number)}payloads/"


def payload_name(kind: str, number: int, worker: str) -> str:
    return f"{payloads_folder(kind, number)}{worker}"


def leaver_name(kind: str, number: int, worker: str) -> str:
    """An object of a worker that leaves before a round."""
    return f"{round_folder(kind, number)}leavers/{worker}"


def is_worker(name: str) -> bool:
    """Whether this is a worker's name, and not that of a file that some system has put there."""
    return re.fullmatch(r"[\w.-]+-\d+-[0-9a-f]{6}", name) is not None


def states_folder(kind: str) -> str:
    return f"{kind}/states/"


def state_name(kind: str, number: int) -> str:
    return f"{states_folder(kind)}{number:0{_DIGITS}}"


def last_part(name: str) -> str:
    """The last part of a name: a worker of a payload, or the number of a state as text."""
    return name.rstrip("/").rpartition("/")[2]
