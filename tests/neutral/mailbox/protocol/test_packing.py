"""Packing: payloads of all compressors, and their mean."""

import itertools

import numpy as np
import pytest

from gluon_gc import compression
from gluon_gc.exchange.plan import Tensor
from gluon_gc.mailbox.packing import Packing
from tests.compressors import COMPRESSORS, params_of

from .workers import decoded, weighted_mean

PARTITION = 2048  # bytes, so that the larger tensor has several chunks
SIZES = {"w": 1500, "b": 7}
WITH_FEEDBACK = {
    name: {**params, "ef": "vanilla"}
    for name, params in COMPRESSORS.items()
    if not compression.parse(params).compressor.traits.draws_alike
}
CASES = {
    **{name: (params, "float32") for name, params in WITH_FEEDBACK.items()},
    **{name: (params, "float32") for name, params in params_of("dgc").items()},
    "float64": ({"compressor": "topk", "k": 0.05, "ef": "vanilla"}, "float64"),
    "uncompressed": ({}, "float32"),
    "uncompressed float64": ({}, "float64"),
    "fp16": ({"fp16": True}, "float32"),
}
each_case = pytest.mark.parametrize("params, dtype", CASES.values(), ids=CASES.keys())


@pytest.fixture(autouse=True)
def several_chunks(monkeypatch):
    monkeypatch.setenv("BYTEPS_PARTITION_BYTES", str(PARTITION))


def tensors_of(params, dtype="float32"):
    parsed = compression.parse(params)
    return [
        Tensor(name, size, dtype, parsed, index) for index, (name, size) in enumerate(SIZES.items())
    ]


def values_of(seed, dtype="float32", scale=1.0):
    random = np.random.default_rng(seed)
    return {
        name: (scale * random.standard_normal(size)).astype(dtype) for name, size in SIZES.items()
    }


def joined(packed):
    return [len(payload) for payload in packed.payloads], memoryview(b"".join(packed.payloads))


@each_case
def test_the_mean_of_payloads_is_that_of_what_they_decode_to_bit_for_bit(params, dtype):
    tensors, weights = tensors_of(params, dtype), [3.0, 1.0, 2.5]
    packings = [Packing(tensors) for _ in weights]
    for step in range(2):
        sent = [joined(p.pack(values_of((step, n), dtype))) for n, p in enumerate(packings)]
        assert len(sent[0][0]) > len(tensors)
        arrays = [decoded(tensors, lengths, body, PARTITION) for lengths, body in sent]
        weighted = [(weight, *payload) for weight, payload in zip(weights, sent)]
        for packing in (packings[0], Packing(tensors)):
            mean = packing.mean(weighted)
            for name in SIZES:
                expected = weighted_mean(weights, [each[name] for each in arrays])
                assert mean[name].dtype == dtype
                np.testing.assert_array_equal(mean[name], expected)


@pytest.mark.parametrize("params", WITH_FEEDBACK.values(), ids=WITH_FEEDBACK.keys())
def test_payloads_and_residuals_add_up_to_what_was_packed_and_can_be_taken_back(params):
    tensors, total = tensors_of(params), values_of(0, scale=0.0)
    packing, sums = Packing(tensors), values_of(0, scale=0.0)
    for step in range(3):
        values, before = values_of(step), packing.residuals()
        packing.pack(values)
        packing.take_back()
        for name in SIZES:
            np.testing.assert_array_equal(packing.residuals()[name], before[name])
        arrays = decoded(tensors, *joined(packing.pack(values)), PARTITION)
        for name in SIZES:
            total[name] += values[name]
            sums[name] += arrays[name]
            np.testing.assert_allclose(
                sums[name] + packing.residuals()[name], total[name], atol=1e-5
            )


@each_case
def test_payloads_of_another_length_and_other_chunks_are_refused(params, dtype):
    packing = Packing(tensors_of(params, dtype))
    lengths, body = joined(packing.pack(values_of(1, dtype)))
    data = bytes(body)
    for number, change in itertools.product(range(len(lengths)), (-1, 1)):
        others = [length + change * (n == number) for n, length in enumerate(lengths)]
        begin = sum(lengths[:number])
        cut = data[: begin + min(lengths[number], others[number])]
        cut += b"\0" * (change > 0) + data[begin + lengths[number] :]
        with pytest.raises(ValueError):
            list(packing.unpack(others, memoryview(cut)))
    for wrong in (lengths[:-1], [*lengths, 0], [*lengths[:-1], lengths[-1] + 1]):
        with pytest.raises(ValueError, match="other chunks"):
            list(packing.unpack(wrong, body))
    list(packing.unpack(lengths, body))


@each_case
def test_any_bytes_give_finite_values_or_an_error(params, dtype):
    packing, random = Packing(tensors_of(params, dtype)), np.random.default_rng(3)
    lengths, body = joined(packing.pack(values_of(1, dtype)))
    for share in (0.01, 0.1, 1.0):
        data = np.frombuffer(body, np.uint8).copy()
        altered = random.random(data.size) < share
        data[altered] = random.integers(0, 256, altered.sum())
        try:
            found = list(packing.unpack(lengths, data.data))
        except ValueError:
            continue
        assert all(np.isfinite(values).all() for _, values in found)


@each_case
@pytest.mark.parametrize("wrong", [np.nan, np.inf], ids=["nan", "inf"])
def test_a_nan_is_named_and_the_residuals_can_be_taken_back(params, dtype, wrong):
    packing = Packing(tensors_of(params, dtype))
    assert packing.pack(values_of(1, dtype)).nonfinite == ""
    before, values = packing.residuals(), values_of(2, dtype)
    values["b"][3] = wrong
    assert packing.pack(values).nonfinite == "b"
    packing.take_back()
    for name, residual in packing.residuals().items():
        np.testing.assert_array_equal(residual, before[name])


@each_case
def test_values_that_a_payload_cannot_hold_are_named_by_the_sender_and_by_receivers(params, dtype):
    """Otherwise a worker would be excluded by all others, and would not know why."""
    packing = Packing(tensors_of(params, dtype))
    for scale in (1e5, 1e30, 1e38):
        packed = packing.pack(values_of(1, dtype, scale))
        packing.take_back()
        try:
            list(packing.unpack(*joined(packed)))
        except ValueError:
            assert packed.nonfinite
        else:
            assert not packed.nonfinite


def test_the_mean_of_fp16_payloads_is_as_exact_as_the_parameters():
    """Small values times a weight's share would be zero in float16."""
    tensors = tensors_of({"fp16": True})
    tiny = {name: np.full(size, 6e-8, np.float32) for name, size in SIZES.items()}
    sent = joined(Packing(tensors).pack(tiny))
    mean = Packing(tensors).mean([(1.0, *sent)] * 3)
    np.testing.assert_allclose(mean["w"], np.float32(np.float16(6e-8)), rtol=1e-6)


def test_epochs_of_other_workers_do_not_matter():
    """A worker may have begun later: it decodes payloads of a warm-up that it is not in."""
    tensors = tensors_of({"compressor": "dgc", "k": 0.01, "warmup_epochs": 3})
    sender, receiver = Packing(tensors), Packing(tensors)
    sender.set_epoch(0)
    for epoch in (None, 0, 2, 5):
        if epoch is not None:
            receiver.set_epoch(epoch)
        sent = joined(sender.pack(values_of(1)))
        assert sum(np.count_nonzero(values) for _, values in receiver.unpack(*sent)) > 100
    sent = joined(receiver.pack(values_of(1)))
    assert sum(np.count_nonzero(values) for _, values in sender.unpack(*sent)) > 0


def test_packing_has_the_share_of_each_chunk():
    shares = list(Packing(tensors_of({})).shares())
    assert sum(share for _, share in shares) == pytest.approx(1)
    assert {name for name, _ in shares} == {"w", "b"}
