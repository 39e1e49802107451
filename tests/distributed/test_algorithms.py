"""Algorithms on the real backends: the weights of all workers match NumPy replays."""

import numpy as np
import pytest

from gluon_gc import state as checkpoint
from gluon_gc.compression import parse
from tests import replay
from tests.algorithm_replay import LocalStepsReplay
from tests.distributed.cluster import start_cluster, start_local, start_machine
from tests.distributed.forked_horovod import start_forked_horovod
from tests.distributed.jobs import gradients_of
from tests.distributed.standing import run, run_horovod, run_machine
from tests.test_trainer import make

SHAPES = [(50, 20), (33,), (257, 3)]
RATE = 0.125
SGD = {"optimizer_params": {"learning_rate": RATE}}
PLAIN = {"name": "local_steps", "every": 1, "outer_lr": 1, "outer_momentum": 0}
SEVENTH = {"name": "local_steps", "every": 7}
FULL = {"fragments": 2, "overlap": 2, "mix": 0.5, "overrides": {"p0": {"outer_lr": 1.0}}}
ONEBIT = {"compressor": "onebit", "scaling": True, "ef": "vanilla"}
TOPK = {"compressor": "topk", "k": 0.05, "ef": "corrected"}
COMPRESSIONS = [None, ONEBIT, TOPK]
WHOLE = 10**9  # elements of a chunk: no tensor is cut
STEPS, MIDDLE = 24, 10  # three rounds: after 7, 14 and 21 steps


on_each_engine = pytest.mark.parametrize(
    "start, workers, local_size",
    [
        (start_cluster, 2, 1),
        (start_forked_horovod, 2, 1),
        (start_machine, 2, 2),
        (start_local, 1, 1),
    ],
    ids=["servers", "horovod", "machine", "alone"],
)


def ways(folder):
    """Arguments of `jobs.algorithms`: local steps with each compression, and other algorithms."""
    compressed = [
        {**SGD, "algorithm": SEVENTH, "compression_params": params, "middle": MIDDLE}
        for params in COMPRESSIONS
    ]
    plain = {**SGD, "compression_params": None}
    on_contexts = {**SGD, "algorithm": SEVENTH, "compression_params": ONEBIT, "contexts": 2}
    adam = {"optimizer": "adam", "optimizer_params": {"learning_rate": 0.01}, "middle": MIDDLE}
    adam.update(algorithm=SEVENTH, compression_params=ONEBIT)
    every_way = [*compressed, {**plain, "algorithm": PLAIN}, {**plain, "algorithm": None}]
    in_full = {**SGD, "algorithm": {**SEVENTH, **FULL}, "compression_params": ONEBIT}
    every_way += [on_contexts, adam, {**in_full, "middle": MIDDLE - 1}]  # a round is under way
    return [{"shapes": SHAPES, "steps": STEPS, "folder": folder, **way} for way in every_way]


OF_EVERY_STEP, OF_GRADIENTS, ON_CONTEXTS, ADAM, IN_FULL = range(
    len(COMPRESSIONS), len(COMPRESSIONS) + 5
)


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


def first_moments(rank, beta=0.9):
    """Return Adam's first moments for a worker's own gradients."""
    moments = [np.zeros(shape) for shape in SHAPES]
    for step in range(STEPS):
        for m, gradient in zip(moments, gradients_of(rank, step, SHAPES)):
            m += (1 - beta) * (gradient - m)
    return moments


def check_one_worker_of_two_files(folder, way):
    """One worker loads the files of two: it gets the sum of residuals, and rank 0's weights."""
    files = [f"{folder}/{way}-{rank}" for rank in range(2)]
    both = [checkpoint.read(file).arrays for file in files]
    _, trainer = make(SHAPES, SGD["optimizer_params"], ONEBIT, algorithm=SEVENTH)
    trainer.load_states(files[::-1], strict=False)
    trainer.save_states(f"{folder}/one")
    one = checkpoint.read(f"{folder}/one").arrays
    assert {place.node for place in one} == {"worker", "aggregator", "trainer", "local"}
    for place, array in one.items():
        if place.node == "worker":
            expected = both[0][place] + both[1][place]
            np.testing.assert_allclose(array, expected, atol=1e-6, err_msg=str(place))
        elif place in both[0]:
            np.testing.assert_array_equal(array, both[0][place], err_msg=str(place))
        if place.node == "trainer":
            np.testing.assert_array_equal(both[1][place], both[0][place], err_msg=str(place))
        elif place.node == "local":
            assert not np.array_equal(both[1][place], both[0][place])


CHUNK = 300  # elements
PARTITION = {"BYTEPS_PARTITION_BYTES": 4 * CHUNK}
OF_MACHINES = {**PARTITION, "BYTEPS_LOCAL_SIZE": 2}


def on_machines(job, arguments):
    """Run a job on two machines with two workers each, with vectors cut into chunks."""
    return run(job, arguments, 4, 2, OF_MACHINES)


def on_nodes(job, arguments):
    """Run a job as `on_machines` does, over Horovod."""
    pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
    return run_horovod(job, arguments, 4, OF_MACHINES)


def assert_weights(result, number, contexts, expected):
    """Check a job's weights on all contexts, also those of the training that was resumed."""
    for i in range(len(SHAPES)):
        for name in ("w", "resumed"):
            for context in range(contexts):
                found = result[f"{number}{name}{i}/{context}"]
                np.testing.assert_array_equal(found, expected[f"p{i}"], err_msg=name)


# What differs between algorithms is above the engines, so other algorithms use these only.
on_some_engines = pytest.mark.parametrize(
    "start, local_size, chunk",
    [(run, 1, WHOLE), (run_machine, 2, WHOLE), (on_nodes, 2, CHUNK)],
    ids=["servers", "machine", "nodes"],
)


@pytest.mark.parametrize(
    "start, local_size",
    [(run, 1), (run_horovod, 1), (run_machine, 2), (on_machines, 2), (on_nodes, 2)],
    ids=["servers", "horovod", "machine", "machines", "nodes"],
)
def test_an_algorithm_gives_the_replays_weights_and_goes_on_bit_for_bit(
    tmp_path, start, local_size
):
    chunk = CHUNK if start in (on_machines, on_nodes) else WHOLE
    if start is run_horovod:
        pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
    results = start("algorithms", ways(str(tmp_path)))
    for number, params in [*enumerate(COMPRESSIONS), (ON_CONTEXTS, ONEBIT), (IN_FULL, ONEBIT)]:
        contexts = 2 if number == ON_CONTEXTS else 1
        options = FULL if number == IN_FULL else {}
        expected = replayed(params, len(results), local_size, contexts, chunk, **options)
        for result, worker in zip(results, expected):
            for i in range(len(SHAPES)):
                for context in range(contexts):
                    name = f"{number}w{i}/{context}"
                    np.testing.assert_array_equal(result[name], worker[f"p{i}"], err_msg=name)
    for rank, result in enumerate(results):
        for name in [name for name in result if "resumed" in name]:
            expected = result[name.replace("resumed", "w")]
            np.testing.assert_array_equal(result[name], expected, err_msg=name)
        for i, moment in enumerate(first_moments(rank)):
            gradients, own = (result[f"{n}w{i}/0"] for n in (OF_GRADIENTS, OF_EVERY_STEP))
            np.testing.assert_allclose(own, gradients, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(result[f"{ADAM}m{i}"], moment, rtol=1e-4, atol=1e-6)
    if local_size == 1:
        check_one_worker_of_two_files(str(tmp_path), COMPRESSIONS.index(ONEBIT))


def killed_and_resumed(folder, start, workers, arguments):
    """Return the results of new processes that go on where killed ones had saved."""
    if start is start_forked_horovod:
        pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
    with start(folder, "killed_algorithms", arguments) as cluster:
        for rank in range(workers):
            cluster.wait_for(folder / f"saved{rank}")
    (folder / "again").mkdir()
    with start(folder / "again", "resumed_algorithms", arguments) as cluster:
        return cluster.results()


@on_each_engine
def test_what_is_killed_between_rounds_goes_on_bit_for_bit_in_new_processes(
    tmp_path, start, workers, local_size
):
    arguments = ways(str(tmp_path))[: len(COMPRESSIONS)]
    results = killed_and_resumed(tmp_path, start, workers, arguments)
    for number, params in enumerate(COMPRESSIONS):
        expected = replayed(params, workers, local_size)
        for result, worker in zip(results, expected):
            for i in range(len(SHAPES)):
                np.testing.assert_array_equal(result[f"{number}w{i}"], worker[f"p{i}"])
