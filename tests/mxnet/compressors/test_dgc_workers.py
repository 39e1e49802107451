"""Deep Gradient Compression on real backends, compared with a replay of the reference algorithm."""

import numpy as np
import pytest

from tests import dgc_replay, replay
from tests.mxnet.cluster.jobs import gradients_of
from tests.mxnet.cluster.standing import run
from tests.mxnet.exchange.test_two_way import assert_identical, steps

SHAPES = [(60, 70), (33,), (257, 3)]
STEPS = 20
EPOCHS = [step // 4 for step in range(STEPS)]
WARM_UP = {"warmup_epochs": 2, "warmup_coeff": [0.25, 0.06]}
SHARES = [0.25, 0.06, 0.01, 0.01, 0.01]
SEED = 7
PARTITION = {"BYTEPS_PARTITION_BYTES": 12000}
CHUNK = 3000


def arguments(dtype="float32", **params):
    return {
        "shapes": SHAPES,
        "steps": STEPS,
        "epochs": EPOCHS,
        "dtype": dtype,
        "batch_size": 4,
        "compression_params": {"compressor": "dgc", "k": 0.01, "seed": SEED, **WARM_UP, **params},
        "optimizer_params": {"learning_rate": 0.1, "momentum": 0.9},
    }


EVERY_WAY = {
    "defaults": arguments(),
    "nesterov": arguments(momentum="nesterov"),
    "unmasked": arguments(momentum="nesterov", momentum_masking=False, strided_sample=False),
    "clipped": arguments(resample=False, gradient_clipping=0.5),
    "small": arguments(fp16_values=True, int32_indices=True, sample_ratio=0.5),
    "float64": arguments("float64"),
    "float16": arguments("float16"),
}


def worker(options, work, rank, index, n):
    """Return the replay of a worker's compressor for a chunk of n elements of a parameter."""
    params = options["compression_params"]
    start = replay.own_start(params["seed"], index, rank)  # each node has its own part
    names = {"strided_sample": "strided", "resample": "resample"}
    return dgc_replay.Replay(
        n,
        work,
        mu=0.9,
        start=start,
        nesterov="momentum" in params,
        momentum_masking=params.get("momentum_masking", True),
        half_values=params.get("fp16_values", False),
        max_norm=params.get("gradient_clipping", 0.0),
        **{own: params[name] for name, own in names.items() if name in params},
    )


def dense(options, averages):
    """Return the gradients of a dense vector: momentum after the exchange."""
    m = 0
    for g in averages:
        m = g.dtype.type(0.9) * m + g
        yield g + g.dtype.type(0.9) * m if "momentum" in options["compression_params"] else m


def check(results, options):
    """Compare the gradients after every step with the replay."""
    assert_identical(results)
    dtype = np.dtype(options["dtype"])
    work = np.float64 if dtype == np.float64 else np.float32
    # Rounding differs if workers are summed in another order, even when magnitudes are equal.
    tolerance = {2: 2e-3, 4: 1e-6, 8: 1e-14}[dtype.itemsize]
    order = np.argsort([result["row"] for result in results])
    for i, shape in enumerate(SHAPES):
        given = [
            [
                gradients_of(rank, step, SHAPES, dtype)[i].ravel().astype(work)
                * work(1 / (options["batch_size"] * len(results)))
                for rank in range(len(results))
            ]
            for step in range(STEPS)
        ]
        if len(shape) == 1:
            expected = list(dense(options, [sum(gradients) for gradients in given]))
            rounding = 2e-3 if dtype == np.float16 else 1e-6
        else:
            expected = list(gathered(options, given, order, work, i))
            rounding = tolerance
        for step in range(STEPS):
            np.testing.assert_allclose(
                results[0][f"g{i}_{step}"].ravel(), expected[step], rtol=rounding, atol=rounding
            )


def gathered(options, given, order, work, index):
    """Return the gradient that all workers get in each step: the sum of all decoded payloads."""
    n = given[0][0].size
    parts = replay.chunks(n, CHUNK * 4 // np.dtype(options["dtype"]).itemsize)
    sizes = [part.stop - part.start for part in parts]
    workers = [[worker(options, work, rank, index, size) for size in sizes] for rank in order]
    for epoch, gradients in zip(EPOCHS, given):
        total = np.zeros(n, work)
        for replays, rank in zip(workers, order):
            for one, part in zip(replays, parts):
                ratio = options["compression_params"].get("sample_ratio", 0.01)
                one.options.update(dgc_replay.plan(part.stop - part.start, SHARES[epoch], ratio))
                total[part] += one.step(gradients[rank][part])[1]
        yield total


@pytest.mark.parametrize("way", EVERY_WAY)
def test_every_option_agrees_with_a_numpy_replay(way):
    check(run(steps, EVERY_WAY[way], 2, 2, PARTITION), EVERY_WAY[way])
