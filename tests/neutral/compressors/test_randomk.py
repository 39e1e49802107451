"""randomk: its replay in NumPy, and its own tests."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluon_gc import kernels
from tests.neutral.kernels import arrays
from tests.neutral.kernels.bindings import draw

from . import replay
from .cases import isas_of
from .replay import element_count

COUNTS = (0.3, 0.01, 1, 0.999, 63, 64, 65, 10**6)
OPTIONS = [{"k": k, **scaling} for k in COUNTS for scaling in ({}, {"scaling": False})]
PARAMS = {"randomk": {"k": 0.1}}
N = 100_000  # several blocks

each_isa = pytest.mark.parametrize("isa", isas_of("randomk"))


class Replay(replay.Replay):
    """randomk in NumPy."""

    def encode(self, p):
        k, decoded = element_count(self.options["k"], p.size), np.zeros_like(p)
        if k == 0:
            return np.zeros(0, np.uint8), decoded
        indices = (self.draw(k) % np.uint64(p.size)).astype(np.intp)
        scaled = self.options.get("scaling", True) and self.residual is None
        factor = self.T(p.size) / self.T(k) if scaled else self.T(1)
        decoded[indices] = p[indices] * factor
        return decoded[indices].view(np.uint8), decoded


def start(seed):
    return kernels.position(np.random.default_rng(seed).integers(1, 2**64, 2, np.uint64))


def sent_indices(n, k):
    return (draw(start(0), k) % np.uint64(n)).tolist()


@given(st.integers(1, 5000), st.floats(1, 1000), arrays.dtypes, arrays.seeds, st.integers(1, 5))
def test_the_sum_of_payloads_decodes_to_the_sum_of_what_they_decode_to(n, k, dtype, seed, workers):
    codec, position = kernels.Codec("randomk", {"k": k}, n, dtype), start(seed)
    payloads, expected = np.zeros(codec.draws, dtype), np.zeros(n, dtype)
    for worker in range(workers):
        payload, _ = codec.compress(arrays.awkward(n, dtype, seed + worker), position=position)
        payloads = payloads + payload.view(dtype)
        expected = expected + codec.decompress(payload, position)[0]
    assert np.array_equal(codec.decompress(payloads.view(np.uint8), position)[0], expected)


@pytest.mark.parametrize("n, k", [(50, 5), (50, 50), (7, 6)])
def test_decoding_is_unbiased_but_for_repeats(n, k):
    rounds = 4000
    x = np.random.default_rng(0).standard_normal(n)
    codec = kernels.Codec("randomk", {"k": k}, n, np.float64)
    total, squares = np.zeros(n), np.zeros(n)
    for step in range(rounds):
        position = kernels.position((1234567, 2**63), step * codec.draws)
        out, _ = codec.decompress(codec.compress(x, position=position)[0], position)
        total += out
        squares += out**2
    mean = total / rounds
    error = np.sqrt((squares / rounds - mean**2) / rounds)
    expected = x * (n / k) * (1 - (1 - 1 / n) ** k)
    assert (np.abs(mean - expected) <= 4 * error).all()


def test_unscaled_values_are_sent_as_they_are():
    x = np.arange(1, 101, dtype=np.float32)
    sent = {}
    for scaling in (True, False):
        codec = kernels.Codec("randomk", {"k": 10, "scaling": scaling}, 100)
        sent[scaling], _ = codec.decompress(codec.compress(x, position=start(0))[0], start(0))
    drawn = sent[False] != 0
    np.testing.assert_array_equal(sent[False][drawn], x[drawn])
    np.testing.assert_array_equal(sent[True], 10 * sent[False])


def test_sparse_feedback_is_by_the_ratio_of_learning_rates_as_corrected_is():
    residuals = {}
    for ef in ("vanilla", "corrected", "sparse"):
        codec = kernels.Codec("randomk", {"k": 10, "ef": ef}, 100)
        state = codec.state()
        for ratio in (1.0, 0.5, 2.0):
            codec.compress(np.ones(100, np.float32), state, start(0), ratio=ratio)
        residuals[ef] = codec.residual(state)
    np.testing.assert_array_equal(residuals["sparse"], residuals["corrected"])
    assert set(residuals["sparse"]) == {0, (1 * 0.5 + 1) * 2 + 1}
    assert set(residuals["vanilla"]) == {0, 3}


@each_isa
@arrays.each_dtype
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 16_383, 77_777, N - 1])
@pytest.mark.parametrize("state", [{"ef": "sparse"}, {"mu": 0.9}, {"mu": 0.9, "ef": "vanilla"}])
def test_with_a_sweep_any_value_that_is_not_finite_shows(isa, dtype, bad, at, state):
    x = np.random.default_rng(0).standard_normal(N).astype(dtype)
    codec = kernels.Codec("randomk", {"k": 10, **state}, N, dtype, isa)
    assert codec.compress(x, codec.state(), start(0))[1].finite
    x[at] = bad
    payload, status = codec.compress(x, codec.state(), start(0))
    assert not status.finite and np.isnan(payload.view(dtype)).all()


@each_isa
@arrays.each_dtype
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_without_a_sweep_a_value_that_is_not_finite_shows_just_if_it_is_sent(isa, dtype, bad):
    codec, sent = kernels.Codec("randomk", {"k": 10}, N, dtype, isa), sent_indices(N, 10)
    x = np.ones(N, dtype)
    x[[i for i in range(20) if i not in sent]] = bad
    assert codec.compress(x, position=start(0))[1].finite
    x[sent[7]] = bad
    payload, status = codec.compress(x, position=start(0))
    assert not status.finite and np.isnan(payload.view(dtype)).all()


@each_isa
def test_a_value_that_the_factor_makes_infinite_shows(isa):
    codec = kernels.Codec("randomk", {"k": 2}, 100, isa=isa)
    _, status = codec.compress(np.full(100, 1e38, np.float32), position=start(0))
    assert not status.finite


def test_of_no_elements_nothing_is_drawn_and_nothing_sent():
    codec = kernels.Codec("randomk", {"k": 3}, 0)
    assert codec.draws == codec.payload_bytes == 0
    payload, status = codec.compress(np.empty(0, np.float32))
    assert codec.decompress(payload)[0].size == 0 and status.finite
