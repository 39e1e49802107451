"""What any codec's decoding must do, given what its payloads decode to."""

import numpy as np
from hypothesis import strategies as st

from . import arrays

counts = st.integers(0, 5)
paddings = st.sampled_from([0, 1, 60])


def check_decoding(codec, payload, expected, seed, guarded, how, **options):
    """A payload is valid, decodes to ``expected``, and adding adds that to awkward values."""
    size, dtype = expected.size, expected.dtype.type
    payload, start = guarded.copy(payload), arrays.awkward(size, dtype, seed)
    assert codec.valid(payload, size, dtype, isa=how["isa"], **options)

    out = guarded.empty(size, dtype)
    codec.decompress(payload, size, dtype, out=out, **how, **options)
    added = codec.decompress_add(payload, guarded.copy(start), **how, **options)

    assert arrays.same_bits(out, expected)
    assert np.array_equal(added, start + expected)
    guarded.check()


def check_sum(codec, size, dtype, encode, count, padding, guarded, how, **options):
    """Rows of payloads decode to the sum of what each decodes to, added in their order.

    ``encode(i)`` gives the bytes in use of payload i, and what it decodes to.
    """
    stride = codec.capacity(size, dtype, **options) + padding
    payloads = np.full((count, stride), 255, np.uint8)
    expected = np.zeros(size, dtype)
    for i, row in enumerate(payloads):
        payload, decoded = encode(i)
        row[: payload.size] = payload
        expected = decoded if i == 0 else expected + decoded

    rows = guarded.copy(payloads.ravel()).reshape(payloads.shape)
    out = guarded.empty(size, dtype)
    codec.decompress_sum(rows, size, dtype, out=out, **how, **options)

    assert arrays.same_bits(out, expected)
    guarded.check()
