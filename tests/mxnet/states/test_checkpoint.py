"""Checkpoints of a cluster contain the states of workers and servers."""

import os

import mxnet as mx
import numpy as np
import pytest

import gluon_gc as bps
from gluon_gc import state as checkpoint
from gluon_gc.compression import parse
from gluon_gc.state import division
from tests import replay
from tests.compressors import ONE_OF_EACH
from tests.mxnet.cluster import standing
from tests.mxnet.cluster.jobs import (
    backward,
    gradients_of,
    parameters,
    train_steps,
    weights_of,
)
from tests.mxnet.cluster.standing import on_workers, run, run_horovod, run_local, run_machine
from tests.mxnet.exchange.test_two_way import assert_equal

SHAPES = [(300, 70), (33,), (1,)]  # BYTEPS_PARTITION_BYTES cuts the first one into chunks
MIDDLE, END = 4, 8
TWO_CHUNKS, THREE_CHUNKS = 64_000, 32_000  # bytes per chunk, at most

WITH_FEEDBACK = {
    name: {**params, "ef": "corrected", "ef_decay": 0.95, "momentum": "nesterov"}
    for name, params in ONE_OF_EACH.items()
}
DGC = {"compressor": "dgc", "k": 0.01, "seed": 7, "momentum": "nesterov"}
COMPRESSIONS = {**WITH_FEEDBACK, "dgc": DGC}
pytestmark = pytest.mark.timeout(600)


def trainer_of(shapes, compression_params, partition_bytes):
    os.environ["BYTEPS_PARTITION_BYTES"] = str(partition_bytes)
    params = parameters(shapes)
    optimizer = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}
    return params, bps.DistributedTrainer(
        params, "sgd", optimizer, compression_params=compression_params
    )


def checkpointed(file, begin, middle, end, shapes, compression_params, partition_bytes, frozen=()):
    """Train steps `begin` to `end`, from a checkpoint if begin > 0; save one after step `middle`.

    Returns the weights and the last gradients. Rank r's file is "FILE-r". `frozen` has the numbers
    of frozen parameters.
    """
    file = f"{file}-{bps.rank()}"
    params, trainer = trainer_of(shapes, compression_params, partition_bytes)
    for i in frozen:
        params[i].grad_req = "null"
    if begin > 0:
        with np.load(file + ".npz") as weights:
            for i, param in enumerate(params):
                param.set_data(mx.nd.array(weights[f"w{i}"]))
        trainer.load_states(file)
        trainer.save_states(file + ".again")
    result = {"row": bps.rank()}
    for step in range(begin, end):
        trainer.set_learning_rate(0.1 / (1 + step))
        backward(params, gradients_of(bps.rank(), step, shapes))
        trainer.allreduce_grads()
        if step + 1 == end:
            result.update((f"g{i}", param.grad().asnumpy()) for i, param in enumerate(params))
        trainer.update(1)
        if step + 1 == middle:
            trainer.save_states(file)
            np.savez(file, **weights_of(params))
    return {**result, **weights_of(params)}


def load_states_of_others(file, workers, shapes, compression_params, partition_bytes):
    """Load the files of all `workers` of another cluster, which `checkpointed` saved.

    Rank r then saves its state as "FILE-r.shared".
    """
    _, trainer = trainer_of(shapes, compression_params, partition_bytes)
    trainer.load_states([f"{file}-{rank}" for rank in range(workers)], strict=False)
    trainer.save_states(f"{file}-{bps.rank()}.shared")


def settings(folder, name, shapes=SHAPES, partition_bytes=TWO_CHUNKS):
    """Return what the arguments of `checkpointed` and `load_states_of_others` have in common."""
    common = {"shapes": shapes, "partition_bytes": partition_bytes}
    return {**common, "file": str(folder / name), "compression_params": COMPRESSIONS[name]}


def job_of(folder, name, begin=0, middle=MIDDLE, end=END, **more):
    return {**settings(folder, name, **more), "begin": begin, "middle": middle, "end": end}


def on_servers(job, arguments, servers=2):
    return run(job, arguments, 2, servers)


def on_machines(job, arguments, servers=2):
    return run(job, arguments, 4, servers, {"BYTEPS_LOCAL_SIZE": 2})


def on_nodes(job, arguments):
    return run_horovod(job, arguments, 4, {"BYTEPS_LOCAL_SIZE": 2})


def alone(job, arguments):
    return [run_local(job, arguments)]


LOCAL_SIZES = {on_machines: 2, run_machine: 2, on_nodes: 2}


def assert_saved_again_before_any_step(file, ranks):
    """Check that a file saved right after loading has all loaded states, the servers' too."""
    for rank in range(ranks):
        loaded = checkpoint.read(f"{file}-{rank}")
        again = checkpoint.read(f"{file}-{rank}.again")
        assert again.header == loaded.header
        assert again.arrays.keys() == loaded.arrays.keys()
        for key, array in loaded.arrays.items():
            np.testing.assert_array_equal(again.arrays[key], array, err_msg=str(key))


def expected_of_new_chunks(params, rows, local_size):
    """Return the last gradient of SHAPES[0] if its two chunks become three at MIDDLE."""
    workers, rows = len(rows), rows if local_size == 1 else range(len(rows) // local_size)
    params = parse(params, 0.9)
    n = int(np.prod(SHAPES[0]))
    parts, now = replay.chunks(n, TWO_CHUNKS // 4), replay.chunks(n, THREE_CHUNKS // 4)
    assert [part.start for part in parts] == [0, 10_500]
    assert [part.start for part in now] == [0, 7000, 14_000]

    def exchanges(parts):
        return [
            replay.Exchange(len(rows), params, part.stop - part.start, 0, np.float32)
            for part in parts
        ]

    paths, previous = exchanges(parts), None
    for step in range(MIDDLE + 2):
        if step == MIDDLE:
            before, old = paths, parts
            paths, parts = exchanges(now), now
            replay.cut_anew(before, old, paths, parts)
        rate = 0.1 / (1 + step)
        ratio = previous / rate if previous else 1.0
        previous = rate
        gradients = [
            gradients_of(rank, step, SHAPES)[0].ravel() * np.float32(1 / workers)
            for rank in range(workers)
        ]
        gradients = [
            sum(gradients[first + 1 : first + local_size], gradients[first])
            for first in range(0, workers, local_size)
        ]
        results = [
            path.step([g[part] for g in gradients], ratio, np.argsort(rows))
            for path, part in zip(paths, parts)
        ]
    return np.concatenate(results).reshape(SHAPES[0])


@pytest.fixture(scope="module", params=[on_servers, on_machines, run_machine, on_nodes, alone])
def whole(request, tmp_path_factory):
    """Train with each compression on an engine, and kill its processes.

    Returns the engine, the folder of the checkpoints, and the results by compression.
    """
    start, folder = request.param, tmp_path_factory.mktemp("whole")
    standing.end()
    results = {name: start(checkpointed, job_of(folder, name)) for name in COMPRESSIONS}
    standing.kill()
    return start, folder, results


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_training_on_from_a_checkpoint_is_training_that_never_stopped(whole, name):
    start, folder, results = whole
    job = job_of(folder, name, begin=MIDDLE)
    for ours, expected in zip(start(checkpointed, job), results[name]):
        assert_equal(ours, expected)
    assert_saved_again_before_any_step(job["file"], len(results[name]))


@pytest.mark.parametrize("name", WITH_FEEDBACK)
def test_training_goes_on_with_other_chunks(whole, name):
    start, folder, _ = whole
    anew = {"begin": MIDDLE, "end": MIDDLE + 2, "partition_bytes": THREE_CHUNKS}
    results = start(checkpointed, job_of(folder, name, **anew))
    rows = [result["row"] for result in results]
    params, local_size = COMPRESSIONS[name], LOCAL_SIZES.get(start, 1)
    expected = expected_of_new_chunks(params, rows, local_size)
    for result in results:
        np.testing.assert_allclose(result["g0"], expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", COMPRESSIONS)
@pytest.mark.parametrize("whole", [on_servers, on_machines], indirect=True)
def test_training_goes_on_with_fewer_servers(whole, name):
    start, folder, results = whole
    job = job_of(folder, name, begin=MIDDLE)
    for ours, expected in zip(start(checkpointed, job, servers=1), results[name]):
        assert_equal(ours, expected)


def test_workers_load_and_save_the_states_of_frozen_parameters(tmp_path):
    job = job_of(tmp_path, "onebit", middle=2, end=2)
    on_servers(checkpointed, job)
    on_servers(checkpointed, {**job, "begin": 2, "frozen": [0]})
    assert_saved_again_before_any_step(job["file"], 2)


LARGE = {"shapes": [(1100, 1000)], "partition_bytes": 2**20}  # several pages from a server
OF_SHARED = [*((name, {}) for name in COMPRESSIONS), ("onebit", LARGE)]


@pytest.fixture(scope="module")
def of_three(tmp_path_factory):
    """The files of two workers for OF_SHARED, and those of three workers that have loaded them."""
    folders = [tmp_path_factory.mktemp("shared") for _ in OF_SHARED]
    for folder, (name, more) in zip(folders, OF_SHARED):
        on_servers(checkpointed, job_of(folder, name, middle=2, end=2, **more))
    for folder, (name, more) in zip(folders, OF_SHARED):
        job = {**settings(folder, name, **more), "workers": 2}
        run(load_states_of_others, job, workers=3)
    return [folder / name for folder, (name, _) in zip(folders, OF_SHARED)]


@pytest.mark.parametrize("number", range(len(OF_SHARED)))
def test_more_workers_share_what_was_carried_over(of_three, number):
    """The sum over workers stays; shared random streams stay shared, others stay different."""
    file, params = of_three[number], COMPRESSIONS[OF_SHARED[number][0]]
    before = [checkpoint.read(f"{file}-{rank}").arrays for rank in range(2)]
    after = [checkpoint.read(f"{file}-{rank}.shared").arrays for rank in range(3)]
    for key, array in before[0].items():
        if key.node != "worker":
            np.testing.assert_array_equal(after[0][key], array, err_msg=str(key))
        elif key.what == "stream":
            words = {arrays[key][:, 2:].tobytes() for arrays in after}
            assert len(words) == (1 if params["compressor"] == "randomk" else 3)
            np.testing.assert_array_equal(after[1][key], before[1][key])
        else:
            total = sum(arrays[key].astype(np.float64) for arrays in before)
            for arrays in after:
                np.testing.assert_allclose(arrays[key], total / 3, rtol=1e-7)


def totals(file, suffix=""):
    """Return the sum of all residuals and momenta of the workers, and those of the aggregators."""
    files = [checkpoint.read(f"{file}-{rank}{suffix}") for rank in range(2)]
    senders = [one["senders"] for one in files[0].header["parameters"]]
    found = {}
    for key in files[0].arrays:
        if key.node == "worker" and key.what != "stream":
            total = sum(states.arrays[key].astype(np.float64) for states in files)
            found[key[:3]] = total * senders[key.tensor] / len(files)
    aggregators = sorted(division.aggregators([states.arrays for states in files]).items())
    for key in {key[:3] for key, _ in aggregators}:
        of_key = [array for other, array in aggregators if other[:3] == key]
        found[key] = np.concatenate(of_key)
    return found


def on_one_machine_with_a_server(job, arguments):
    return run(job, arguments, 2, 1, {"BYTEPS_LOCAL_SIZE": 2})


GROUPINGS = [on_servers, on_one_machine_with_a_server, run_machine, run_horovod]


@pytest.fixture(scope="module", params=GROUPINGS)
def of_group(request, tmp_path_factory):
    """The folder of files that the two workers of a group have saved for each compression."""
    folder = tmp_path_factory.mktemp("group")
    for name in COMPRESSIONS:
        request.param(checkpointed, job_of(folder, name, middle=2, end=2))
    return folder


@pytest.mark.parametrize(
    "after, name",
    [
        *((after, "onebit") for after in GROUPINGS if after is not run_machine),
        *((run_machine, name) for name in COMPRESSIONS),
    ],
)
def test_as_many_workers_in_other_groups_keep_the_sum(of_group, after, name):
    """The workers of a machine have one residual together, and Horovod has no server."""
    job = settings(of_group, name)
    after(load_states_of_others, {**job, "workers": 2})
    expected, found = totals(job["file"]), totals(job["file"], ".shared")
    assert found.keys() == expected.keys()
    for key, total in expected.items():
        np.testing.assert_allclose(found[key], total, 1e-6, 1e-9, err_msg=str(key))


def small_trainer():
    params = parameters([(300, 70)])
    compression = {"compressor": "onebit", "ef": "vanilla"}
    return params, bps.DistributedTrainer(params, "sgd", compression_params=compression)


def save_after_each_step(folder):
    """Save "RANK" after the first step and "RANKlater" after the second; returns the trainer."""
    params, trainer = small_trainer()
    for suffix in ("", "later"):
        train_steps(params, trainer, [0], [(300, 70)])
        trainer.save_states(f"{folder}/{bps.rank()}{suffix}")
    bps.barrier()
    return trainer


def save_for_others(folder):
    save_after_each_step(folder)


def load_own(folder):
    with pytest.raises(ValueError) as raised:
        small_trainer()[1].load_states(f"{folder}/{bps.rank()}")
    return str(raised.value)


@pytest.mark.parametrize("before, after", [(on_servers, run_machine), (run_machine, on_servers)])
def test_a_file_of_workers_in_other_groups_is_refused_with_the_remedy(tmp_path, before, after):
    before(save_for_others, {"folder": str(tmp_path)})
    numbers = "2 there, but 1 here" if after is run_machine else "1 there, but 2 here"
    for rank, said in enumerate(after(load_own, {"folder": str(tmp_path)})):
        assert said == (
            f"'{tmp_path}/{rank}' does not fit: the number of residuals of 'p0' is {numbers}; "
            "pass the files of all workers that saved, and strict=False"
        )


def files_of(worker, there, here):
    """Return the error message for workers with different files; worker 0's file comes second."""
    one, zero = (there, here) if worker else (here, there)
    return f'worker 1 has file "{one}" for load_states, but worker 0 has "{zero}"'


@on_workers(2)
def test_another_workers_file_or_step_is_refused_by_all(tmp_path):
    trainer, rank = save_after_each_step(tmp_path), bps.rank()

    def said_of(file):
        with pytest.raises((RuntimeError, ValueError)) as raised:
            trainer.load_states(f"{tmp_path}/{file}")
        return str(raised.value)

    there, here = "that it refuses", "of step 1 of 2 workers"
    for other in range(2):
        said = said_of(other)
        if other == rank:
            assert said.endswith(files_of(1 - rank, there, here))
        else:
            rule = f"the rank is {other} there, but {rank} here"
            assert said == f"'{tmp_path}/{other}' does not fit: {rule}"
    said = said_of("0" if rank == 0 else "1later")
    assert said.endswith(files_of(1, here.replace("1", "2", 1), here))
