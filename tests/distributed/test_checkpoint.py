"""Checkpoints of a cluster contain the states of workers and servers."""

import numpy as np
import pytest

from gluon_gc import state as checkpoint
from gluon_gc.compression import parse
from gluon_gc.state import fitting
from tests import replay
from tests.compressors import ONE_OF_EACH
from tests.distributed import standing
from tests.distributed.jobs import gradients_of
from tests.distributed.standing import run, run_horovod, run_local, run_machine

SHAPES = [(300, 70), (33,), (1,)]  # BYTEPS_PARTITION_BYTES cuts the first one into chunks
MIDDLE, END = 10, 20
TWO_CHUNKS, THREE_CHUNKS = 64_000, 32_000  # bytes per chunk, at most

WITH_FEEDBACK = [
    {**params, "ef": "corrected", "ef_decay": 0.95, "momentum": "nesterov"}
    for params in ONE_OF_EACH.values()
]
COMPRESSIONS = [
    *WITH_FEEDBACK,
    {"compressor": "dgc", "k": 0.01, "seed": 7, "momentum": "nesterov"},
]


def jobs(tmp_path, **more):
    """Return the arguments of `jobs.checkpoint` for each of COMPRESSIONS."""
    return [
        {
            "folder": str(tmp_path),
            "name": str(number),
            "shapes": SHAPES,
            "compression_params": params,
            "partition_bytes": TWO_CHUNKS,
            **{"begin": 0, "middle": MIDDLE, "end": END, **more},
        }
        for number, params in enumerate(COMPRESSIONS)
    ]


def on_servers(job, arguments, servers=2):
    return run(job, arguments, 2, servers)


def on_machines(job, arguments, servers=2):
    return run(job, arguments, 4, servers, {"BYTEPS_LOCAL_SIZE": 2})


def on_nodes(job, arguments):
    return run_horovod(job, arguments, 4, {"BYTEPS_LOCAL_SIZE": 2})


def alone(job, arguments):
    return [run_local(job, arguments)]


LOCAL_SIZES = {on_machines: 2, run_machine: 2, on_nodes: 2}


def assert_equal(results, expected):
    for ours, other in zip(results, expected):
        for key in ours.keys() - {"row"}:
            np.testing.assert_array_equal(ours[key], other[key], err_msg=key)


def assert_saved_again_before_any_step(job, ranks):
    """Check that a file saved right after loading has all loaded states, the servers' too."""
    for rank in range(ranks):
        file = f"{job['folder']}/{job['name']}-{rank}"
        loaded, again = checkpoint.read(file), checkpoint.read(f"{file}.again")
        assert again.header == loaded.header
        assert again.arrays.keys() == loaded.arrays.keys()
        for place, array in loaded.arrays.items():
            np.testing.assert_array_equal(again.arrays[place], array, err_msg=str(place))


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


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("start", [on_servers, on_machines, run_machine, on_nodes, alone])
def test_training_on_from_a_checkpoint_is_training_that_never_stopped(tmp_path, start):
    if start is on_nodes:
        pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
    standing.end()
    whole = [start("checkpoint", job) for job in jobs(tmp_path)]
    standing.kill()
    for job, expected in zip(jobs(tmp_path, begin=MIDDLE), whole):
        assert_equal(start("checkpoint", job), expected)
        assert_saved_again_before_any_step(job, len(expected))
    if start in (on_servers, on_machines):
        for job, expected in zip(jobs(tmp_path, begin=MIDDLE), whole):
            assert_equal(start("checkpoint", job, servers=1), expected)
    anew = {"begin": MIDDLE, "end": MIDDLE + 2, "partition_bytes": THREE_CHUNKS}
    for job, params in zip(jobs(tmp_path, **anew), WITH_FEEDBACK):
        results = start("checkpoint", job)
        rows, local_size = [int(result["row"]) for result in results], LOCAL_SIZES.get(start, 1)
        expected = expected_of_new_chunks(params, rows, local_size)
        for result in results:
            np.testing.assert_allclose(result["g0"], expected, rtol=2e-5, atol=2e-5)


def test_workers_load_and_save_the_states_of_frozen_parameters(tmp_path):
    job, *_ = jobs(tmp_path, middle=2, end=2)
    on_servers("checkpoint", job)
    on_servers("checkpoint", {**job, "begin": 2, "frozen": [0]})
    assert_saved_again_before_any_step(job, 2)


@pytest.mark.timeout(900)
def test_more_workers_share_what_was_carried_over(tmp_path):
    """The sum over workers stays; shared random streams stay shared, others stay different."""
    of_all = jobs(tmp_path, middle=2, end=2, workers=2)
    large = {"name": "large", "shapes": [(1100, 1000)], "partition_bytes": 2**20}
    of_all.append({**of_all[0], **large})  # large enough for several pages from a server
    for job in of_all:
        on_servers("checkpoint", job)
    for job in of_all:
        run("states_of_others", job, workers=3, servers=1)
    for job in of_all:
        file, params = f"{job['folder']}/{job['name']}", job["compression_params"]
        before = [checkpoint.read(f"{file}-{rank}").arrays for rank in range(2)]
        after = [checkpoint.read(f"{file}-{rank}.shared").arrays for rank in range(3)]
        for place, array in before[0].items():
            if place.node != "worker":
                np.testing.assert_array_equal(after[0][place], array, err_msg=f"{params} {place}")
            elif place.what == "stream":
                words = {arrays[place][:, 2:].tobytes() for arrays in after}
                assert len(words) == (1 if params["compressor"] == "randomk" else 3)
                np.testing.assert_array_equal(after[1][place], before[1][place])
            else:
                total = sum(arrays[place].astype(np.float64) for arrays in before)
                for arrays in after:
                    np.testing.assert_allclose(arrays[place], total / 3, rtol=1e-7)


def totals(job, suffix=""):
    """Return the sum of all residuals and momenta of the workers, and those of the aggregators."""
    files = [
        checkpoint.read(f"{job['folder']}/{job['name']}-{rank}{suffix}")
        for rank in range(job["workers"])
    ]
    senders = [one["senders"] for one in files[0].header["parameters"]]
    found = {}
    for place in files[0].arrays:
        if place.node == "worker" and place.what != "stream":
            total = sum(states.arrays[place].astype(np.float64) for states in files)
            found[place[:3]] = total * senders[place.tensor] / len(files)
    aggregators = sorted(fitting.aggregators([states.arrays for states in files]).items())
    for place in {place[:3] for place, _ in aggregators}:
        of_place = [array for other, array in aggregators if other[:3] == place]
        found[place] = np.concatenate(of_place)
    return found


def on_one_machine_with_a_server(job, arguments):
    return run(job, arguments, 2, 1, {"BYTEPS_LOCAL_SIZE": 2})


GROUPINGS = [on_servers, on_one_machine_with_a_server, run_machine, run_horovod]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("before", GROUPINGS)
def test_as_many_workers_in_other_groups_keep_the_sum(tmp_path, before):
    """The workers of a machine have one residual together, and Horovod has no server."""
    pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
    of_all = jobs(tmp_path, middle=2, end=2, workers=2)
    for job in of_all:
        before("checkpoint", job)
    for after in GROUPINGS:
        for job in of_all:
            after("states_of_others", job)
        for job in of_all:
            expected, found = totals(job), totals(job, ".shared")
            assert found.keys() == expected.keys()
            for place, total in expected.items():
                err_msg = f"{after.__name__} {job['compression_params']} {place}"
                np.testing.assert_allclose(found[place], total, 1e-6, 1e-9, err_msg=err_msg)


@pytest.mark.parametrize("before, after", [(on_servers, run_machine), (run_machine, on_servers)])
def test_a_file_of_workers_in_other_groups_is_refused_with_the_remedy(tmp_path, before, after):
    before("wrong_states", {"folder": str(tmp_path)})
    numbers = "2 there, but 1 here" if after is run_machine else "1 there, but 2 here"
    for rank, said in enumerate(after("own_states", {"folder": str(tmp_path)})):
        assert str(said["error"]) == (
            f"'{tmp_path}/{rank}' does not fit: the number of residuals of 'p0' is {numbers}; "
            "pass the files of all workers that saved, and strict=False"
        )


def files_of(worker, there, here):
    """Return the error message for workers with different files; worker 0's file comes second."""
    one, zero = (there, here) if worker else (here, there)
    return f'worker 1 has file "{one}" for load_states, but worker 0 has "{zero}"'


def test_another_workers_file_or_step_is_refused_by_all(tmp_path):
    for rank, said in enumerate(run("wrong_states", {"folder": str(tmp_path)})):
        other = 1 - rank
        file = tmp_path / str(other)
        rule = f"the rank is {other} there, but {rank} here"
        assert str(said[f"of{other}"]) == f"'{file}' does not fit: {rule}"
        there, here = "that it refuses", "of step 1 of 2 workers"
        assert str(said[f"of{rank}"]).endswith(files_of(other, there, here))
        assert str(said["steps"]).endswith(files_of(1, here.replace("1", "2"), here))
