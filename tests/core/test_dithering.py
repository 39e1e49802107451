"""dithering: the kernels against a NumPy replay, each other, and BytePS's numbers."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluon_gc import kernels

from . import arrays, decoding, feedback, golden
from .decoding import check_decoding, check_sum
from .dithering_replay import Config, Replay

KINDS = [(natural, l2) for natural in (False, True) for l2 in (False, True)]

linear = st.one_of(
    st.integers(1, 16),
    st.sampled_from([31, 32, 255, 65535, 2**20, 2**23 - 1]),
    st.integers(1, 2**23 - 1),
)
configs = st.one_of(
    st.builds(Config, linear, st.just(False), st.booleans(), st.booleans()),
    st.builds(Config, st.integers(1, 31), st.just(True), st.booleans(), st.booleans()),
)
# Small ones put many of the first draws below 2^32, where the upper halves do not decide.
stream_seeds = st.one_of(st.integers(1, 5), st.integers(1, 2**64 - 1))


def gradients(size, dtype, seed):
    """Awkward values; an l2 norm of them may overflow to the largest float32, not in float64."""
    values = arrays.awkward(size, dtype, seed)
    return values * dtype(2.0**-520) if dtype is np.float64 else values


@given(
    configs,
    arrays.sizes,
    arrays.dtypes,
    arrays.seeds,
    stream_seeds,
    feedback.kinds,
    feedback.scales,
    arrays.how,
    arrays.offsets,
)
def test_every_instruction_set_and_number_of_threads_gives_the_bits_of_the_replay(
    config, size, dtype, seed, stream, kind, scale, how, offset
):
    guarded = arrays.Guarded(offset)
    replay = Replay(config, size, dtype, stream, **kind)
    state = replay.state(guarded.copy)
    for step, ratio in enumerate(feedback.RATIOS):
        gradient = guarded.copy(gradients(size, dtype, seed + step))
        payload = guarded.empty(
            kernels.dithering.capacity(size, dtype, **config.decoding), np.uint8
        )
        expected, expected_norm, _ = replay.step(gradient, scale, ratio)

        options = {**config.encoding, **how, **state}
        _, norm = kernels.dithering.compress(
            gradient, gradient_scale=scale, ratio=ratio, payload=payload, **options
        )

        assert norm == expected_norm
        assert np.array_equal(arrays.used(payload), expected)
        replay.check(state)
    guarded.check()


@given(configs, arrays.sizes, arrays.dtypes, arrays.seeds, arrays.how, arrays.offsets)
def test_decoding_gives_what_the_replay_rounded_to_and_adding_adds_it(
    config, size, dtype, seed, how, offset
):
    x = gradients(size, dtype, seed)
    payload, _, decoded = Replay(config, size, dtype, 2020).step(x)
    guarded = arrays.Guarded(offset)
    check_decoding(kernels.dithering, payload, decoded, seed + 1, guarded, how, **config.decoding)


@given(
    configs,
    arrays.sizes,
    arrays.dtypes,
    arrays.seeds,
    decoding.counts,
    decoding.paddings,
    arrays.how,
    arrays.offsets,
)
def test_summing_payloads_of_any_coding_equals_adding_them_in_order(
    config, size, dtype, seed, count, padding, how, offset
):
    def encode(i):
        coded = replace(config, fixed_width=i % 2 == 0)
        payload, _, decoded = Replay(coded, size, dtype, i + 1).step(
            gradients(size, dtype, seed + i)
        )
        return payload, decoded

    rows = count, padding, arrays.Guarded(offset)
    check_sum(kernels.dithering, size, dtype, encode, *rows, how, **config.decoding)


@given(configs, st.integers(0, 5000), arrays.dtypes, arrays.seeds)
def test_an_element_moves_by_less_than_the_distance_of_its_two_levels(config, size, dtype, seed):
    x = gradients(size, dtype, seed)
    payload, norm = kernels.dithering.compress(
        x, stream=np.full(2, 7, np.uint64), **config.encoding
    )
    decoded = kernels.dithering.decompress(payload, size, dtype=dtype, **config.decoding)

    if config.natural:  # between the powers of two around it, or 0 and the first
        shares = np.abs(x).astype(np.longdouble) / max(norm, np.finfo(dtype).smallest_subnormal)
        step = np.maximum(
            2.0 ** np.floor(np.log2(np.maximum(shares, 2.0**-40))), 2.0 ** (1 - config.levels)
        )
    else:
        step = np.longdouble(1) / config.levels
    rounding = 4 * np.finfo(dtype).eps * norm + np.finfo(dtype).smallest_subnormal
    moved = np.abs(x.astype(np.longdouble) - decoded)
    assert (moved <= step * np.longdouble(norm) + rounding).all()
    assert (np.sign(decoded) * np.sign(x) >= 0).all()


@pytest.mark.parametrize("natural, l2", KINDS)
@pytest.mark.parametrize("levels", [1, 2, 5])
@arrays.each_dtype
def test_the_mean_over_many_seeds_is_the_element(natural, l2, levels, dtype):
    config, seeds = Config(levels, natural, l2), 2000
    random = np.random.default_rng(1)
    x = random.standard_normal(50).astype(dtype)
    total = np.zeros(50)
    for _ in range(seeds):  # far apart, since neighbouring ones begin alike
        stream = random.integers(1, 2**64, 2, np.uint64)
        payload, norm = kernels.dithering.compress(x, stream=stream, **config.encoding)
        total += kernels.dithering.decompress(payload, 50, dtype=dtype, **config.decoding)

    y = np.abs(x.astype(np.float64)) / norm * config.top
    lower = 2.0 ** np.floor(np.log2(y)) * (y >= 1) if natural else np.floor(y)
    upper = lower + (np.maximum(lower, 1) if natural else 1)
    error = np.sqrt(np.maximum((y - lower) * (upper - y), 0) / seeds) * norm / config.top
    assert (np.abs(total / seeds - x) <= 4 * error + 1e-6).all()


@arrays.each_isa
@pytest.mark.parametrize("natural, l2", KINDS)
def test_a_norm_of_zero_decodes_to_zeros_and_takes_as_many_draws(isa, natural, l2):
    stream, drawn = np.full(2, 3, np.uint64), np.full(2, 3, np.uint64)
    x = np.array([0.0, -0.0] * 500, np.float32)
    payload, norm = kernels.dithering.compress(x, 3, stream, natural=natural, l2=l2, isa=isa)
    out = kernels.dithering.decompress(payload, 1000, levels=3, natural=natural, isa=isa)
    kernels.stream_draw(drawn, 1000)
    assert norm == 0 and arrays.same_bits(out, np.zeros(1000, np.float32))
    assert np.array_equal(stream, drawn)


@arrays.each_isa
@pytest.mark.parametrize("natural, l2", KINDS)
@arrays.each_dtype
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 15, 16, 98])
def test_what_is_not_finite_shows_in_the_norm_and_leaves_the_residual(
    isa, natural, l2, dtype, bad, at
):
    x = np.ones(99, dtype)
    x[at] = bad
    residual = np.zeros(99, dtype)
    payload, norm = kernels.dithering.compress(
        x, 3, np.full(2, 3, np.uint64), natural=natural, l2=l2, residual=residual, isa=isa
    )
    out = kernels.dithering.decompress(payload, 99, dtype, levels=3, natural=natural, isa=isa)
    assert np.isnan(norm) if np.isnan(bad) else norm == np.inf
    assert np.flatnonzero(~np.isfinite(out)).tolist() == [at]
    assert residual[at] == 0 and (np.delete(residual, at) == 1).all()


@arrays.each_isa
@pytest.mark.parametrize("natural, l2", KINDS)
def test_the_largest_floats_do_not_overflow_and_the_smallest_are_not_lost(isa, natural, l2):
    for value in 3e38, np.finfo(np.float32).max, 1e38, 1e-38, 1e-42, 1.4e-45:
        x = np.full(100, -value, np.float32)
        payload, norm = kernels.dithering.compress(
            x, 4, np.full(2, 3, np.uint64), natural=natural, l2=l2, isa=isa
        )
        out = kernels.dithering.decompress(payload, 100, levels=4, natural=natural, isa=isa)
        assert np.isfinite(out).all()
        if not l2:
            assert np.array_equal(out, x) and norm == -float(x[0])


def test_an_l2_norm_of_doubles_that_overflows_is_infinite():
    x = np.full(10, 1e200)
    _, norm = kernels.dithering.compress(x, 4, np.ones(2, np.uint64), l2=True)
    assert norm == np.inf
    assert kernels.dithering.compress(x, 4, np.ones(2, np.uint64))[1] == 1e200


@pytest.mark.parametrize("levels, natural", [(0, False), (-1, False), (2**23, False), (32, True)])
def test_levels_that_cannot_be_are_refused(levels, natural):
    with pytest.raises(ValueError, match="levels must be from 1 to"):
        kernels.dithering.compress(
            np.zeros(4, np.float32), levels, np.ones(2, np.uint64), natural=natural
        )
    with pytest.raises(ValueError, match="levels must be from 1 to"):
        kernels.dithering.decompress(np.zeros(40, np.uint8), 4, levels=levels, natural=natural)


def sent_beyond_the_levels(config, x, expected):
    """Whether BytePS sent the only element twice over.

    BytePS squares in float, so that a single element can be above its l2 norm by a rounding; a draw
    near 0 then takes it to the level after the last. Here its norm is itself, exactly.
    """
    return config.natural and config.l2 and x.size == 1 and expected[0] == 2 * x[0]


@arrays.each_isa
def test_a_single_compression_decodes_to_byteps_numbers(isa):
    cases = golden.compressions("dithering")
    beyond = 0
    for options, x, expected in cases:
        natural, l2 = options["partition"] == "natural", options["normalize"] == "l2"
        config = Config(int(options["k"]), natural, l2)
        stream = np.full(2, int(options["state_seed"]), np.uint64)
        payload, _ = kernels.dithering.compress(x, stream=stream, isa=isa, **config.encoding)
        decoded = kernels.dithering.decompress(payload, x.size, isa=isa, **config.decoding)
        if sent_beyond_the_levels(config, x, expected):
            beyond += 1
            assert np.array_equal(decoded, x)
        else:
            np.testing.assert_array_max_ulp(decoded, expected, 2)
    assert (len(cases), beyond) == (224, 4)


@arrays.each_isa
@pytest.mark.parametrize("run", golden.runs("dithering"), ids=golden.name_of)
def test_each_step_with_feedback_from_byteps_state_differs_by_rounding_only(run, isa):
    natural_l2 = run.name.startswith("dithering-natural-l2")
    config = Config(int(run.options["k"]), natural_l2, natural_l2)
    seed = int(run.options["state_seed"])
    state = Replay(config, run.size, np.float32, seed, run.mu, feedback=True).state()
    steps = run.steps()

    def step(gradient, ratio):
        payload, _ = kernels.dithering.compress(
            gradient, ratio=ratio, isa=isa, **config.encoding, **state
        )
        decoded = kernels.dithering.decompress(payload, run.size, isa=isa, **config.decoding)
        expected, _ = next(steps)
        if sent_beyond_the_levels(config, expected["p"], expected["d"]):
            return {"p": decoded}
        if not run.mu:  # p and d cancel to any number of ulp of e
            return {"d": decoded}
        residual = state["residual"]
        return {"p": decoded + residual, "d": decoded, "e": residual, "m": state["momentum"]}

    run.check(step, golden.restorer(state))
