"""dithering's Elias coding: when it is chosen, and payloads that are not what compress writes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluon_gc import kernels

from . import arrays
from .dithering_replay import ELIAS, FIXED, Config

N = 3000
configs = st.builds(Config, st.integers(1, 31), st.booleans(), st.booleans())


def compressed(x, config):
    stream = np.full(2, 2020, np.uint64)
    payload, _ = kernels.dithering.compress(x, stream=stream, **config.encoding)
    return payload[: payload[:4].view(np.uint32)[0]].copy()


def coding_of(payload):
    return payload[4:8].view(np.uint32)[0]


def sparse(n, seed):
    """A few large values among small ones, which becomes mostly symbol 0."""
    random = np.random.default_rng(seed)
    return (random.standard_normal(n) * 10.0 ** random.integers(-5, 1, n)).astype(np.float32)


@given(configs, st.integers(0, 5000), arrays.seeds)
def test_the_smaller_coding_is_chosen_and_decodes_alike(config, n, seed):
    x = sparse(n, seed)
    chosen = compressed(x, config)
    fixed = compressed(x, Config(config.levels, config.natural, config.l2, fixed_width=True))
    assert fixed.size == kernels.dithering.capacity(n, **config.decoding)
    assert coding_of(fixed) == FIXED
    assert coding_of(chosen) == (ELIAS if chosen.size < fixed.size else FIXED)
    assert arrays.same_bits(
        kernels.dithering.decompress(chosen, n, **config.decoding),
        kernels.dithering.decompress(fixed, n, **config.decoding),
    )


def test_dense_symbols_stay_in_fixed_width_and_sparse_ones_take_a_fraction():
    random = np.random.default_rng(0)
    dense = random.choice([-1.0, 1.0], 100_000).astype(np.float32)
    assert coding_of(compressed(dense, Config(3))) == FIXED
    gaussian = random.standard_normal(100_000).astype(np.float32)
    payload = compressed(gaussian, Config(2, l2=True))
    assert coding_of(payload) == ELIAS and payload.size < 0.01 * 100_000


@arrays.each_isa
def test_a_code_of_elements_far_apart_and_of_high_levels_decodes(isa):
    x = np.zeros(200_000, np.float32)
    x[[0, 1, 66_047, 66_048, 132_095, 199_999]] = [1, -0.5, 0.25, -1, 1e-6, 1]
    config = Config(2**23 - 1)
    payload = compressed(x, config)
    out = kernels.dithering.decompress(payload, x.size, isa=isa, **config.decoding)
    assert coding_of(payload) == ELIAS and payload.size < 100
    assert np.abs(out - x).max() <= 2.0**-22 and np.array_equal(out != 0, x != 0)


def refused_or_in_bounds(payload, n, config, dtype, isa, threads, offset):
    """Whether a payload is valid; if so it is decoded, between fences."""
    guarded = arrays.Guarded(offset)
    payload = guarded.copy(payload)
    decoding = {"dtype": dtype, "isa": isa, **config.decoding}
    if not kernels.dithering.valid(payload, n, **decoding):
        with pytest.raises(ValueError, match="payload must be one of"):
            kernels.dithering.decompress(payload, n, **decoding)
        return False
    with np.errstate(all="ignore"):
        kernels.dithering.decompress(
            payload, n, out=guarded.empty(n, dtype), threads=threads, **decoding
        )
        out = guarded.copy(np.zeros(n, dtype))
        kernels.dithering.decompress_add(payload, out, threads=threads, isa=isa, **config.decoding)
    guarded.check()
    return True


@given(
    configs,
    st.binary(max_size=200),
    st.integers(0, 400),
    st.sampled_from([FIXED, ELIAS, 2]),
    st.booleans(),
    arrays.dtypes,
    arrays.isas,
    arrays.threads,
    arrays.offsets,
)
def test_random_bytes_are_refused_or_stay_in_bounds(
    config, data, n, coding, honest, dtype, isa, threads, offset
):
    payload = np.frombuffer(data, np.uint8).copy()
    if honest and payload.size >= 8:
        payload[:8] = np.array([payload.size, coding], np.uint32).view(np.uint8)
    refused_or_in_bounds(payload, n, config, dtype, isa, threads, offset)


@given(
    configs,
    arrays.seeds,
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=4),
    arrays.isas,
    arrays.threads,
    arrays.offsets,
)
def test_flipped_bits_are_refused_or_stay_in_bounds(config, seed, flips, isa, threads, offset):
    payload = compressed(sparse(N, seed), config)
    for place, bits in flips:
        payload[int(place * payload.size)] ^= bits
    valid = refused_or_in_bounds(payload, N, config, np.float32, isa, threads, offset)
    assert valid or flips


@arrays.each_isa
def test_a_payload_that_is_cut_off_is_refused(isa):
    config = Config(2, l2=True)
    payload = compressed(sparse(N, 1), config)
    assert coding_of(payload) == ELIAS
    for size in range(payload.size):
        assert not kernels.dithering.valid(payload[:size].copy(), N, isa=isa, **config.decoding)


@arrays.each_isa
def test_a_code_that_reaches_past_n_or_the_levels_is_refused(isa):
    payload = compressed(sparse(N, 1), Config(5))
    assert coding_of(payload) == ELIAS
    last = np.flatnonzero(kernels.dithering.decompress(payload, N, levels=5))[-1]
    assert kernels.dithering.valid(payload, last + 1, levels=5, isa=isa)
    assert not kernels.dithering.valid(payload, last, levels=5, isa=isa)
    assert not kernels.dithering.valid(payload, N, levels=4, isa=isa)
