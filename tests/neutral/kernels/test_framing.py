"""Framing: bytes become floats that survive a server that adds 0.0 to them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluon_gc import kernels

from . import arrays
from .bindings import framed

nbytes = st.one_of(
    st.integers(0, 300),
    st.sampled_from([504, 507, 508, 509, 512, 513, 1015, 1016, 1017, 65_537, 200_003]),
)


BLOCK_BYTES = 127 * 4


def bytes_like(nbytes, seed):
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def frame_in_numpy(payload):
    """Use for each block the smallest number that makes no exponent 0 or 255."""
    blocks = np.pad(payload, (0, -payload.size % BLOCK_BYTES)).view(np.uint32).reshape(-1, 127)
    framed = []
    for block in blocks:
        exponents = block >> 23 & 255
        taken = {*exponents, *(exponents ^ 255)}
        number = next(number for number in range(128) if number not in taken)
        framed += [[0x40000000 | number], block ^ np.uint32(number << 23)]
    headers = -(-payload.size // BLOCK_BYTES)
    return np.concatenate([[], *framed])[: -(-payload.size // 4) + headers].astype(np.uint32)


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


@given(st.integers(1, 1100), arrays.seeds, arrays.isas, st.data())
def test_one_word_that_no_frame_has_is_noticed(nbytes, seed, isa, data):
    words = kernels.frame(bytes_like(nbytes, seed))
    assert framed(words, isa=isa)
    at = data.draw(st.integers(0, words.size - 1))
    if at % 128 == 0 and data.draw(st.booleans()):
        words[at] ^= data.draw(st.sampled_from([1 << bit for bit in range(7, 32)]))
    else:
        words[at] = words[at] & 0x807FFFFF | data.draw(st.sampled_from([0, 0x7F800000]))
    assert not framed(words, isa=isa)


@given(
    st.permutations(range(128)), st.lists(st.booleans(), min_size=128, max_size=128), arrays.isas
)
def test_a_block_may_leave_one_pair_of_exponents_only(order, upper, isa):
    exponents = np.array([255 - pair if above else pair for pair, above in zip(order, upper)])
    payload = (exponents[:127].astype(np.uint32) << 23).view(np.uint8)
    words = kernels.frame(payload, isa=isa)
    assert words[0] == 0x40000000 | order[127]
    assert framed(words, isa=isa)
    assert np.array_equal(kernels.unframe(words, payload.size, isa=isa), payload)


def test_no_words_are_framed():
    assert kernels.frame_words(0) == 0
    assert framed(np.empty(0, np.uint32))


@pytest.mark.parametrize("words", [0, 128, 256, 4096])
def test_the_bytes_that_fill_whole_blocks_take_as_many_words(words):
    assert kernels.frame_words(kernels.frame_bytes(words)) == words
