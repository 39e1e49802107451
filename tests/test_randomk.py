"""randomk through its operators: what all nodes draw, what is sent, and what is refused."""

import mxnet as mx
import numpy as np
import pytest

import gluon_gc as bps
from gluon_gc.compression import Codec, CompressionParams, parse, registry, stream
from tests.test_trainer import backward, make

RandomK = registry["randomk"]


def codec_of(params, n, dtype="float32", seed=5):
    return Codec(params, n, dtype, stream.seeded(seed).tolist())


@pytest.mark.parametrize("ef", [None, "vanilla", "corrected", "sparse"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 31, 1000])
def test_a_payload_is_as_many_values_as_the_plan_reckons_with(ef, dtype, n):
    params = CompressionParams(RandomK(0.1), ef)
    payload = codec_of(params, n, dtype).compress(mx.nd.ones(n, dtype=dtype))
    assert payload.dtype == np.dtype(dtype)
    assert payload.size * np.dtype(dtype).itemsize == params.payload_bytes(n, dtype)


def test_the_sum_of_payloads_decodes_to_the_sum_of_what_was_drawn():
    params = CompressionParams(RandomK(20), "vanilla")
    workers = [codec_of(params, 50) for _ in range(3)]
    x = [mx.nd.random.normal(shape=(50,)) for _ in workers]
    payloads = [codec.compress(g) for codec, g in zip(workers, x)]
    out = workers[0].decompress(payloads[0] + payloads[1] + payloads[2]).asnumpy()
    total = (x[0] + x[1] + x[2]).asnumpy()
    np.testing.assert_array_equal(out, np.where(out != 0, total, 0))
    assert 0 < np.count_nonzero(out) <= 20


def test_every_step_draws_others_and_decompressing_knows_which():
    codec = codec_of(CompressionParams(RandomK(5)), 1000)
    drawn = []
    for _ in range(3):
        out = codec.decompress(codec.compress(mx.nd.ones(1000))).asnumpy()
        drawn.append(set(np.flatnonzero(out)))
    assert drawn[0] != drawn[1] != drawn[2]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_codec_restored_from_its_state_goes_on_bit_for_bit(dtype):
    params = CompressionParams(RandomK(7), "corrected", 0.9)
    gradients = [mx.nd.random.normal(shape=(333,), dtype=dtype) for _ in range(6)]
    codec, restored = codec_of(params, 333, dtype), codec_of(params, 333, dtype, seed=99)
    for gradient in gradients[:3]:
        codec.compress(gradient)
    restored.load_state(codec.state())
    for gradient in gradients[3:]:
        expected = codec.decompress(codec.compress(gradient, ratio=0.5)).asnumpy()
        got = restored.decompress(restored.compress(gradient, ratio=0.5)).asnumpy()
        np.testing.assert_array_equal(got, expected)


def test_the_seed_decides_what_is_drawn_and_without_one_every_run_draws_others():
    def drawn(**seed):
        params, trainer = make(
            [(500,), (500,)],
            {"learning_rate": 1.0},
            {"compressor": "randomk", "k": 10, "ef": "vanilla", **seed},
        )
        backward(params, [np.ones(500, np.float32)] * 2)
        trainer.step(1)
        return [tuple(np.flatnonzero(param.grad().asnumpy())) for param in params]

    assert drawn(seed=3) == drawn(seed=3)
    assert drawn(seed=3) != drawn(seed=4)
    assert len({*drawn(seed=3)}) == 2, "the second parameter draws others"
    assert drawn() != drawn()
    assert len({*drawn()}) == 2


def test_all_workers_draw_the_same_without_a_seed(tmp_path):
    from tests.distributed.cluster import run

    params = {"compressor": "randomk", "k": 0.1, "ef": "vanilla"}
    first, second = run(
        tmp_path,
        "steps",
        {
            "shapes": [(300,), (7,)],
            "steps": 3,
            "compression_params": params,
            "optimizer_params": {"learning_rate": 1.0},
        },
        workers=2,
    )
    for name in ("g0_0", "g0_2", "g1_1"):
        np.testing.assert_array_equal(first[name], second[name])
    assert np.count_nonzero(first["g0_0"]) <= 30


@pytest.mark.parametrize("seed", [None, 3, np.int64(5)])
def test_described_params_are_read_back_as_they_were(seed):
    params = parse({"compressor": "randomk", "k": 0.25, "ef": "sparse", "seed": seed})
    assert params == CompressionParams(RandomK(0.25, seed), "sparse")
    assert parse(params.describe()) == params


@pytest.mark.parametrize(
    "more, error, message",
    [
        ({}, KeyError, "compression_params['k'] is missing; randomk needs a share"),
        ({"k": 3, "seed": 0}, ValueError, "['seed'] must be a whole number > 0, got 0"),
        ({"k": 3, "seed": 1.5}, TypeError, "['seed'] must be a whole number > 0, got 1.5 (float)"),
    ],
)
def test_wrong_params_are_refused_by_name_rule_and_value(more, error, message):
    with pytest.raises(error) as raised:
        parse({"compressor": "randomk", **more})
    assert message in raised.value.args[0]


def test_sparse_feedback_is_for_randomk_only():
    with pytest.raises(ValueError, match="'sparse' is for randomk, not for topk"):
        bps.compression.parse({"compressor": "topk", "k": 3, "ef": "sparse"})
