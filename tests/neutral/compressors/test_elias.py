"""dithering's Elias coding: when it is chosen, and payloads that compress never writes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gluon_gc import kernels
from tests.neutral.kernels import arrays
from tests.neutral.kernels.bindings import valid

from .dithering_replay import ELIAS, FIXED, Config

N = 3000
configs = st.builds(Config, st.integers(1, 31), st.booleans(), st.booleans())


def codec_of(n, config, isa=None):
    return kernels.Codec("dithering", config.options, n, isa=isa)


def compressed(x, config):
    """Return the bytes in use."""
    payload, status = codec_of(x.size, config).compress(x, position=kernels.position((2020, 2020)))
    return payload[: status.bytes]


def decompressed(payload, n, config, isa=None):
    codec = codec_of(n, config, isa)
    room = np.zeros(codec.payload_bytes, np.uint8)
    room[: payload.size] = payload
    return codec.decompress(room)[0]


def coding_of(payload):
    return payload[4:8].view(np.uint32)[0]


def sparse(n, seed):
    """Return a few large values among small ones; most symbols are then 0."""
    random = np.random.default_rng(seed)
    return (random.standard_normal(n) * 10.0 ** random.integers(-5, 1, n)).astype(np.float32)


@given(configs, st.integers(0, 5000), arrays.seeds)
def test_the_smaller_coding_is_chosen_and_decodes_alike(config, n, seed):
    x = sparse(n, seed)
    chosen = compressed(x, config)
    fixed_width = Config(config.levels, config.natural, config.l2, fixed_width=True)
    fixed = compressed(x, fixed_width)
    assert fixed.size == codec_of(n, config).payload_bytes
    assert coding_of(fixed) == FIXED
    assert coding_of(chosen) == (ELIAS if chosen.size < fixed.size else FIXED)
    assert arrays.same_bits(decompressed(chosen, n, config), decompressed(fixed, n, fixed_width))


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
    out = decompressed(payload, x.size, config, isa)
    assert coding_of(payload) == ELIAS and payload.size < 100
    assert np.abs(out - x).max() <= 2.0**-22 and np.array_equal(out != 0, x != 0)


@arrays.each_isa
def test_a_payload_that_is_cut_off_is_refused_wherever_it_is(isa):
    config = Config(2, l2=True)
    payload = compressed(sparse(N, 1), config)
    assert coding_of(payload) == ELIAS
    codec = codec_of(N, config, isa)
    assert valid(codec, payload)
    for size in range(payload.size):
        assert not valid(codec, payload[:size].copy())


@arrays.each_isa
def test_a_code_that_reaches_past_n_or_the_levels_is_refused(isa):
    payload = compressed(sparse(N, 1), Config(5))
    assert coding_of(payload) == ELIAS
    last = np.flatnonzero(decompressed(payload, N, Config(5)))[-1]
    assert valid(codec_of(last + 1, Config(5), isa), payload)
    assert not valid(codec_of(last, Config(5), isa), payload)
    assert not valid(codec_of(N, Config(4), isa), payload)


@arrays.each_isa
def test_a_codec_of_fixed_width_takes_no_code(isa):
    x = sparse(N, 1)
    payload = compressed(x, Config(5))
    assert coding_of(payload) == ELIAS and valid(codec_of(N, Config(5), isa), payload)
    fixed_width = Config(5, fixed_width=True)
    assert not valid(codec_of(N, fixed_width, isa), payload)
    assert valid(codec_of(N, fixed_width, isa), compressed(x, fixed_width))
