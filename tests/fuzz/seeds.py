"""The inputs that fuzzing starts from: payloads of the compressors' test examples."""

from __future__ import annotations

import itertools
import struct
from typing import Any, Iterator

import numpy as np

from gluon_gc import kernels
from tests.neutral.compressors.cases import accumulates, options_of
from tests.neutral.kernels.arrays import awkward

START = (0x243F6A8885A308D3, 0x13198A2E03707344)  # as in the harnesses
SIZES = (1, 40, 300, 70_144)
"""The last one is more than a block of dithering."""
MOST_BYTES = 2048
_PARTS, _PAYLOADS, _FRAMED_ROWS, _ROWS = range(4)  # the operators of messages.cpp


def inputs(name: str) -> Iterator[bytes]:
    """Yield the inputs of a harness."""
    return _messages() if name == "messages" else _decoder(name)


def _decoder(name: str) -> Iterator[bytes]:
    """Yield decoder.cpp's inputs: one payload, and two, with and without feedback and momentum."""
    more = ({}, {"mu": 0.9}) if accumulates(name) else ({}, {"ef": "corrected", "mu": 0.9})
    places = itertools.product(options_of(name), more, SIZES, ("float32", "float64"), (1, 2))
    for seed, (own, others, n, dtype, count) in enumerate(places):
        options = {**own, **others}
        codec = kernels.Codec(name, options, n, dtype)
        payloads = [_payload(codec, seed + i) for i in range(count)]
        if sum(map(len, payloads)) <= MOST_BYTES and (count == 1 or not codec.traits.summable):
            size = n if n < 256 else 0xE000 + n if n < 0xF00 else 0xFF00 + n // 512
            flags = (dtype == "float64") | count - 1 << 2
            settings = bytes([0, 4, 0])  # no draws before, scale 1, ratio 1
            head = struct.pack("<HB", size, flags) + settings
            yield _text(options) + head + _counted(payloads)


def _payload(codec: kernels.Codec, seed: int) -> bytes:
    values = awkward(codec.n, codec.dtype, seed)
    if codec.n > SIZES[-2]:
        values[np.arange(codec.n) % 9973 != 0] = 0  # so that the payload is short
    payload, status = codec.compress(values, codec.state(), kernels.position(START))
    return payload[: status.bytes].tobytes()


def _messages() -> Iterator[bytes]:
    """Yield messages.cpp's inputs: payloads of two chunks, or rows, from one node and from two."""
    for number, name in enumerate(kernels.names()):
        for options, count in itertools.product(options_of(name)[:4], (1, 2)):
            for operator in (_PARTS, _PAYLOADS, _FRAMED_ROWS, _ROWS):
                rows = operator in (_FRAMED_ROWS, _ROWS)
                sizes = (50, 3) if rows else (130, 7)
                shape = struct.pack("<HH15B", *sizes, 0, count - 1, *[0] * 13)
                make = _message_of_rows if rows else _message
                messages = [make(name, options, seed) for seed in range(count)]
                if operator == _ROWS:
                    messages = [message[4:] for message in messages]
                head = bytes([operator, number]) + _text(options) + shape
                if count == 1 or operator != _ROWS:
                    yield head + _counted(messages)


def _message(name: str, options: dict[str, Any], seed: int) -> bytes:
    """Return a message of two chunks."""
    codecs = [kernels.Codec(name, options, n) for n in (130, 7)]
    parts = b"".join([_payload(codec, seed) for codec in codecs])
    varies = codecs[0].length_at is not None
    return struct.pack("<I", 4 + len(parts)) + parts if varies else parts


def _message_of_rows(name: str, options: dict[str, Any], seed: int) -> bytes:
    """Return a message of three rows of a (50, 4) gradient; framed, a second length precedes it."""
    rows = np.array([2, 5 + seed, 49], "<u4")
    payload = _payload(kernels.Codec(name, options, 4 * rows.size), seed)
    body = struct.pack("<I", rows.size) + rows.tobytes() + payload
    return struct.pack("<I", 8 + len(body)) + struct.pack("<I", 4 + len(body)) + body


def _text(options: dict[str, Any]) -> bytes:
    return kernels.as_text(options).encode() + b"\0"


def _counted(parts: list[bytes]) -> bytes:
    """Concatenate parts, each after its length, except the last one."""
    before = [struct.pack("<H", len(part)) + part for part in parts[:-1]]
    return b"".join([*before, parts[-1]])
