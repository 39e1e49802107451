"""dithering: its own tests, besides those with its replay in NumPy."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluon_gc import kernels
from tests.neutral.kernels import arrays, sums
from tests.neutral.kernels.bindings import draw

from .cases import isas_of
from .dithering_replay import Config, Replay

__all__ = ["OPTIONS", "Replay"]

KINDS = [(natural, l2) for natural in (False, True) for l2 in (False, True)]
LEVELS = (2, 1, 5, 16, 31, 255, 65_535, 2**20, 2**23 - 1)
OPTIONS = [
    Config(levels, natural, l2, fixed_width).options
    for levels in LEVELS
    for natural, l2 in KINDS
    for fixed_width in (False, True)
    if levels <= 31 or not natural
]
PARAMS = {
    "dithering": {"k": 2},
    "dithering l2": {"k": 5, "normalize": "l2"},
    "natural dithering": {"k": 3, "partition": "natural"},
    "natural dithering l2": {"k": 12, "partition": "natural", "normalize": "l2"},
}
configs = st.builds(Config.of, st.sampled_from(OPTIONS))
each_kind = pytest.mark.parametrize("natural, l2", KINDS)
START = kernels.position((3, 3))


def on_cuda(options):
    """Return whether a GPU supports these options; it has no Elias codes."""
    return options["fixed_width"]


each_isa = pytest.mark.parametrize("isa", isas_of("dithering"))


def codec_of(config, n, dtype=np.float32, isa=None):
    """Return a codec; on a GPU it has fixed width."""
    options = {**config.options, **({"fixed_width": True} if isa == "cuda" else {})}
    return kernels.Codec("dithering", options, n, dtype, isa)


def sent(x, config, isa=None, position=START):
    """Return the decoded values, and the norm."""
    codec = codec_of(config, x.size, x.dtype, isa)
    payload, _ = codec.compress(x, position=position)
    return codec.decompress(payload)[0], payload[8 : 8 + x.itemsize].view(x.dtype)[0]


@given(configs, st.integers(1, 5000), arrays.dtypes, arrays.seeds)
def test_an_element_moves_by_less_than_the_distance_of_its_two_levels(config, size, dtype, seed):
    x = arrays.awkward(size, dtype, seed)
    decoded, norm = sent(x, config)

    if config.natural:  # levels are powers of two, or 0 and the first one
        shares = np.abs(x).astype(np.longdouble) / max(norm, np.finfo(dtype).smallest_subnormal)
        step = np.maximum(
            2.0 ** np.floor(np.log2(np.maximum(shares, 2.0**-40))), 2.0 ** (1 - config.levels)
        )
    else:
        step = np.longdouble(1) / config.levels
    rounding = 4 * np.finfo(dtype).eps * norm + np.finfo(dtype).smallest_subnormal
    if config.l2:  # squares below half the smallest float64 are zeros in the sum
        rounding += np.sqrt(size * np.finfo(np.float64).smallest_subnormal)
    moved = np.abs(x.astype(np.longdouble) - decoded)
    assert (moved <= step * np.longdouble(norm) + rounding).all()
    assert (np.sign(decoded) * np.sign(x) >= 0).all()


@each_kind
@pytest.mark.parametrize("levels", [1, 2, 5])
@arrays.each_dtype
def test_the_mean_over_many_places_of_the_stream_is_the_element(natural, l2, levels, dtype):
    config, rounds = Config(levels, natural, l2), 2000
    x = np.random.default_rng(1).standard_normal(50).astype(dtype)
    codec = kernels.Codec("dithering", config.options, x.size, dtype)
    total = np.zeros(50)
    for step in range(rounds):
        position = kernels.position((2**63 + 5, 2**60 + 9), step * codec.draws)
        total += codec.decompress(codec.compress(x, position=position)[0])[0]
    _, norm = sent(x, config)

    y = np.abs(x.astype(np.float64)) / norm * config.top
    lower = 2.0 ** np.floor(np.log2(y)) * (y >= 1) if natural else np.floor(y)
    upper = lower + (np.maximum(lower, 1) if natural else 1)
    error = np.sqrt(np.maximum((y - lower) * (upper - y), 0) / rounds) * norm / config.top
    assert (np.abs(total / rounds - x) <= 4 * error + 1e-6).all()


# With small states, many of the first draws are below 2^32, so their upper halves are all 0.
@given(
    configs,
    st.integers(1, 5),
    st.integers(1, 300),
    arrays.dtypes,
    st.sampled_from(isas_of("dithering")),
)
def test_draws_that_are_near_zero_are_compared_in_full(config, state, n, dtype, isa):
    x = np.random.default_rng(n).standard_normal(n).astype(dtype)
    start = (state, state)
    if isa == "cuda":
        config = replace(config, fixed_width=True)
    codec = codec_of(config, n, dtype, isa)
    payload, status = codec.compress(x, position=kernels.position(start))
    expected, _ = Replay(config.options, n, dtype, start).step(x)
    assert np.array_equal(payload[: status.bytes], expected)


@each_isa
@arrays.each_dtype
@pytest.mark.parametrize("n", [1023, 1024, 1025, 16_384, 2**20, 2**20 + 12_345])
def test_the_l2_norm_is_by_the_fixed_tree_of_sums(isa, dtype, n):
    x = arrays.awkward(n, dtype, 3)
    config = Config(2, l2=True, fixed_width=True)
    codec = kernels.Codec("dithering", {**config.options, "ef": "vanilla"}, n, dtype, isa)
    for threads in (1, 3):
        payload, _ = codec.compress(x, codec.state(), threads=threads)
        assert payload[8 : 8 + x.itemsize].tobytes() == sums.l2_norm(x).tobytes()


@each_isa
@each_kind
def test_a_norm_of_zero_decodes_to_zeros(isa, natural, l2):
    out, norm = sent(np.array([0.0, -0.0] * 500, np.float32), Config(3, natural, l2), isa)
    assert norm == 0 and arrays.same_bits(out, np.zeros(1000, np.float32))


@each_isa
@each_kind
@arrays.each_dtype
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 15, 16, 98])
def test_an_element_that_is_not_finite_is_the_one_that_decodes_so(isa, natural, l2, dtype, bad, at):
    x = np.ones(99, dtype)
    x[at] = bad
    out, norm = sent(x, Config(3, natural, l2), isa)
    assert np.isnan(norm)
    assert np.flatnonzero(~np.isfinite(out)).tolist() == [at]


@each_isa
@each_kind
def test_the_largest_floats_do_not_overflow_and_the_smallest_are_not_lost(isa, natural, l2):
    for value in 3e38, np.finfo(np.float32).max, 1e38, 1e-38, 1e-42, 1.4e-45:
        x = np.full(100, -value, np.float32)
        out, norm = sent(x, Config(4, natural, l2), isa)
        assert np.isfinite(out).all()
        if not l2:
            assert np.array_equal(out, x) and norm == -float(x[0])


def test_an_l2_norm_of_doubles_that_overflows_is_not_finite():
    x = np.full(10, 1e200)
    assert np.isnan(sent(x, Config(4, l2=True))[1])
    assert sent(x, Config(4))[1] == 1e200


@pytest.mark.parametrize("k, natural", [(0, False), (-1, False), (2**23, False), (32, True)])
def test_levels_that_cannot_be_are_refused(k, natural):
    with pytest.raises(ValueError, match="k must be a whole number"):
        kernels.Codec("dithering", Config(k, natural).options, 4)


# With one level, half the norm is rounded up exactly if the draw is below 2^63.
@each_isa
@pytest.mark.parametrize("n", [1, 15, 16, 17, 2064, 2065, 66_048, 66_049, 200_000])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_sequence_is_drawn_side_by_side(isa, n, threads):
    x = np.full(n, 0.5, np.float32)
    x[0] = 1
    position = kernels.position((2020, 2020), 5)
    codec = codec_of(Config(1), n, isa=isa)
    payload, _ = codec.compress(x, position=position, threads=threads)
    up = codec.decompress(payload)[0] == 1
    assert np.array_equal(up[1:], draw(position, n)[1:] < 2**63)
