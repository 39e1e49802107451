"""onebit: the kernels against a NumPy replay, each other, and BytePS's numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluon_gc import kernels

from . import arrays, decoding, feedback, golden
from .decoding import check_decoding, check_sum
from .feedback import Feedback

GRAIN, MAX_BLOCKS, LANES, WORD = 16384, 128, 16, 32


def sum_of_magnitudes(p):
    """In float64, in the kernel's order: lanes of a block, then the lanes, then the blocks."""
    total = 0.0
    block = GRAIN * (p.size // (GRAIN * MAX_BLOCKS) + 1)
    for start in range(0, p.size, block):
        part = np.abs(p[start : start + block].astype(np.float64))
        rows = np.pad(part, (0, -part.size % WORD)).reshape(-1, WORD)
        lanes = np.add.accumulate(rows, axis=0)[-1]
        total += np.add.accumulate(lanes[:LANES])[-1] + np.add.accumulate(lanes[LANES:])[-1]
    return total


def decode(p, scale):
    return np.where(p < 0, -scale, scale)


class Replay(Feedback):
    """onebit in NumPy, the residual kept as such."""

    def step(self, gradient, scaling, *scales):
        """Returns p and the scale."""
        p = self.correct(gradient, *scales)
        mean = sum_of_magnitudes(p) / p.size if p.size else 0.0
        scale = self.dtype(mean if scaling else 1)
        if self.residual is not None:
            self.residual = p - decode(p, scale)
        return p, scale


def payload_of(p, scale):
    bits = np.packbits(np.pad(p < 0, (0, -p.size % WORD)), bitorder="little")
    return np.concatenate([bits, np.array([scale]).view(np.uint8)])


class State:
    """The arrays that the kernel keeps between calls."""

    def __init__(self, size, dtype, mu=None, feedback=False, copy=np.copy):
        self.keywords = Feedback(size, dtype, mu).state(copy)
        if feedback:
            self.keywords.update(
                corrected=copy(np.zeros(size, dtype)), scale=copy(np.zeros(1, dtype))
            )

    def residual(self):
        return kernels.onebit.residual(self.keywords["corrected"], self.keywords["scale"])


@given(
    arrays.sizes,
    arrays.dtypes,
    arrays.seeds,
    feedback.kinds,
    st.booleans(),
    feedback.scales,
    arrays.how,
    arrays.offsets,
)
def test_every_instruction_set_and_number_of_threads_gives_the_bits_of_the_replay(
    size, dtype, seed, kind, scaling, scale, how, offset
):
    guarded = arrays.Guarded(offset)
    replay = Replay(size, dtype, **kind)
    state = State(size, dtype, **kind, copy=guarded.copy)
    for step, ratio in enumerate(feedback.RATIOS):
        gradient = guarded.copy(arrays.awkward(size, dtype, seed + step))
        payload = guarded.empty(kernels.onebit.capacity(size, dtype), np.uint8)
        p, decoded_scale = replay.step(gradient, scaling, scale, ratio)

        options = dict(scaling=scaling, ratio=ratio, payload=payload, **how, **state.keywords)
        _, magnitude = kernels.onebit.compress(gradient, gradient_scale=scale, **options)

        assert np.array_equal(payload, payload_of(p, decoded_scale))
        assert magnitude == sum_of_magnitudes(p)
        kept = dict(state.keywords)
        if kind["feedback"]:
            assert arrays.same_bits(kept["corrected"], p)
            assert kept["scale"][0] == decoded_scale
            kept["residual"] = state.residual()
        replay.check(kept)
    guarded.check()


@given(arrays.sizes, arrays.dtypes, arrays.seeds, arrays.how, arrays.offsets)
def test_decoding_gives_plus_or_minus_the_scale_and_adding_adds_it(size, dtype, seed, how, offset):
    x = arrays.awkward(size, dtype, seed)
    payload, _ = kernels.onebit.compress(x)
    expected = decode(x, payload[payload.size - x.itemsize :].copy().view(dtype)[0]).astype(dtype)
    check_decoding(kernels.onebit, payload, expected, seed + 1, arrays.Guarded(offset), how)


@given(st.integers(0, 5000), arrays.dtypes, arrays.seeds, arrays.isas)
def test_with_scaling_it_contracts_as_the_paper_says(size, dtype, seed, isa):
    x = arrays.awkward(size, dtype, seed)
    payload, _ = kernels.onebit.compress(x, scaling=True, isa=isa)
    out = kernels.onebit.decompress(payload, size, dtype, isa=isa).astype(np.longdouble)
    exact = x.astype(np.longdouble)
    square, magnitude = np.sum(exact**2), np.sum(np.abs(exact))
    if square > 0:
        delta = magnitude**2 / (size * square)
        assert np.sum((exact - out) ** 2) <= (1 - delta) * square + 1e-6 * square


@given(
    arrays.sizes,
    arrays.dtypes,
    arrays.seeds,
    decoding.counts,
    decoding.paddings,
    arrays.how,
    arrays.offsets,
)
def test_summing_payloads_equals_decoding_the_first_and_adding_the_others_in_order(
    size, dtype, seed, count, padding, how, offset
):
    def encode(i):
        p, scale = Replay(size, dtype).step(arrays.awkward(size, dtype, seed + i), True)
        return payload_of(p, scale), decode(p, scale)

    rows = count, padding, arrays.Guarded(offset)
    check_sum(kernels.onebit, size, dtype, encode, *rows, how)


@arrays.each_isa
def test_a_sum_starts_from_the_first_payload_itself_so_that_minus_zero_stays(isa):
    payload, _ = kernels.onebit.compress(np.full(40, -1, np.float32))
    payload.view(np.float32)[-1] = 0
    out = kernels.onebit.decompress_sum(payload[None], 40, isa=isa)
    assert np.signbit(out).all() and (out == 0).all()


@given(arrays.sizes, arrays.dtypes, arrays.seeds, arrays.isas)
def test_going_on_from_a_saved_residual_is_bit_identical_to_never_having_stopped(
    size, dtype, seed, isa
):
    gradients = [arrays.awkward(size, dtype, seed + step) for step in range(4)]
    ratios = [1.0, 1.0, 0.5, 2.0]
    straight, stopped = State(size, dtype, 0.9, True), State(size, dtype, 0.9, True)
    for gradient, ratio in zip(gradients, ratios):
        residual = stopped.residual()
        stopped.keywords["corrected"][:], stopped.keywords["scale"][:] = residual, 0
        payloads = [
            kernels.onebit.compress(gradient, ratio=ratio, isa=isa, **state.keywords)[0]
            for state in (straight, stopped)
        ]
        assert np.array_equal(*payloads)
        assert arrays.same_bits(straight.keywords["corrected"], stopped.keywords["corrected"])


@arrays.each_isa
@arrays.each_dtype
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 15, 16, 40, 98])
def test_a_value_that_is_not_finite_shows_in_the_sum_and_the_scale(isa, dtype, bad, at):
    x = np.ones(99, dtype)
    x[at] = bad
    payload, magnitude = kernels.onebit.compress(x, isa=isa)
    out = kernels.onebit.decompress(payload, x.size, dtype, isa=isa)
    assert np.isnan(magnitude) if np.isnan(bad) else magnitude == np.inf
    assert not np.isfinite(out).any()
    assert payload[at // 8] == (1 << at % 8 if bad < 0 else 0)
    assert not np.isfinite(kernels.onebit.compress(x, scaling=False, isa=isa)[1])


@arrays.each_isa
@arrays.each_dtype
def test_zeros_of_both_signs_and_nans_decode_to_plus_the_scale(isa, dtype):
    x = np.array([0.0, -0.0, np.nan, -np.nan, -1.0], dtype)
    payload, _ = kernels.onebit.compress(x, scaling=False, isa=isa)
    assert kernels.onebit.decompress(payload, x.size, dtype, isa=isa).tolist() == [1, 1, 1, 1, -1]


@arrays.each_isa
def test_the_largest_floats_do_not_overflow_the_sum_and_the_smallest_are_not_lost(isa):
    for value in np.finfo(np.float32).max, np.finfo(np.float32).smallest_subnormal:
        payload, magnitude = kernels.onebit.compress(np.full(100_000, -value), isa=isa)
        assert magnitude == 100_000 * float(value)
        assert (kernels.onebit.decompress(payload, 100_000, isa=isa) == -value).all()


@pytest.mark.parametrize("scaling, scale", [(True, 0.0), (False, 1.0)])
def test_a_payload_of_no_elements_is_its_scale_alone(scaling, scale):
    payload, magnitude = kernels.onebit.compress(np.empty(0, np.float32), scaling=scaling)
    assert payload.view(np.float32).tolist() == [scale] and magnitude == 0


def test_blocks_that_grow_with_the_size_keep_the_sum_independent_of_threads():
    x = np.random.default_rng(0).standard_normal(GRAIN * MAX_BLOCKS + 12345, np.float32)
    payload, magnitude = kernels.onebit.compress(x, isa="scalar")
    assert magnitude == sum_of_magnitudes(x)
    for isa in kernels.isas():
        for threads in (2, 3):
            assert np.array_equal(kernels.onebit.compress(x, threads=threads, isa=isa)[0], payload)


@arrays.each_isa
def test_a_single_compression_decodes_to_byteps_numbers(isa):
    cases = golden.compressions("onebit")
    assert len(cases) == 32
    for options, x, expected in cases:
        payload, _ = kernels.onebit.compress(x, scaling=options["scaling"] == "True", isa=isa)
        decoded = kernels.onebit.decompress(payload, x.size, isa=isa)
        np.testing.assert_array_max_ulp(decoded, expected, 2)


RUNS = golden.runs("onebit")


@arrays.each_isa
@pytest.mark.parametrize("run", RUNS, ids=golden.name_of)
def test_four_steps_with_feedback_decode_to_byteps_numbers(run, isa):
    state = State(run.size, np.float32, run.mu, feedback=True)
    for expected, ratio in run.steps():
        payload, _ = kernels.onebit.compress(expected["g"], ratio=ratio, isa=isa, **state.keywords)
        decoded = kernels.onebit.decompress(payload, run.size, isa=isa)
        np.testing.assert_array_max_ulp(decoded, expected["d"], 2)


@arrays.each_isa
@pytest.mark.parametrize("run", RUNS, ids=golden.name_of)
def test_each_step_with_feedback_from_byteps_state_differs_by_rounding_only(run, isa):
    state = State(run.size, np.float32, run.mu, feedback=True)

    def step(gradient, ratio):
        payload, _ = kernels.onebit.compress(gradient, ratio=ratio, isa=isa, **state.keywords)
        decoded = kernels.onebit.decompress(payload, run.size, isa=isa)
        got = {"p": state.keywords["corrected"], "d": decoded, "e": state.residual()}
        if run.mu:
            got["m"] = state.keywords["momentum"]
        return got

    def restore(expected):
        state.keywords["corrected"][:], state.keywords["scale"][:] = expected["e"], 0
        if run.mu:
            state.keywords["momentum"][:] = expected["m"]

    run.check(step, restore)
