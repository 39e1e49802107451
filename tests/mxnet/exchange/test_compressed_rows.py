"""Compressed row-sparse gradients match a NumPy replay."""

from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

import gluon_gc as bps
from gluon_gc import kernels
from gluon_gc.compression import parse
from tests import replay
from tests.compressors import COMPRESSORS
from tests.mxnet.cluster.jobs import give_rows, rows_of
from tests.mxnet.cluster.standing import run, run_horovod, run_local, run_machine
from tests.mxnet.exchange.test_two_way import assert_identical

SHAPE = (400, 9)
RATES = [0.5] * 3 + [0.25] * 2 + [1.0] * 3


def compressed_rows(params, folder):
    """Train on known row-sparse gradients; then repeat the second half from a checkpoint.

    Returns the gradients after each step, and the bytes of a step.
    """
    file, half, result = str(Path(folder, f"rows-{bps.rank()}")), len(RATES) // 2, {}

    def made():
        param = mx.gluon.Parameter("p", shape=SHAPE, grad_stype="row_sparse")
        param.initialize(mx.init.One())
        param.list_grad()[0][:] = mx.nd.sparse.zeros("row_sparse", SHAPE)
        optimizer = {"learning_rate": RATES[0]}
        return param, bps.DistributedTrainer([param], "sgd", optimizer, compression_params=params)

    def train(param, trainer, begin, end, name):
        for step in range(begin, end):
            trainer.set_learning_rate(RATES[step])
            give_rows(param, bps.rank(), step)
            trainer.allreduce_grads()
            trainer.applied()
            result[f"{name}{step}"] = param.list_grad()[0].tostype("default").asnumpy()

    param, trainer = made()
    train(param, trainer, 0, half, "g")
    trainer.save_states(file)
    train(param, trainer, half, len(RATES), "g")
    pushed = trainer.compression_stats()["total"]["pushed_bytes"]
    param, trainer = made()
    trainer.load_states(file)
    train(param, trainer, half, len(RATES), "resumed")
    result["row"] = bps.rank()
    return result, pushed


WAYS = {
    name: {**params, "ef": "corrected", "ef_decay": 0.9} for name, params in COMPRESSORS.items()
}
for name, ef in (("topk", "vanilla"), ("onebit", None), ("randomk", None), ("randomk", "sparse")):
    WAYS[f"{name}-{ef}"] = {**COMPRESSORS[name], "ef": ef}


def framed_bytes(length, most):
    """Return the bytes of a `length`-byte message in MXNet's row frames; `most` is its limit."""
    words = kernels.frame_words(4 + most)
    row_bytes = 4 + most if words <= 256 else 1016
    return -(-(4 + length) // row_bytes) * (4 * min(words, 256) + 12)


def check(results, params, framed):
    """Check gradients and bytes against the replay, and the gradients after a checkpoint.

    `framed` is None if no bytes travel over a network.
    """
    of_ranks, pushed = zip(*results)
    assert_identical(of_ranks)
    workers, params = len(of_ranks), parse(params)
    order = np.argsort([result["row"] for result in of_ranks])  # the order of summation
    exchange = replay.RowsExchange(workers, params, SHAPE, index=0)
    most = 4 * (2 + SHAPE[0]) + params.codec(SHAPE[0] * SHAPE[1], "float32").payload_bytes
    result, sent = of_ranks[0], []
    for step, rate in enumerate(RATES):
        gradients = [rows_of(rank, step, SHAPE) for rank in range(workers)]
        ratio = RATES[max(0, step - 1)] / rate
        expected, lengths = exchange.step(gradients, 1 / workers, ratio, order)
        np.testing.assert_array_equal(result[f"g{step}"], expected, err_msg=str(step))
        if framed is None:
            lengths = [0] * workers
        sent.append([framed_bytes(n, most) if framed else n for n in lengths])
        if step >= len(RATES) // 2:
            np.testing.assert_array_equal(result[f"resumed{step}"], result[f"g{step}"])
    assert pushed == pytest.approx(np.mean(sent, axis=0))


def on_machines(job, arguments):
    return run(job, arguments, variables={"BYTEPS_LOCAL_SIZE": 2})


def alone(job, arguments):
    return [run_local(job, arguments)]


@pytest.mark.parametrize("way", WAYS)
def test_servers_bring_what_a_numpy_replay_has(tmp_path, way):
    job = {"params": WAYS[way], "folder": str(tmp_path)}
    check(run(compressed_rows, job, workers=3, servers=2), WAYS[way], framed=True)


@pytest.mark.parametrize(
    "start, framed",
    [(on_machines, True), (run_machine, None), (run_horovod, False), (alone, False)],
)
@pytest.mark.parametrize("way", ["topk", "dithering", "randomk-sparse"])
def test_other_engines_bring_it_too(tmp_path, way, start, framed):
    job = {"params": WAYS[way], "folder": str(tmp_path)}
    check(start(compressed_rows, job), WAYS[way], framed)
