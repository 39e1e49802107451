"""Damaged files of save_states are refused without using much memory.

A file with a correct checksum may be read, if its contents are valid.
"""

import tracemalloc
from contextlib import suppress

import pytest
import xxhash
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gluon_gc import state as checkpoint
from tests.mxnet.states.test_states import trained

MARGIN = 1 << 20
DIGEST_BYTES = 16
KEYS = [b'"arrays"', b'"optimizer_bytes"', b'"parameters"', b'"<f4"', b"[", b"]", b"{", b"}"]
VALUES = [b"-1", b"0", b"99999999999", b"1e400", b"null", b'"|O"', b'"<U9"', b'"V"', b"[" * 9999]
places = st.floats(0, 1, exclude_max=True)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Return a file to overwrite, and its original contents."""
    file = tmp_path_factory.mktemp("states") / "states"
    trained()[1].save_states(str(file))
    return file, file.read_bytes()


@st.composite
def damages(draw):
    """Draw functions that damage bytes."""
    kind = draw(st.sampled_from(["flip", "cut", "splice", "number", "word"]))
    at, to, size = draw(places), draw(places), draw(st.integers(1, 40))
    instead = draw(st.sampled_from(VALUES))

    def number(data):
        """Replace a number in the header."""
        digits = [i for i, byte in enumerate(data[:2000]) if chr(byte).isdigit()]
        if not digits:
            return data
        first = last = digits[int(at * len(digits))]
        while chr(data[last]).isdigit():
            last += 1
        return data[:first] + instead + data[last:]

    def word(data):
        return data.replace(draw_key, instead, 1)

    draw_key = draw(st.sampled_from(KEYS))

    def damage(data):
        i, j = int(at * len(data)), int(to * len(data))
        if kind == "flip":
            return data[:i] + bytes([data[i] ^ size]) + data[i + 1 :] if data else data
        if kind == "cut":
            return data[:i] + data[i + size :]
        if kind == "splice":
            return data[:i] + data[j : j + size] + data[i:]
        return number(data + b" ") if kind == "number" else word(data)

    return damage


def sealed(data):
    """Return the data with a correct checksum at its end."""
    body = data[:-DIGEST_BYTES]
    return body + xxhash.xxh3_128(body).digest()


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(damages(), min_size=1, max_size=4), st.booleans())
def test_a_damaged_file_is_refused_as_such(file, damage, seal):
    path, data = file
    damaged = data
    for one in damage:
        damaged = one(damaged)
    if seal:  # so that the contents are checked too
        damaged = sealed(damaged)
    assume(damaged != data)
    path.write_bytes(damaged)
    tracemalloc.start()
    try:
        with suppress(ValueError):
            checkpoint.read(str(path))
            assert seal, "the damage has the checksum of the file"
    finally:
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert most < 8 * len(damaged) + MARGIN
