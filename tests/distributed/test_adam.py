"""Algorithms that need Adam, on the real backends: all workers match NumPy replays."""

import numpy as np
import pytest

from tests.adam_replay import replay_of
from tests.distributed.cluster import start_cluster, start_local, start_machine
from tests.distributed.forked_horovod import start_forked_horovod
from tests.distributed.jobs import gradients_of
from tests.distributed.standing import run, run_horovod, run_machine
from tests.distributed.test_algorithms import (
    CHUNK,
    COMPRESSIONS,
    ONEBIT,
    SHAPES,
    first_values,
    mean_of,
    on_machines,
    on_nodes,
)

ADAM = {"learning_rate": 0.01, "wd": 0.1, "beta2": 0.99}
FREEZE = {"name": "onebit_adam", "freeze_step": 6}
STEPS = 14


def ways(folder):
    """Arguments of `jobs.algorithms`: each compression, resumed before, at and after the freeze."""
    common = {"shapes": SHAPES, "steps": STEPS, "folder": folder, "optimizer": "adam"}
    common.update(optimizer_params=ADAM, algorithm=FREEZE)
    settings = [
        *zip(COMPRESSIONS, (4, 6, 9), (1, 1, 1)),
        (ONEBIT, 7, 2),  # with two contexts
    ]
    return [
        {**common, "compression_params": params, "middle": middle, "contexts": contexts}
        for params, middle, contexts in settings
    ]


def replayed(way, workers, local_size, chunk=10**9):
    compressed = mean_of(way["compression_params"], workers, local_size, chunk)
    plain = mean_of(None, workers, local_size)

    def mean(kind, name, vectors):
        return (plain if kind == "gradient" else compressed)(kind, name, vectors)

    expected = replay_of(first_values(), 6, mean, **ADAM)
    for step in range(STEPS):
        of_workers = [gradients_of(rank, step, SHAPES) for rank in range(workers)]
        factor = np.float32(way["contexts"])
        expected.step([dict(zip(expected.x, [factor * g for g in own])) for own in of_workers])
    return expected


@pytest.mark.parametrize(
    "start, local_size",
    [(run, 1), (run_horovod, 1), (run_machine, 2), (on_machines, 2), (on_nodes, 2)],
    ids=["servers", "horovod", "machine", "machines", "nodes"],
)
def test_onebit_adam_gives_the_replays_weights_and_goes_on_bit_for_bit(tmp_path, start, local_size):
    chunk = CHUNK if start in (on_machines, on_nodes) else 10**9
    if start in (run_horovod, on_nodes):
        pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
    arguments = ways(str(tmp_path))
    results = start("algorithms", arguments)
    for number, way in enumerate(arguments):
        expected = replayed(way, len(results), local_size, chunk)
        for result in results:
            for i in range(len(SHAPES)):
                for name in ("w", "resumed"):
                    for context in range(way["contexts"]):
                        found = result[f"{number}{name}{i}/{context}"]
                        np.testing.assert_array_equal(found, expected.x[f"p{i}"], err_msg=name)
                np.testing.assert_array_equal(result[f"{number}m{i}"], expected.m[f"p{i}"])


@pytest.mark.parametrize(
    "start, workers, local_size",
    [
        (start_cluster, 2, 1),
        (start_forked_horovod, 2, 1),
        (start_machine, 2, 2),
        (start_local, 1, 1),
    ],
    ids=["servers", "horovod", "machine", "alone"],
)
def test_what_is_killed_goes_on_bit_for_bit_in_new_processes(tmp_path, start, workers, local_size):
    if start is start_forked_horovod:
        pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
    arguments = ways(str(tmp_path))[: len(COMPRESSIONS)]
    with start(tmp_path, "killed_algorithms", arguments) as cluster:
        for rank in range(workers):
            cluster.wait_for(tmp_path / f"saved{rank}")
    (tmp_path / "again").mkdir()
    with start(tmp_path / "again", "resumed_algorithms", arguments) as cluster:
        results = cluster.results()
    for number, way in enumerate(arguments):
        expected = replayed(way, workers, local_size)
        for result in results:
            for i in range(len(SHAPES)):
                np.testing.assert_array_equal(result[f"{number}w{i}"], expected.x[f"p{i}"])
