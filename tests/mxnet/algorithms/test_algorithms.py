"""Algorithms on the real backends: the weights of all workers match NumPy replays."""

from pathlib import Path
from time import sleep

import mxnet as mx
import numpy as np
import pytest

import gluon_gc as bps
from gluon_gc import state as checkpoint
from gluon_gc.algorithms import powersgd
from gluon_gc.compression import parse
from tests import replay
from tests.algorithm_replay import LocalStepsReplay
from tests.mxnet.cluster.cluster import (
    start_cluster,
    start_forked_horovod,
    start_local,
    start_machine,
)
from tests.mxnet.cluster.jobs import gradients_of, make, parameters, train_steps
from tests.mxnet.cluster.standing import run, run_horovod, run_local, run_machine
from tests.mxnet.exchange.test_two_way import CHUNK, PARTITION

SHAPES = [(50, 20), (33,), (257, 3)]
RATE = 0.125
SGD = {"optimizer_params": {"learning_rate": RATE}}
SEVENTH = {"name": "local_steps", "every": 7}
FULL = {
    "fragments": 2,
    "overlap": 2,
    "mix": 0.5,
    "start": 3,
    "overrides": {"p0": {"outer_lr": 1.0}},
}
ONEBIT = {"compressor": "onebit", "scaling": True, "ef": "vanilla"}
TOPK = {"compressor": "topk", "k": 0.05, "ef": "corrected"}
COMPRESSIONS = [None, ONEBIT, TOPK]
WHOLE = 10**9  # elements of a chunk: no tensor is cut
STEPS, MIDDLE = 24, 10  # three rounds: after 7, 14 and 21 steps
OF_MACHINES = {**PARTITION, "BYTEPS_LOCAL_SIZE": 2}


def way(algorithm, compression_params=None, **more):
    """Return the settings of a training: arguments of `trained` besides the file."""
    common = {"shapes": SHAPES, "steps": STEPS, **SGD}
    return {**common, "algorithm": algorithm, "compression_params": compression_params, **more}


WAYS = {
    "uncompressed": way(SEVENTH, middle=MIDDLE),
    "onebit": way(SEVENTH, ONEBIT, middle=MIDDLE),
    "topk": way(SEVENTH, TOPK, middle=MIDDLE),
    "contexts": way(SEVENTH, ONEBIT, contexts=2, middle=MIDDLE),
    "in full": way({**SEVENTH, **FULL}, ONEBIT, middle=MIDDLE - 1),  # a round is under way
}


def made(
    shapes,
    algorithm,
    compression_params,
    optimizer_params,
    optimizer="sgd",
    contexts=1,
    divided=None,
):
    """Return parameters and their trainer. `divided` is the size from which powersgd has parts."""
    if divided is not None:
        powersgd._DIVIDED = divided
    params = parameters(shapes, contexts=contexts)
    settings = {"compression_params": compression_params, "algorithm": algorithm}
    return params, bps.DistributedTrainer(params, optimizer, optimizer_params, **settings)


def trained(file, steps, middle=None, **settings):
    """Train, and resume training from a checkpoint after `middle` steps, in "FILE-RANK".

    Returns the weights of both trainings on all contexts, and Adam's first moments.
    """
    params, trainer = made(**settings)
    shapes, middle = settings["shapes"], steps if middle is None else middle
    train_steps(params, trainer, range(middle), shapes)
    file = f"{file}-{bps.rank()}"
    trainer.save_states(file)
    others, other = made(**settings)
    other.load_states(file)
    train_steps(others, other, range(middle, steps), shapes)
    train_steps(params, trainer, range(middle, steps), shapes)
    weights = [
        [[array.asnumpy() for array in param.list_data()] for param in ours]
        for ours in (params, others)
    ]
    states = trainer._updaters[0].states
    adam = settings.get("optimizer") == "adam"
    return (*weights, {i: m.asnumpy() for i, (m, _) in states.items()} if adam else None)


def train_until_killed(folder, ways):
    """Save a trainer of each way midway, train one more step, and wait for the kill."""
    for number, (_, middle, settings) in enumerate(map(divided_way, ways)):
        params, trainer = made(**settings)
        train_steps(params, trainer, range(middle), settings["shapes"])
        trainer.save_states(f"{folder}/{number}-{bps.rank()}")
        train_steps(params, trainer, [middle], settings["shapes"])
        mx.nd.waitall()
    Path(folder, f"saved{bps.rank()}").touch()
    sleep(1000)


def resume_after_kill(folder, ways):
    """Resume from the files of `train_until_killed`; returns the final weights of each way."""
    weights = []
    for number, (steps, middle, settings) in enumerate(map(divided_way, ways)):
        params, trainer = made(**settings)
        trainer.load_states(f"{folder}/{number}-{bps.rank()}")
        train_steps(params, trainer, range(middle, steps), settings["shapes"])
        weights.append([param.data().asnumpy() for param in params])
    return weights


def divided_way(way):
    """Return the number of steps, that of the checkpoint, and the arguments of `made`."""
    settings = dict(way)
    return settings.pop("steps"), settings.pop("middle"), settings


def killed_and_resumed(folder, start, workers, ways):
    """Return the results of new processes that go on where killed ones had saved."""
    job = {"folder": str(folder), "ways": ways}
    with start(folder, train_until_killed, job) as cluster:
        for rank in range(workers):
            cluster.wait_for(folder / f"saved{rank}")
    (folder / "again").mkdir()
    with start(folder / "again", resume_after_kill, job) as cluster:
        return cluster.results()


def replayed(compression_params, workers, local_size, contexts=1, chunk=WHOLE, **options):
    """Return all workers' final weights; `local_size` workers of a machine share their messages.

    `options` are those of local_steps. Vectors are cut into chunks of at most `chunk` elements.
    """
    of_workers = [first_values() for _ in range(workers)]
    mean = mean_of(compression_params, workers, local_size, chunk)
    local = LocalStepsReplay(of_workers, every=7, mean=mean, **options)
    for step in range(STEPS):
        for rank, worker in enumerate(of_workers):
            for name, gradient in zip(worker, gradients_of(rank, step, SHAPES)):
                worker[name] -= np.float32(RATE) * (np.float32(contexts) * gradient)
        local.after_step()
    return of_workers


def first_values():
    return {f"p{i}": np.full(shape, i + 1, np.float32) for i, shape in enumerate(SHAPES)}


def mean_of(compression_params, workers, local_size, chunk=WHOLE):
    """Return the mean of all workers' vectors in NumPy; the arguments are those of `replayed`."""
    senders = workers // local_size
    parts = {f"p{i}": replay.chunks(int(np.prod(shape)), chunk) for i, shape in enumerate(SHAPES)}
    exchanges = {
        name: [
            replay.Exchange(senders, parse(compression_params), p.stop - p.start, i, np.float32)
            for p in parts[name]
        ]
        for i, name in enumerate(parts)
        if compression_params
    }

    def mean(kind, name, vectors):
        scaled = [vector.ravel() * np.float32(1 / workers) for vector in vectors]
        sums = [sum(scaled[i : i + local_size]) for i in range(0, workers, local_size)]
        if compression_params is None:
            return sum(sums).reshape(vectors[0].shape)
        means = [
            exchange.step([total[part] for total in sums], 1.0, range(senders))
            for exchange, part in zip(exchanges[name], parts[name])
        ]
        return np.concatenate(means).reshape(vectors[0].shape)

    return mean


def on_machines(job, arguments):
    """Run a job on two machines with two workers each, with vectors cut into chunks."""
    return run(job, arguments, 4, 2, OF_MACHINES)


def on_nodes(job, arguments):
    """Run a job as `on_machines` does, over Horovod."""
    return run_horovod(job, arguments, 4, OF_MACHINES)


def alone(job, arguments):
    return [run_local(job, arguments)]


def assert_weights(result, expected):
    """Check a job's weights on all contexts, also those of the training that was resumed."""
    for weights in result[:2]:
        for i, copies in enumerate(weights):
            for copy in copies:
                np.testing.assert_array_equal(copy, expected[f"p{i}"], err_msg=f"p{i}")


# What differs between algorithms is above the engines, so other algorithms use these only.
on_some_engines = pytest.mark.parametrize(
    "start, local_size, chunk",
    [(run, 1, WHOLE), (run_machine, 2, WHOLE), (on_nodes, 2, CHUNK), (alone, 1, WHOLE)],
    ids=["servers", "machine", "nodes", "alone"],
)
on_all_engines = pytest.mark.parametrize(
    "start, local_size",
    [(run, 1), (run_horovod, 1), (run_machine, 2), (on_machines, 2), (on_nodes, 2)],
    ids=["servers", "horovod", "machine", "machines", "nodes"],
)


@pytest.mark.parametrize("name", WAYS)
@on_all_engines
def test_an_algorithm_gives_the_replays_weights_and_goes_on_bit_for_bit(
    tmp_path, start, local_size, name
):
    chunk = CHUNK if start in (on_machines, on_nodes) else WHOLE
    settings, options = WAYS[name], FULL if name == "in full" else {}
    results = start(trained, {**settings, "file": str(tmp_path / "states")})
    contexts = settings.get("contexts", 1)
    params = settings["compression_params"]
    expected = replayed(params, len(results), local_size, contexts, chunk, **options)
    for result, worker in zip(results, expected):
        assert_weights(result, worker)


@pytest.mark.parametrize("start", [run, run_horovod])
def test_one_worker_of_two_files_gets_the_sum_of_residuals_and_rank_0s_weights(tmp_path, start):
    start(trained, {**WAYS["onebit"], "file": str(tmp_path / "states")})
    files = [f"{tmp_path}/states-{rank}" for rank in range(2)]
    both = [checkpoint.read(file).arrays for file in files]
    _, trainer = make(SHAPES, SGD["optimizer_params"], ONEBIT, algorithm=SEVENTH)
    trainer.load_states(files[::-1], strict=False)
    trainer.save_states(str(tmp_path / "one"))
    one = checkpoint.read(str(tmp_path / "one")).arrays
    assert {key.node for key in one} == {"worker", "aggregator", "trainer", "local"}
    for key, array in one.items():
        if key.node == "worker":
            expected = both[0][key] + both[1][key]
            np.testing.assert_allclose(array, expected, atol=1e-6, err_msg=str(key))
        elif key in both[0]:
            np.testing.assert_array_equal(array, both[0][key], err_msg=str(key))
        if key.node == "trainer":
            np.testing.assert_array_equal(both[1][key], both[0][key], err_msg=str(key))
        elif key.node == "local":
            assert not np.array_equal(both[1][key], both[0][key])


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
def test_what_is_killed_between_rounds_goes_on_bit_for_bit_in_new_processes(
    tmp_path, start, workers, local_size
):
    ways = [WAYS[name] for name in ("uncompressed", "onebit", "topk")]
    results = killed_and_resumed(tmp_path, start, workers, ways)
    for number, params in enumerate(COMPRESSIONS):
        expected = replayed(params, workers, local_size)
        for result, worker in zip(results, expected):
            for i in range(len(SHAPES)):
                np.testing.assert_array_equal(result[number][i], worker[f"p{i}"])
