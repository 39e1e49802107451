"""dgc: its replay in NumPy, the number of elements to send, and its own tests."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_gc import kernels
from tests import dgc_replay
from tests.neutral.kernels import arrays, sums
from tests.neutral.kernels.bindings import valid

from .distributions import DISTRIBUTIONS, N
from .replay import low_bits_of, payload_bytes

PLAIN = {
    "k": 0.01,
    "sample_ratio": 0.01,
    "strided_sample": True,
    "compress_upper_bound": 1.3,
    "compress_lower_bound": 0.8,
    "max_adaptation_iters": 10,
    "resample": True,
    "momentum_masking": True,
}
ADAPT = {"resample": False}
HASTY = {
    "resample": False,
    "compress_upper_bound": 2.0,
    "compress_lower_bound": 0.9,
    "max_adaptation_iters": 2,
}
NEVER = {"max_adaptation_iters": 0}
ODD = {"compress_upper_bound": 0.5, "compress_lower_bound": 0.01, "max_adaptation_iters": 3}
OPTIONS = [
    {**PLAIN, **changes}
    for changes in (
        {"nesterov": True},
        {"k": 0.001, "nesterov": True, **ADAPT},
        {"k": 0.1, "sample_ratio": 0.05, **HASTY},
        {"k": 0.25, "strided_sample": False, "momentum_masking": False},
        {"k": 100, "strided_sample": False, "nesterov": True, **ADAPT},
        {"k": 10**6, **ODD},
        {"sample_ratio": 1.0, "value_bits": 16, **NEVER},
        {"gradient_clipping": 1e-3, "nesterov": True, **ODD},
        {"gradient_clipping": 1e6, "momentum_masking": False, "strided_sample": False, **HASTY},
        {"warmup_epochs": 4, "epoch": 1},
        {"warmup_epochs": 4, "epoch": 0, "warmup_coeff": 0.5, "k": 20, **ADAPT},
        {"warmup_epochs": 2, "epoch": 1, "warmup_coeff": (0.25, 0.0625), "value_bits": 16},
        {"warmup_epochs": 3, "epoch": 7, "warmup_coeff": [0.2, 0.1, 0.3]},
        {"warmup_epochs": 2, "epoch": 0, "warmup_coeff": [1.0, 0.1]},
    )
]


def ratio_of(options, n, epoch):
    """Return the share of n elements to send in an epoch."""
    ratio = options["k"] if options["k"] < 1 else min(1.0, options["k"] / n)
    epochs, coefficient = options.get("warmup_epochs", -1), options.get("warmup_coeff")
    if epoch >= epochs:
        return ratio
    if isinstance(coefficient, (list, tuple)):
        return coefficient[epoch]
    return max((coefficient or ratio ** (1 / (epochs + 1))) ** (epoch + 1), ratio)


def selects_at_last(options, n):
    """Return how many of n elements are sent after the warm-up."""
    return math.ceil(n * ratio_of(options, n, math.inf)) if n else 0


class Replay(dgc_replay.Replay):
    """dgc in NumPy, created from a codec's options."""

    def __init__(self, options, n, dtype, start=(0, 0)):
        ratio = ratio_of(options, n, options.get("epoch", math.inf)) if n else 1.0
        super().__init__(
            n,
            dtype,
            options.get("mu"),
            start,
            nesterov=options.get("nesterov", False),
            momentum_masking=options["momentum_masking"],
            half_values=options.get("value_bits") == 16,
            max_norm=options.get("gradient_clipping", 0.0),
            selects_at_last=selects_at_last(options, n),
            strided=options["strided_sample"],
            upper=options["compress_upper_bound"],
            lower=options["compress_lower_bound"],
            iterations=options["max_adaptation_iters"],
            resample=options["resample"],
            **dgc_replay.plan(n, ratio, max(options["sample_ratio"], 0.01)),
        )

    def step(self, gradient, scale=1.0, ratio=1.0):
        return super().step(gradient, scale)

    @property
    def residual(self):
        return self.velocity

    @residual.setter
    def residual(self, velocity):
        self.velocity = velocity


sizes = st.sampled_from([0, 1, 2, 31, 2000, 2001, 5000, 70_001, 100_003])
options = st.sampled_from(OPTIONS)


@given(options, sizes, st.integers(0, 5), arrays.dtypes)
def test_there_is_room_for_what_any_epoch_sends(options, n, epoch, dtype):
    codec = kernels.Codec("dgc", {**options, "epoch": epoch}, n, dtype)
    epochs = range(options.get("warmup_epochs", 0) + 1)
    most = max(math.ceil(n * ratio_of(options, n, epoch)) for epoch in epochs) if n else 0
    value_bytes = 2 if options.get("value_bits") == 16 else np.dtype(dtype).itemsize
    low_bits = low_bits_of(n, selects_at_last(options, n))
    assert codec.payload_bytes == 4 + payload_bytes(n, most, low_bits, value_bytes)
    assert codec.length_at == 0


@pytest.mark.parametrize("n", [1, 63, 64, 1000, 5000, 70_001, 2**20, 25_000_000])
@pytest.mark.parametrize("k", [0.001, 0.01, 0.3, 0.5, 7, 10**9])
@pytest.mark.parametrize("sample_ratio", [0.001, 0.01, 0.05, 0.999, 1.0])
def test_the_draws_are_those_of_the_reference_implementations_sample(n, k, sample_ratio):
    ratio = k if k < 1 else min(1.0, k / n)
    plan = dgc_replay.plan(n, ratio, max(sample_ratio, 0.01))
    whole = plan["samples"] == n
    for strided in (False, True):
        options = {**PLAIN, "k": k, "sample_ratio": sample_ratio, "strided_sample": strided}
        codec = kernels.Codec("dgc", options, n)
        assert codec.draws == (0 if whole else 1 if strided else plan["samples"])


# With ascending values, the number of sent elements shows how many the plan selects.
@pytest.mark.parametrize("coefficient", [None, 0.3, (0.3, 0.1, 0.4, 0.05)])
@pytest.mark.parametrize("k", [0.001, 0.07, 300])
def test_an_epoch_of_the_warm_up_sends_its_share(k, coefficient):
    n = 20_000
    options = {**PLAIN, "k": k, "warmup_epochs": 4, "sample_ratio": 1.0}
    if coefficient:
        options["warmup_coeff"] = coefficient
    for epoch in range(6):
        codec = kernels.Codec("dgc", {**options, "epoch": epoch}, n)
        _, status = codec.compress(np.arange(1, n + 1, dtype=np.float32), codec.state())
        count = math.ceil(n * ratio_of(options, n, epoch))
        low_bits = low_bits_of(n, selects_at_last(options, n))
        assert status.bytes == 4 + payload_bytes(n, count, low_bits, 4)


@pytest.mark.parametrize("coefficient", [1.5, (0.5, 0), (0.5, 1.5), (0.5, float("nan")), (0.5,)])
def test_a_warm_up_that_sends_none_or_more_than_all_is_refused(coefficient):
    options = {**PLAIN, "warmup_epochs": 2, "warmup_coeff": coefficient}
    with pytest.raises(ValueError, match="warmup_coeff must"):
        kernels.Codec("dgc", options, 1000)


@settings(max_examples=20)
@given(st.integers(0, 3), options, arrays.dtypes, st.booleans(), arrays.isas, arrays.threads)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_no_distribution_defeats_the_sample(name, seed, options, dtype, momentum, isa, threads):
    options = {**options, "mu": 0.9} if momentum else options
    codec = kernels.Codec("dgc", options, N, dtype, isa)
    replay, state = Replay(options, N, dtype, (2020, 2020)), codec.state()
    for step in range(2):
        x = DISTRIBUTIONS[name](np.random.default_rng(seed), N)
        x = np.ascontiguousarray(x).astype(dtype)
        position = kernels.position((2020, 2020), step * codec.draws)
        payload, status = codec.compress(x, state, position, threads=threads)
        assert np.array_equal(payload[: status.bytes], replay.step(x)[0])


@arrays.each_isa
@pytest.mark.parametrize("resample", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
def test_many_steps_of_training_give_the_bits_of_the_replay(isa, resample, nesterov):
    random = np.random.default_rng(0)
    options = {**PLAIN, "k": 0.001, "resample": resample, "nesterov": nesterov, "mu": 0.9}
    codec = kernels.Codec("dgc", options, N, isa=isa)
    replay, state = Replay(options, N, np.float32, (2020, 2020)), codec.state()
    mean = random.standard_normal(N)
    for step in range(60):
        x = (mean + random.standard_normal(N)).astype(np.float32)
        position = kernels.position((2020, 2020), step * codec.draws)
        payload, status = codec.compress(x, state, position)
        assert np.array_equal(payload[: status.bytes], replay.step(x)[0])
    assert arrays.same_bits(state.memory[0], replay.velocity)
    assert arrays.same_bits(state.momentum, replay.momentum)


@given(options, st.integers(1, 5000), arrays.dtypes, arrays.seeds)
def test_what_is_sent_and_what_is_kept_are_the_compensated_velocity(options, n, dtype, seed):
    options = {**options, "mu": 0.9, "value_bits": 32}
    codec = kernels.Codec("dgc", options, n, dtype)
    state, x = codec.state(), arrays.awkward(n, dtype, seed)
    zeros, clipping = np.zeros(n, dtype), options.get("gradient_clipping", 0.0)
    nesterov = options.get("nesterov", False)
    v, m = dgc_replay.compensate(x, zeros, zeros, 0.9, nesterov, clipping)
    payload, _ = codec.compress(x, state)
    sent, _ = codec.decompress(payload)
    (kept,) = state.memory
    assert (sent * kept == 0).all()
    assert np.array_equal(sent + kept, v)
    assert (state.momentum[sent != 0] == 0).all() or not options["momentum_masking"]
    assert np.array_equal(state.momentum[sent == 0], m[sent == 0]) or (v == 0).any()


@arrays.each_isa
@arrays.each_dtype
@pytest.mark.parametrize("n", [1025, 2**20 + 12_345])
def test_clipping_is_by_the_norm_of_the_fixed_tree_of_sums(isa, dtype, n):
    x = arrays.awkward(n, dtype, 3)
    norm = sums.l2_norm(x)
    codec = kernels.Codec("dgc", {**PLAIN, "k": n, "gradient_clipping": 0.5}, n, dtype, isa)
    out, _ = codec.decompress(codec.compress(x, codec.state(), threads=2)[0])
    assert np.array_equal(out, x * (dtype(0.5) / norm))


@arrays.each_isa
@arrays.each_dtype
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size, at", [(99, 0), (99, 40), (99, 98), (N, 0), (N, 77_777)])
@pytest.mark.parametrize("fill", ["normal", "all zero", "all equal"])
@pytest.mark.parametrize("clipping", [0, 1.0])
def test_what_is_not_finite_is_noticed_wherever_it_is(isa, dtype, bad, size, at, fill, clipping):
    x = DISTRIBUTIONS[fill](np.random.default_rng(0), size).astype(dtype)
    options = {**PLAIN, "k": 0.001, "mu": 0.9, "nesterov": True, "gradient_clipping": clipping}
    codec = kernels.Codec("dgc", options, size, dtype, isa)
    assert codec.compress(x, codec.state())[1].finite
    for place in range(3):
        gradient, state = x.copy(), codec.state()
        (gradient, state.memory[0], state.momentum)[place][at] = bad
        payload, wrote = codec.compress(gradient, state)
        _, read = codec.decompress(payload)
        assert not wrote.finite and not read.finite
        assert not state.memory[0].any() and not state.momentum.any()


@arrays.each_isa
@arrays.each_dtype
def test_values_are_rounded_once_to_halves_and_ties_to_even(isa, dtype):
    halves = np.arange(1, 0x7C00, dtype=np.uint16).view(np.float16)
    ties = (halves[1:].astype(dtype) + halves[:-1]) / 2
    one = dtype(1)
    x = np.concatenate([ties, np.nextafter(ties, one * 0), np.nextafter(ties, one * np.inf)])
    x = np.concatenate([x, -x, np.array([65519, 65520, 1e30, 1e-30], dtype)])
    x = np.append(x, np.finfo(dtype).max)
    options = {**PLAIN, "k": x.size, "sample_ratio": 1, "value_bits": 16}
    codec = kernels.Codec("dgc", options, x.size, dtype, isa)
    state = codec.state()
    payload, status = codec.compress(x, state)
    assert np.array_equal(payload[: status.bytes], Replay(options, x.size, dtype).step(x)[0])
    out, _ = codec.decompress(payload)
    assert out[-1] == 65504 and np.array_equal(state.memory[0], x - out)


@arrays.each_isa
@pytest.mark.parametrize("value, bits", [(np.float16, 16), (np.float32, 32)])
@pytest.mark.parametrize(
    "indices, length",
    [
        ([0, 10], None),
        ([1, 1], None),
        ([3, 2], None),
        ([0, 9], 0),
        ([0, 9], 3),
        ([0, 9], 5),
        ([0, 9], 9),
        ([0, 9], 13),
        ([0, 9], 24_004),
        ([0, 9], 2**32 - 1),
    ],
)
def test_a_payload_that_would_be_decoded_out_of_bounds_is_refused(
    isa, value, bits, indices, length
):
    codec = kernels.Codec("dgc", {**PLAIN, "k": 2, "value_bits": bits}, 10, isa=isa)
    low_bits = low_bits_of(10, 2)
    payload = dgc_replay.payload_of(indices, np.ones(2, value), 10, low_bits, length)
    with pytest.raises(ValueError, match="payload 0 is not one of 10 elements"):
        codec.decompress(payload)
    assert not valid(codec, payload[:3])


@arrays.each_isa
@pytest.mark.parametrize("byte, bit", [(0, 3), (0, 0)])
def test_a_payload_with_another_number_of_indices_than_of_values_is_refused(isa, byte, bit):
    codec = kernels.Codec("dgc", {**PLAIN, "k": 2}, 10, isa=isa)
    payload = dgc_replay.payload_of([0, 9], np.ones(2, np.float32), 10, low_bits_of(10, 2))
    assert valid(codec, payload)
    payload[4 + byte] ^= 1 << bit
    assert not valid(codec, payload)
