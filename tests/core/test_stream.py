"""The random stream: against Python integers, its jumps, and the lanes that kernels draw from."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluon_gc import kernels

WORD = 2**64 - 1
states = st.lists(st.integers(0, WORD), min_size=2, max_size=2).filter(any)


def sequence(state, n):
    """n draws, and the state after them."""
    t, s = state
    draws = []
    for _ in range(n):
        t ^= t << 23 & WORD
        t ^= t >> 17
        t ^= s ^ s >> 26
        t, s = s, t
        draws.append(t + s & WORD)
    return draws, [t, s]


def stream_of(state):
    return np.array(state, np.uint64)


@given(states, st.integers(0, 100))
def test_draws_are_those_of_the_definition(state, n):
    stream = stream_of(state)
    draws, after = sequence(state, n)
    assert kernels.stream_draw(stream, n).tolist() == draws
    assert stream.tolist() == after


@given(states, st.one_of(st.integers(0, 300), st.sampled_from([2064, 66048, 2**20, 10**6 + 7])))
def test_a_jump_is_as_many_draws(state, count):
    jumped, drawn = stream_of(state), stream_of(state)
    kernels.stream_jump(jumped, count)
    kernels.stream_draw(drawn, count)
    assert jumped.tolist() == drawn.tolist()


@given(states, st.integers(0, 2**63 - 1), st.integers(0, 2**63))
def test_jumps_add_up(state, a, b):
    once, twice = stream_of(state), stream_of(state)
    kernels.stream_jump(once, a + b)
    kernels.stream_jump(twice, a)
    kernels.stream_jump(twice, b)
    assert once.tolist() == twice.tolist()


@given(states, st.integers(0, 300))
def test_worker_r_is_r_times_two_to_the_64_draws_on(state, worker):
    jumped, stepped = stream_of(state), stream_of(state)
    kernels.stream_jump_to_worker(jumped, worker)
    for _ in range(worker):
        kernels.stream_jump(stepped, WORD)
        kernels.stream_jump(stepped, 1)
    assert jumped.tolist() == stepped.tolist()


def test_a_stream_that_is_not_two_words_is_refused():
    with pytest.raises(ValueError, match="stream must have 2 elements"):
        kernels.stream_draw(np.ones(3, np.uint64), 1)
    with pytest.raises(TypeError, match="stream must be uint64"):
        kernels.stream_jump(np.ones(2, np.int64), 1)


# With one level, an element of half the norm is rounded up just if the draw is below 2^63.
@pytest.mark.parametrize("isa", kernels.isas())
@pytest.mark.parametrize("n", [1, 15, 16, 17, 2064, 2065, 66_048, 66_049, 200_000])
@pytest.mark.parametrize("threads", [1, 2])
def test_kernels_draw_the_same_sequence_side_by_side(isa, n, threads):
    x = np.full(n, 0.5, np.float32)
    x[0] = 1
    stream, drawn = stream_of([2020, 2020]), stream_of([2020, 2020])
    draws = kernels.stream_draw(drawn, n)
    payload, _ = kernels.dithering.compress(x, 1, stream, threads=threads, isa=isa)
    up = kernels.dithering.decompress(payload, n, levels=1) == 1
    assert np.array_equal(up[1:], draws[1:] < 2**63)
    assert stream.tolist() == drawn.tolist()
