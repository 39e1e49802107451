"""Framing: bytes as floats that pass through a server which adds 0.0 to them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluon_gc import kernels

from . import arrays

nbytes = st.one_of(
    st.integers(0, 300), st.sampled_from([59, 60, 61, 63, 64, 119, 120, 121, 124, 65_537, 200_003])
)


def bytes_like(nbytes, seed):
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def frame_in_numpy(payload):
    """The 30 bits of each word cut out of the stream of bits, one by one."""
    count = -(-8 * payload.size // 30)
    bits = np.zeros(30 * count, np.uint32)
    bits[: 8 * payload.size] = np.unpackbits(payload, bitorder="little")
    words = (bits.reshape(count, 30) << np.arange(30, dtype=np.uint32)).sum(axis=1, dtype=np.uint32)
    return 0x40000000 | words & 0x1FFFFFFF | words >> 29 << 31


@given(nbytes, arrays.seeds, arrays.isas, arrays.threads, arrays.offsets)
def test_framing_follows_its_definition_and_returns_the_same_bytes(
    nbytes, seed, isa, threads, offset
):
    guarded = arrays.Guarded(offset)
    payload = guarded.copy(bytes_like(nbytes, seed))
    words = guarded.empty(kernels.frame_words(nbytes), np.uint32)
    back = guarded.empty(nbytes, np.uint8)

    kernels.frame(payload, out=words, threads=threads, isa=isa)
    kernels.unframe(words, nbytes, out=back, threads=threads, isa=isa)

    assert np.array_equal(words, frame_in_numpy(payload))
    assert np.array_equal(back, payload)
    guarded.check()


@given(nbytes, arrays.seeds)
def test_every_framed_word_is_a_normal_float_that_a_sum_with_zero_keeps_bit_for_bit(nbytes, seed):
    words = kernels.frame(bytes_like(nbytes, seed))
    floats = words.view(np.float32)
    assert np.isfinite(floats).all() and (np.abs(floats) >= np.finfo(np.float32).tiny).all()
    assert np.array_equal((floats + np.float32(0)).view(np.uint32), words)


@pytest.mark.parametrize("byte", [0x00, 0xFF])
def test_bytes_of_all_zeros_and_all_ones_survive_a_sum_with_zero(byte):
    payload = np.full(1000, byte, np.uint8)
    words = (kernels.frame(payload).view(np.float32) + np.float32(0)).view(np.uint32)
    assert np.array_equal(kernels.unframe(words, payload.size), payload)


@given(st.integers(1, 300), arrays.seeds, arrays.isas, st.data())
def test_one_word_with_a_wrong_fixed_bit_is_noticed(nbytes, seed, isa, data):
    words = kernels.frame(bytes_like(nbytes, seed))
    assert kernels.framed(words, isa=isa)
    at = data.draw(st.integers(0, words.size - 1))
    words[at] ^= data.draw(st.sampled_from([0x40000000, 0x20000000, 0x60000000]))
    assert not kernels.framed(words, isa=isa)


def test_no_words_are_framed():
    assert kernels.frame_words(0) == 0
    assert kernels.framed(np.empty(0, np.uint32))
