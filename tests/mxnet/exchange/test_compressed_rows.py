"""Compressed row-sparse gradients match a NumPy replay."""

import numpy as np
import pytest

from gluon_gc import kernels
from gluon_gc.compression import parse
from tests import replay
from tests.compressors import COMPRESSORS
from tests.mxnet.cluster.jobs import rows_of
from tests.mxnet.cluster.standing import run, run_horovod, run_local, run_machine
from tests.mxnet.exchange.test_two_way import assert_identical, of_way

SHAPE = (400, 9)
RATES = [0.5] * 3 + [0.25] * 2 + [1.0] * 3


def every_way(folder):
    """Return the arguments of `jobs.several_compressed_rows`: each compressor and feedback."""
    params = [{**of_name, "ef": "corrected", "ef_decay": 0.9} for of_name in COMPRESSORS.values()]
    others = ("topk", "vanilla"), ("onebit", None), ("randomk", None), ("randomk", "sparse")
    params += [{**COMPRESSORS[name], "ef": ef} for name, ef in others]
    shared = {"shape": SHAPE, "learning_rates": RATES, "folder": str(folder)}
    return [{**shared, "compression_params": of_way} for of_way in params]


def framed_bytes(length, most):
    """Return the bytes of a `length`-byte message in MXNet's row frames; `most` is its limit."""
    words = kernels.frame_words(4 + most)
    row_bytes = 4 + most if words <= 256 else 1016
    return -(-(4 + length) // row_bytes) * (4 * min(words, 256) + 12)


def check(results, ways, framed):
    """Check gradients and bytes against the replay, and the gradients after a checkpoint.

    `framed` is None if no bytes travel over a network.
    """
    assert_identical([{k: v for k, v in r.items() if "pushed" not in k} for r in results])
    for number, way in enumerate(ways):
        of_ranks = [of_way(result, number) for result in results]
        workers, params = len(of_ranks), parse(way["compression_params"])
        order = np.argsort([int(result["row"]) for result in of_ranks])  # the order of summation
        exchange = replay.RowsExchange(workers, params, SHAPE, index=0)
        most = 4 * (2 + SHAPE[0]) + params.codec(SHAPE[0] * SHAPE[1], "float32").payload_bytes
        result, sent = of_ranks[0], []
        for step, rate in enumerate(RATES):
            gradients = [rows_of(rank, step, SHAPE) for rank in range(workers)]
            ratio = RATES[max(0, step - 1)] / rate
            expected, lengths = exchange.step(gradients, 1 / workers, ratio, order)
            np.testing.assert_array_equal(result[f"g{step}"], expected, err_msg=f"{way} {step}")
            if framed is None:
                lengths = [0] * workers
            sent.append([framed_bytes(n, most) if framed else n for n in lengths])
            if step >= len(RATES) // 2:
                np.testing.assert_array_equal(result[f"resumed{step}"], result[f"g{step}"])
        for of_rank, pushed in zip(of_ranks, np.mean(sent, axis=0)):
            assert of_rank["pushed"] == pytest.approx(pushed)


def test_servers_bring_what_a_numpy_replay_has(tmp_path):
    ways = every_way(tmp_path)
    check(run("several_compressed_rows", ways, workers=3, servers=2), ways, framed=True)


def test_servers_bring_it_to_several_workers_of_a_machine(tmp_path):
    ways, variables = every_way(tmp_path), {"BYTEPS_LOCAL_SIZE": 2}
    check(run("several_compressed_rows", ways, 2, 1, variables), ways, framed=True)


def test_one_machine_brings_what_a_numpy_replay_has(tmp_path):
    ways = every_way(tmp_path)
    check(run_machine("several_compressed_rows", ways, workers=3), ways, framed=None)


def test_horovod_brings_what_a_numpy_replay_has(tmp_path):
    pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
    ways = every_way(tmp_path)
    check(run_horovod("several_compressed_rows", ways, workers=3), ways, framed=False)


def test_one_worker_alone_gets_what_a_numpy_replay_has(tmp_path):
    ways = every_way(tmp_path)
    check([run_local("several_compressed_rows", ways)], ways, framed=False)
