"""max_grad_norm clips each worker's gradient before the push, on every backend."""

import numpy as np
import pytest

from tests.mxnet.cluster.jobs import gradients_of
from tests.mxnet.cluster.standing import run, run_horovod
from tests.mxnet.exchange.test_two_way import SHAPES, assert_identical

MAX_NORM, WORKERS = 0.5, 4
EXACT = {"compressor": "topk", "k": 10**6, "ef": "vanilla"}
NODES = {**EXACT, "hierarchical": True}


def on_servers(ways):
    return run("several_steps", ways, WORKERS)


def on_horovod(ways):
    pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
    return run_horovod("several_steps", ways, WORKERS, {"BYTEPS_LOCAL_SIZE": 2})


def expected():
    """Return the average of all workers' gradients, each clipped by its own norm."""
    clipped = []
    for rank in range(WORKERS):
        gradients = gradients_of(rank, 0, SHAPES)
        norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradients))
        assert norm > MAX_NORM
        clipped.append([g * (MAX_NORM / norm) for g in gradients])
    return [sum(gradients) / WORKERS for gradients in zip(*clipped)]


@pytest.mark.parametrize(
    "backend, params", [(on_servers, [{}, EXACT]), (on_horovod, [{}, EXACT, NODES])]
)
def test_each_worker_clips_its_own_gradient(backend, params):
    ways = [
        {
            "shapes": SHAPES,
            "steps": 1,
            "compression_params": compression_params,
            "optimizer_params": {"learning_rate": 1.0},
            "trainer": {"max_grad_norm": MAX_NORM},
        }
        for compression_params in params
    ]
    results = backend(ways)
    assert_identical(results)
    for way in range(len(ways)):
        for i, average in enumerate(expected()):
            pushed = results[0][f"{way}/g{i}_0"].reshape(average.shape)
            np.testing.assert_allclose(pushed, average, rtol=1e-5, atol=1e-7)
