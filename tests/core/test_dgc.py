"""dgc: the kernels against a NumPy replay, and each other."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_gc import kernels

from ..dgc_replay import Replay, compensate, payload_of, plan
from . import arrays
from .test_topk import DISTRIBUTIONS, N

SIZES = (0, 1, 2, 31, 2000, 2001, 5000, 70_001, 100_003)
RESAMPLE = dict(upper=1.3, lower=0.8, iterations=10, resample=True)
ADAPT = dict(RESAMPLE, resample=False)
HASTY = dict(upper=2.0, lower=0.9, iterations=2, resample=False)
NEVER = dict(RESAMPLE, iterations=0)
ODD = dict(upper=0.5, lower=0.01, iterations=3, resample=True)


def config_of(replay):
    return kernels.DgcConfig(
        nesterov=replay.nesterov,
        momentum_masking=replay.momentum_masking,
        half_values=replay.half_values,
        max_norm=replay.max_norm,
        **replay.options,
    )


def state_of(replay, copy=np.copy):
    """The arrays that the kernel keeps between calls."""
    state = dict(velocity=copy(replay.velocity), stream=np.array(replay.start, np.uint64))
    if replay.momentum is not None:
        state.update(momentum=copy(replay.momentum), mu=replay.mu)
    return state


def check_state(state, replay):
    assert arrays.same_bits(state["velocity"], replay.velocity)
    if replay.momentum is not None:
        assert arrays.same_bits(state["momentum"], replay.momentum)
    drawn = np.array(replay.start, np.uint64)
    kernels.stream_jump(drawn, replay.drawn)
    assert np.array_equal(state["stream"], drawn)


def gradients(size, dtype, seed, max_norm=0.0):
    """Awkward values, whose norm in float64 does not overflow if it is asked for."""
    values = arrays.awkward(size, dtype, seed)
    return values * dtype(2.0**-520) if max_norm and dtype is np.float64 else values


kinds = st.fixed_dictionaries(
    {
        "mu": st.sampled_from([None, 0.9]),
        "nesterov": st.booleans(),
        "momentum_masking": st.booleans(),
        "half_values": st.booleans(),
        "strided": st.booleans(),
        "max_norm": st.sampled_from([0.0, 0.0, 1e-3, 1e6, 1e30]),
    }
)
adaptations = st.sampled_from([RESAMPLE, ADAPT, HASTY, NEVER, ODD])
ratios = st.sampled_from([0.001, 0.01, 0.1, 0.25, 1.0])
sample_ratios = st.sampled_from([0.01, 0.05, 1.0])


@given(
    st.sampled_from(SIZES),
    ratios,
    sample_ratios,
    arrays.dtypes,
    arrays.seeds,
    kinds,
    adaptations,
    st.sampled_from([1.0, 1 / 3]),
    arrays.isas,
    arrays.threads,
    arrays.offsets,
)
def test_every_instruction_set_and_number_of_threads_gives_the_bits_of_the_replay(
    size, ratio, sample_ratio, dtype, seed, kind, adaptation, scale, isa, threads, offset
):
    guarded = arrays.Guarded(offset)
    replay = Replay(size, dtype, **kind, **adaptation, **plan(size, ratio, sample_ratio))
    state = state_of(replay, guarded.copy)
    capacity = kernels.dgc.capacity(
        config_of(replay).selects, dtype, half_values=replay.half_values
    )
    for step in range(3):
        gradient = guarded.copy(gradients(size, dtype, seed + step, kind["max_norm"]))
        payload = guarded.empty(capacity, np.uint8)
        expected, _ = replay.step(gradient, scale)

        _, check = kernels.dgc.compress(
            gradient,
            config=config_of(replay),
            gradient_scale=scale,
            payload=payload,
            threads=threads,
            isa=isa,
            **state,
        )

        assert check == 0
        assert np.array_equal(arrays.used(payload), expected)
        check_state(state, replay)
    guarded.check()


@settings(max_examples=20)
@given(st.integers(0, 3), ratios, arrays.dtypes, kinds, adaptations, arrays.isas, arrays.threads)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_no_distribution_defeats_the_sample(
    name, seed, ratio, dtype, kind, adaptation, isa, threads
):
    random = np.random.default_rng(seed)
    replay = Replay(N, dtype, **kind, **adaptation, **plan(N, ratio, 0.01))
    state = state_of(replay)
    for _ in range(2):
        x = np.ascontiguousarray(DISTRIBUTIONS[name](random, N)).astype(dtype)
        expected, _ = replay.step(x)
        payload, _ = kernels.dgc.compress(
            x, config=config_of(replay), threads=threads, isa=isa, **state
        )
        assert np.array_equal(arrays.used(payload), expected)
        check_state(state, replay)


@arrays.each_isa
@pytest.mark.parametrize("resample", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
def test_many_steps_of_training_give_the_bits_of_the_replay(isa, resample, nesterov):
    random = np.random.default_rng(0)
    options = dict(RESAMPLE, resample=resample, nesterov=nesterov, strided=True)
    replay = Replay(N, np.float32, 0.9, **options, **plan(N, 0.001, 0.01))
    state = state_of(replay)
    mean = random.standard_normal(N)
    for _ in range(60):
        x = (mean + random.standard_normal(N)).astype(np.float32)
        payload, _ = kernels.dgc.compress(x, config=config_of(replay), isa=isa, **state)
        assert np.array_equal(arrays.used(payload), replay.step(x)[0])
    check_state(state, replay)


@given(
    st.sampled_from(SIZES),
    arrays.dtypes,
    arrays.seeds,
    st.booleans(),
    st.integers(0, 4),
    st.sampled_from([0, 1, 60]),
    arrays.isas,
    arrays.threads,
    arrays.offsets,
)
def test_payloads_decode_to_what_was_sent_and_are_added_in_order(
    size, dtype, seed, half, count, padding, isa, threads, offset
):
    guarded = arrays.Guarded(offset)
    numbers = plan(size, 0.01, 0.05)
    stride = kernels.dgc.capacity(numbers["selects"], dtype, half_values=half) + padding
    payloads, expected = np.zeros((count, stride), np.uint8), np.zeros(size, dtype)
    start = arrays.awkward(size, dtype, seed)
    reading = dict(half_values=half, isa=isa)
    for i, row in enumerate(payloads):
        replay = Replay(size, dtype, half_values=half, strided=True, **RESAMPLE, **numbers)
        payload, decoded = replay.step(arrays.awkward(size, dtype, seed + i))
        row[: payload.size] = payload
        payload = guarded.copy(row)
        out = guarded.empty(size, dtype)
        assert kernels.dgc.valid(payload, size, dtype, **reading)
        kernels.dgc.decompress(payload, size, dtype, out=out, threads=threads, **reading)
        added = kernels.dgc.decompress_add(payload, guarded.copy(start), **reading)
        assert arrays.same_bits(out, decoded)
        assert np.array_equal(added, start + decoded)
        expected = expected + decoded

    rows = guarded.copy(payloads.ravel()).reshape(payloads.shape)
    total = kernels.dgc.decompress_sum(rows, size, dtype, threads=threads, **reading)

    assert arrays.same_bits(total, expected)
    guarded.check()


@given(st.integers(1, 5000), ratios, arrays.dtypes, arrays.seeds, kinds, adaptations)
def test_what_is_sent_and_what_is_kept_are_the_compensated_velocity(
    size, ratio, dtype, seed, kind, adaptation
):
    kind = dict(kind, half_values=False)
    replay = Replay(size, dtype, **kind, **adaptation, **plan(size, ratio, 0.01))
    state = state_of(replay)
    x = gradients(size, dtype, seed, kind["max_norm"])
    momentum = (kind["mu"], replay.nesterov, replay.max_norm)
    v, m = compensate(x, replay.velocity, replay.momentum, *momentum)
    payload, _ = kernels.dgc.compress(x, config=config_of(replay), **state)
    sent = kernels.dgc.decompress(payload, size, dtype)
    assert (sent * state["velocity"] == 0).all()
    assert np.array_equal(sent + state["velocity"], v)
    if m is not None:
        assert (state["momentum"][sent != 0] == 0).all() or not replay.momentum_masking
        assert np.array_equal(state["momentum"][sent == 0], m[sent == 0]) or (v == 0).any()


@arrays.each_isa
@arrays.each_dtype
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size, at", [(99, 0), (99, 40), (99, 98), (N, 0), (N, 77_777)])
@pytest.mark.parametrize("fill", ["normal", "all zero", "all equal"])
@pytest.mark.parametrize("options", [dict(max_norm=0), dict(max_norm=1.0)])
def test_what_is_not_finite_is_noticed_wherever_it_is(isa, dtype, bad, size, at, fill, options):
    x = DISTRIBUTIONS[fill](np.random.default_rng(0), size).astype(dtype)
    for array in ("gradient", "velocity", "momentum"):
        numbers = plan(size, 0.001, 0.01)
        replay = Replay(size, dtype, 0.9, strided=True, **RESAMPLE, **options, **numbers)
        arguments = dict(gradient=x.copy(), config=config_of(replay), isa=isa, **state_of(replay))
        assert kernels.dgc.compress(**arguments)[1] == 0
        arguments[array][at] = bad
        payload, check = kernels.dgc.compress(**arguments)
        assert np.isnan(check)
        assert kernels.dgc.valid(payload, size, dtype)


@arrays.each_isa
@arrays.each_dtype
def test_values_are_rounded_once_to_halves_and_ties_to_even(isa, dtype):
    halves = np.arange(1, 0x7C00, dtype=np.uint16).view(np.float16)
    ties = (halves[1:].astype(dtype) + halves[:-1]) / 2
    one = dtype(1)
    x = np.concatenate([ties, np.nextafter(ties, one * 0), np.nextafter(ties, one * np.inf)])
    x = np.concatenate([x, -x, np.array([65519, 65520, 1e30, 1e-30], dtype)])
    x = np.append(x, np.finfo(dtype).max)
    replay = Replay(x.size, dtype, half_values=True, strided=True, **RESAMPLE, **plan(x.size, 1, 1))
    payload, _ = kernels.dgc.compress(x, config=config_of(replay), isa=isa, **state_of(replay))
    assert np.array_equal(arrays.used(payload), replay.step(x)[0])
    assert np.isinf(kernels.dgc.decompress(payload, x.size, dtype, half_values=True)[-1])


@arrays.each_isa
@pytest.mark.parametrize("value, half", [(np.float16, True), (np.float32, False)])
@pytest.mark.parametrize(
    "indices, length",
    [
        ([0, 1, 10], None),
        ([2, 1, 3], None),
        ([1, 1, 3], None),
        ([0, 1, 2**32 - 1], None),
        ([0, 1, 2], 0),
        ([0, 1, 2], 3),
        ([0, 1, 2], 5),
        ([0, 1, 2], 29),
        ([0, 1, 2], 4 + 24 * 1000),
        ([0, 1, 2], 2**32 - 1),
    ],
)
def test_a_payload_that_would_be_decoded_out_of_bounds_is_refused(
    isa, value, half, indices, length
):
    payload = payload_of(indices, np.ones(3, value), length)
    reading = dict(half_values=half, isa=isa)
    with pytest.raises(ValueError, match="payload must be one of 10 elements"):
        kernels.dgc.decompress(payload, 10, **reading)
    with pytest.raises(ValueError, match="payload must be one of 10 elements"):
        kernels.dgc.decompress_add(payload, np.zeros(10, np.float32), **reading)
    with pytest.raises(ValueError, match="payload must be one of 10 elements"):
        kernels.dgc.decompress_sum(payload[None], 10, **reading)
    assert not kernels.dgc.valid(payload[:3], 10, **reading)


@pytest.mark.parametrize(
    "wrong",
    [
        dict(selects=11),
        dict(selects=0),
        dict(samples=11),
        dict(top=0),
        dict(top=6),
        dict(stride=0),
        dict(stride=6),
    ],
)
def test_numbers_that_do_not_fit_are_refused(wrong):
    fields = dict(selects=2, samples=5, top=2, stride=2, strided=True, **RESAMPLE)
    config = kernels.DgcConfig(**dict(fields, **wrong))
    x, stream = np.zeros(10, np.float32), np.ones(2, np.uint64)
    with pytest.raises(ValueError, match="config must have 1 <= selects <= 10"):
        kernels.dgc.compress(x, x.copy(), config, stream)
