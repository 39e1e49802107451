"""The random stream and its jumps, compared with Python integers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluon_gc import kernels

from .bindings import draw

WORD = 2**64 - 1
states = st.lists(st.integers(0, WORD), min_size=2, max_size=2).filter(any)


def sequence(state, n):
    """Return n draws, and the state after them."""
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


@given(states, st.integers(0, 100), st.sampled_from([0, 1, 77]))
def test_draws_are_those_of_the_definition_from_the_position_on(state, n, before):
    _, start = sequence(state, before)
    draws, _ = sequence(start, n)
    assert draw(kernels.position(state, before), n).tolist() == draws


@given(states, st.one_of(st.integers(0, 300), st.sampled_from([2064, 66_048, 10**5 + 7])))
def test_a_jump_is_as_many_draws(state, count):
    jumped = stream_of(state)
    kernels.jump(jumped, count)
    assert draw(kernels.position(jumped), 2).tolist() == (
        draw(kernels.position(state), count + 2)[count:].tolist()
    )
    assert draw(kernels.position(state, count), 0).size == 0


@given(states, st.integers(0, 2**63 - 1), st.integers(0, 2**63))
def test_jumps_and_positions_add_up(state, a, b):
    once, twice = stream_of(state), stream_of(state)
    kernels.jump(once, a + b)
    kernels.jump(twice, a)
    on = draw(kernels.position(twice, b), 3)
    kernels.jump(twice, b)
    assert once.tolist() == twice.tolist()
    assert on.tolist() == draw(kernels.position(once), 3).tolist()


@given(states, st.integers(0, 300))
def test_worker_r_is_r_times_two_to_the_64_draws_on(state, worker):
    jumped, stepped = stream_of(state), stream_of(state)
    kernels.jump_to_worker(jumped, worker)
    for _ in range(worker):
        kernels.jump(stepped, WORD)
        kernels.jump(stepped, 1)
    assert jumped.tolist() == stepped.tolist()


def test_a_state_that_is_not_two_words_is_refused():
    with pytest.raises(ValueError, match="state must have 2 elements"):
        kernels.jump(np.ones(3, np.uint64), 1)
    with pytest.raises(TypeError, match="state must be uint64"):
        kernels.jump(np.ones(2, np.int64), 1)
