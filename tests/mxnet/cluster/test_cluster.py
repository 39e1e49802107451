"""A cluster's features other than the two-way exchange."""

import signal
import time

import mxnet as mx
import numpy as np
import pytest

from tests.mxnet.cluster.cluster import Cluster, start_cluster
from tests.mxnet.cluster.jobs import gradients_of
from tests.mxnet.cluster.standing import run

ONEBIT = {"compressor": "onebit", "ef": "vanilla", "scaling": True}
HELD = 0.5


@pytest.mark.parametrize("params", [ONEBIT, None], ids=["onebit", "uncompressed"])
def test_step_returns_while_the_server_stands_still(tmp_path, params):
    cluster = Cluster(tmp_path, 1, 1)
    try:
        cluster.start_roles()
        cluster.start_worker(0, "delayed", {"folder": str(tmp_path), "compression_params": params})
        cluster.wait_for(tmp_path / "ready")
        cluster.suspend("server0")
        (tmp_path / "stopped").touch()
        cluster.wait_for(tmp_path / "returned", timeout=8)
        time.sleep(HELD)
        assert not cluster.result_file(0).exists()
        cluster.processes["server0"].send_signal(signal.SIGCONT)
        (result,) = cluster.results()
        np.testing.assert_array_equal(result["w"], np.full(1000, -1, np.float32))
        # Only messages that were ready count as waiting.
        known = HELD if params is ONEBIT else 0
        assert known < result["exposed"] <= result["took"]
    finally:
        cluster.stop()


@pytest.mark.parametrize("root_rank", [0, 1])
def test_all_workers_start_from_the_parameters_of_the_root_rank(root_rank):
    first, second = run("broadcast", {"root_rank": root_rank}, workers=2, servers=2)
    np.testing.assert_array_equal(first["weights"], second["weights"])
    expected = {
        "e0": np.array([-0.0, 1e-42, np.inf, -np.inf, root_rank], np.float32),
        "e1": np.array([[2**31 - 1 - root_rank, -5]], np.int32),
        "e2": np.array([1 / 3 + root_rank]),
        "e3": np.array([root_rank + 0.1], np.float16),
    }
    for result in (first, second):
        for name, array in expected.items():
            assert result[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("on_all", [True, False])
@pytest.mark.parametrize(
    "algorithm, call",
    [(None, "allreduce_grads"), (None, "step"), ({"name": "local_steps", "every": 1}, "step")],
)
def test_parameters_that_change_after_the_trainer_is_made_are_broadcast(algorithm, on_all, call):
    arguments = {"algorithm": algorithm, "on_all": on_all, "call": call}
    first, second = run("changed", arguments, workers=2)
    for name in ("weight0", "weight1", "bias0", "bias1"):
        np.testing.assert_array_equal(first[name], second[name])
        np.testing.assert_array_equal(first[name], first[name[:-1] + "0"])
    assert on_all or (first["bias0"] == 5).all()
    assert on_all or call == "step" or (first["weight0"] == 7).all()
    assert (first["running_mean0"] != second["running_mean0"]).any()


ADAM = {"optimizer": "adam", "optimizer_params": {"learning_rate": 0.1}}
DRIFTING = [
    {"trainer": {"optimizer": "sgld"}},
    {"trainer": {"compression_params": {"compressor": "onebit"}}, "changes": "w"},
    {"trainer": {**ADAM, "algorithm": {"name": "onebit_adam", "freeze_step": 3}}, "changes": "w"},
    {"trainer": {"algorithm": "powersgd"}, "changes": "w"},
]
EQUAL = [
    {"trainer": {}, "by_hand": True},
    {"trainer": {}, "changes": "frozen"},
    {"trainer": {}, "changes": "mean"},
    {"trainer": {"optimizer": "sgld", "algorithm": {"name": "local_steps", "every": 9}}},
    {"trainer": {**ADAM, "algorithm": {"name": "onebit_adam", "freeze_step": 3}}},
    {"trainer": {"algorithm": "powersgd"}},
]


def test_weights_that_differ_between_workers_are_an_error_on_all_workers_in_the_same_step():
    results = run("drifting", [*DRIFTING, *EQUAL])
    for number in range(len(DRIFTING)):
        for result in results:
            said = str(result[f"said{number}"])
            assert (
                "the weights of w differ between worker 0 and worker 1 before the update of step 9"
                in said
            )
            assert result[f"last{number}"] == 17
    for number in range(len(DRIFTING), len(DRIFTING) + len(EQUAL)):
        assert [str(result[f"said{number}"]) for result in results] == ["", ""], number


def test_push_pull_sums_and_averages_every_dtype():
    for result in run("push_pull", workers=2, servers=2):
        for dtype in ("float32", "float64", "float16", "int32"):
            assert result[dtype].dtype == dtype
            np.testing.assert_array_equal(result[dtype], 3 * np.arange(6).reshape(2, 3))
        np.testing.assert_array_equal(result["exact"], 1 / 3.7 + 2 / 3.7)
        np.testing.assert_array_equal(result["mean"], np.full(4, 0.5))
        np.testing.assert_array_equal(result["signs"], [1, -1, 1, -1])
        np.testing.assert_array_equal(result["nameless"], [1] * 4 + [3] * 5)
        np.testing.assert_array_equal(result["optimized"], np.full(3, -1.5))


def test_fp16_and_uncompressed_gradients_are_the_average():
    shapes = [(50, 20), (33,), (1,), (700,)]
    for fp16, tolerance in ((False, 1e-6), (True, 2e-3)):
        results = run(
            "steps",
            {
                "shapes": shapes,
                "steps": 3,
                "compression_params": {"fp16": fp16},
                "batch_size": 4,
                "optimizer_params": {"learning_rate": 0.1},
            },
            workers=2,
            servers=2,
            variables={"BYTEPS_PARTITION_BYTES": 1024},
        )
        for i in range(len(shapes)):
            expected = sum(gradients_of(rank, 2, shapes)[i] for rank in range(2)) / 8
            for result in results:
                np.testing.assert_allclose(
                    result[f"g{i}_2"], expected, rtol=tolerance, atol=tolerance
                )


def test_small_and_excluded_tensors_travel_uncompressed_under_the_same_momentum():
    shapes = [(100,), (10,), (100,)]
    results = run(
        "steps",
        {
            "shapes": shapes,
            "steps": 4,
            "compression_params": {**ONEBIT, "momentum": "nesterov"},
            "optimizer_params": {"learning_rate": 0.1, "momentum": 0.9},
            "overrides": {"2": None},
        },
        workers=2,
        servers=1,
        variables={"BYTEPS_MIN_COMPRESS_BYTES": 100},
    )
    for i in (1, 2):
        m = 0
        for step in range(4):
            g = sum(gradients_of(rank, step, shapes)[i] for rank in range(2)) / 2
            m = np.float32(0.9) * m + g
            for result in results:
                np.testing.assert_allclose(
                    result[f"g{i}_{step}"], g + np.float32(0.9) * m, rtol=1e-5, atol=1e-6
                )


@pytest.mark.parametrize("params", [None, ONEBIT], ids=["uncompressed", "onebit"])
def test_a_plain_gluon_trainer_can_use_the_backend(tmp_path, params):
    arguments = {"kvstore": "GluonGCParameterServer", "compression_params": params}
    with start_cluster(tmp_path, "plain_trainer", arguments) as cluster:
        results = cluster.results()
    expected = sum(gradients_of(rank, 0, [(40,), (7,)])[0] for rank in range(2))
    for result in results:
        np.testing.assert_array_equal(result["g"], results[0]["g"])
        if params is None:
            np.testing.assert_allclose(result["g"], expected, rtol=1e-6)
        np.testing.assert_allclose(result["w"], 1 - result["g"], rtol=1e-6)


@pytest.mark.parametrize(
    "more",
    [{}, {"optimizer": "adam", "algorithm": {"name": "onebit_adam", "freeze_step": 1}}],
    ids=["sgd", "onebit_adam"],
)
def test_an_overflow_on_one_worker_makes_all_leave_the_step_out(tmp_path, more):
    arguments = {"compression_params": ONEBIT, **more}
    with start_cluster(tmp_path, "amp_overflow", arguments) as cluster:
        results = cluster.results()
    for result in results:
        np.testing.assert_array_equal(result["w0"], np.ones(64))
        np.testing.assert_allclose(result["w1"], np.zeros(64), atol=1e-4)
        np.testing.assert_allclose(result["w2"], -np.ones(64), atol=1e-4)
        assert [float(result[f"scale{step}"]) for step in range(3)] == [65536, 32768, 32768]


def test_workers_go_on_in_another_cluster_and_in_one_of_another_size(tmp_path):
    compression = {"compressor": "onebit", "ef": "corrected", "momentum": "nesterov"}
    first, second = Cluster(tmp_path, 2, 2), Cluster(tmp_path, 2, 1)
    port = second.environment["DMLC_PS_ROOT_PORT"]
    try:
        first.start_roles()
        second.start_roles("2")
        for rank in range(2):
            arguments = {"port": port, "compression_params": compression}
            first.start_worker(rank, "resume", arguments)
        both = first.results()
        for result in both:
            for i in range(2):
                np.testing.assert_array_equal(result[f"resumed{i}"], result[f"never{i}"])
        alone = {name: a for name, a in both[0].items() if name.startswith("alone/")}
        assert {name.rsplit("/")[-1] for name in alone} == {"residual", "momentum"}
        for name, array in alone.items():
            total = sum(result[name.replace("alone", "before")] for result in both)
            np.testing.assert_array_equal(array, total)
            assert total.any()
        assert both[0]["size"] == 1
        for name in second.processes:
            assert second.wait(name) == 0
    finally:
        first.stop()
        second.stop()


@pytest.mark.parametrize("servers", [0, 1])
@pytest.mark.parametrize("workers", [2, 4])
def test_the_workers_of_a_machine_get_the_residuals_of_another_once(tmp_path, workers, servers):
    local_size = workers // 2
    first = Cluster(tmp_path, workers, 1, DMLC_NUM_WORKER=2, BYTEPS_LOCAL_SIZE=local_size)
    second = Cluster(tmp_path, 2, servers, DMLC_NUM_WORKER=1, BYTEPS_LOCAL_SIZE=2)
    port = second.environment["DMLC_PS_ROOT_PORT"]
    try:
        first.start_roles()
        if servers:
            second.start_roles("2")
        for rank in range(workers):
            machine, local_rank = divmod(rank, local_size)
            place = {"DMLC_WORKER_ID": machine, "BYTEPS_LOCAL_RANK": local_rank}
            arguments = {"port": port, "servers": servers}
            first.start_worker(rank, "resume_on_one_machine", arguments, **place)
        results = first.results()
        total = results[0]["before"] + results[-1]["before"]
        assert total.any()
        for result in results[:2]:
            assert result["size"] == 2
            np.testing.assert_allclose(result["after"], total, rtol=1e-6)
    finally:
        first.stop()
        second.stop()


@pytest.mark.parametrize(
    "job, optimizer, options",
    [
        ("grow", "sgd", {"momentum": 0.9}),
        ("grow", "adam", {}),
        ("grow", "nadam", {}),
        ("grow_by_hand", "sgd", {"momentum": 0.9}),
        ("grow_by_hand", "nadam", {}),
    ],
)
def test_a_new_worker_goes_on_from_the_parameters_and_states_of_the_old_one(
    tmp_path, job, optimizer, options
):
    first, second = Cluster(tmp_path, 1, 1), Cluster(tmp_path, 2, 1)
    port = second.environment["DMLC_PS_ROOT_PORT"]
    arguments = {"optimizer": optimizer, "options": options, "port": port}
    try:
        first.start_roles()
        second.start_roles("2")
        first.start_worker(0, job, arguments)
        second.start_worker(1, job, arguments)
        first.wait_for_end()
        results = second.results()
    finally:
        first.stop()
        second.stop()
    scheduler = mx.lr_scheduler.FactorScheduler(1, 0.9)
    stock = mx.optimizer.create(optimizer, lr_scheduler=scheduler, **options)
    update, weight = mx.optimizer.get_updater(stock), mx.nd.ones((5, 7))
    for step in range(6):
        ranks = range(1 if step < 3 else 2)
        mean = sum(gradients_of(rank, step, [(5, 7)])[0] for rank in ranks) / len(ranks)
        update(0, mx.nd.array(mean), weight)
    for result in results:
        np.testing.assert_allclose(result["weight0"], weight.asnumpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(result["weight0"], results[0]["weight0"])
        np.testing.assert_array_equal(result["weight0"], result["weight1"])
        assert result["steps"] == 6


def test_a_parameter_that_is_frozen_holds_up_none_that_travels_with_it():
    exact = {"compressor": "topk", "k": 1000, "ef": "vanilla"}
    results = run("frozen", {"compression_params": exact}, workers=2, servers=1)
    expected = sum(gradients_of(rank, 1, [(40,), (7,)])[0] for rank in range(2)) / 2
    for result in results:
        np.testing.assert_allclose(result["g"], expected, rtol=1e-6, atol=1e-7)
        np.testing.assert_array_equal(result["before"], result["after"])


def test_servers_learn_how_many_workers_a_machine_has(tmp_path):
    cluster = Cluster(tmp_path, 2, 1, DMLC_NUM_WORKER=1)
    try:
        cluster.start_roles()
        for rank in range(2):
            on_machine = {"BYTEPS_LOCAL_RANK": rank, "BYTEPS_LOCAL_SIZE": 2, "DMLC_WORKER_ID": 0}
            cluster.start_worker(rank, "place", **on_machine)
        places = [(int(r["rank"]), int(r["local_rank"])) for r in cluster.results()]
        assert places == [(0, 0), (1, 1)]
    finally:
        cluster.stop()


def test_workers_of_a_machine_are_counted_alike_after_shutdown_and_init(tmp_path):
    second = Cluster(tmp_path, 2, 1, DMLC_NUM_WORKER=1)
    first = Cluster(tmp_path, 2, 1, DMLC_NUM_WORKER=1)
    port = second.environment["DMLC_PS_ROOT_PORT"]
    try:
        first.start_roles()
        second.start_roles("2")
        for rank in range(2):
            on_machine = {"BYTEPS_LOCAL_RANK": rank, "BYTEPS_LOCAL_SIZE": 2, "DMLC_WORKER_ID": 0}
            first.start_worker(rank, "again", {"port": port}, **on_machine)
        sizes = [result["sizes"].tolist() for result in first.results()]
        assert sizes == [[2, 2], [2, 2]]
        for name in second.processes:
            assert second.wait(name) == 0
    finally:
        first.stop()
        second.stop()
