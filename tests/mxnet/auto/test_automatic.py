"""The compressor "auto" on every backend: all workers make the same choice, and keep it."""

import numpy as np
import pytest

from tests.mxnet.cluster.hosts import Hosts
from tests.mxnet.cluster.namespaces import needs_namespaces
from tests.mxnet.cluster.standing import run, run_horovod, run_local, run_machine

SHAPES = [(300, 100), (2,), (64, 300)]


def weights(result, name):
    return [result[f"{name}/w{i}"] for i in range(len(SHAPES))]


def arguments(folder, accuracy, **more):
    return {"shapes": SHAPES, "accuracy": accuracy, "folder": str(folder), **more}


def check(results, chosen):
    """Check the choice: as expected, the same on all workers, and equal to a given compression.

    A checkpoint keeps the choice, and a parameter's own compression takes precedence.
    """
    for result in results:
        assert list(result["chosen/chosen"]) == chosen
        assert list(result["resumed/chosen"]) == chosen
        assert list(result["fast/chosen"]) == ["None"] * len(SHAPES)
        assert list(result["overridden/chosen"]) == ["dithering", *chosen[1:]]
        for name in ("given", "resumed"):
            for a, b in zip(weights(result, "chosen"), weights(result, name)):
                np.testing.assert_array_equal(a, b, err_msg=name)
        for key, array in result.items():
            np.testing.assert_array_equal(array, results[0][key], err_msg=key)


@pytest.mark.parametrize(
    "optimizer, accuracy, large, of_a_machine",
    [
        ("sgd", "safe", "bytegrad", 1),
        ("sgd", "aggressive", "topk", 2),
        ("adam", "aggressive", "blockwise", 1),
    ],
)
def test_a_choice_is_the_same_for_all_is_what_it_would_be_if_given_and_stays(
    tmp_path, optimizer, accuracy, large, of_a_machine
):
    machine = {"BYTEPS_LOCAL_SIZE": of_a_machine}
    job = arguments(tmp_path, accuracy, optimizer=optimizer)
    results = run("automatic", job, 2, 1, machine)
    check(results, [large, "None", large])


def test_a_choice_is_alike_over_horovod(tmp_path):
    pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
    check(run_horovod("automatic", arguments(tmp_path, "aggressive")), ["topk", "None", "topk"])


def test_nothing_is_chosen_where_nothing_is_sent(tmp_path):
    job = "automatic", arguments(tmp_path, "aggressive")
    for result in (run_local(*job), *run_machine(*job)):
        for name in ("chosen", "resumed", "measured"):
            assert list(result[f"{name}/chosen"]) == ["None"] * len(SHAPES)
        for a, b in zip(weights(result, "chosen"), weights(result, "resumed")):
            np.testing.assert_array_equal(a, b)


def check_local_steps(results, name, every, logs=1):
    """Check the choice of H and of the compressor, in the way of `check`."""
    for rank, result in enumerate(results):
        for prefix in ("chosen", "early", "late7", "late29"):
            assert list(result[f"{prefix}/decision"]) == [name, str(every)], prefix
        for prefix in ("given", "early", "late7", "late29"):
            for a, b in zip(weights(result, "chosen"), weights(result, prefix)):
                np.testing.assert_array_equal(a, b, err_msg=prefix)
        decision = results[0]["measured/decision"]
        np.testing.assert_array_equal(result["measured/decision"], decision)
        for prefix in ("chosen", "early", "measured"):
            assert len(result[f"{prefix}/log"]) == (logs if rank == 0 else 0)
        assert not len(result["late7/log"])
    if logs:
        assert int(results[0]["measured/decision"][1]) % 5 == 0
        (said,) = results[0]["chosen/log"]
        assert f"a local step takes 0.01 s: {name} for 49,202 elements every {every} st" in said
    for result in results[1:]:  # workers differ between rounds
        assert not np.array_equal(results[0]["chosen/w0"], result["chosen/w0"])


def local_steps(folder):
    return "automatic_local_steps", {
        "shapes": SHAPES,
        "folder": str(folder),
        "rate": 1e6,
        "seconds": 0.01,
    }


@pytest.mark.parametrize("of_a_machine, every", [(1, 15), (2, 10)])
def test_the_interval_of_local_steps_is_chosen_by_all_and_stays(tmp_path, of_a_machine, every):
    results = run(*local_steps(tmp_path), 2, 1, {"BYTEPS_LOCAL_SIZE": of_a_machine})
    check_local_steps(results, "onebit", every)


def test_the_interval_of_local_steps_is_chosen_over_horovod(tmp_path):
    pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
    check_local_steps(run_horovod(*local_steps(tmp_path)), "onebit", 10)


def test_the_interval_of_local_steps_stays_where_nothing_is_sent(tmp_path):
    check_local_steps([run_local(*local_steps(tmp_path))], "none", 30, logs=0)
    check_local_steps(run_machine(*local_steps(tmp_path)), "none", 30, logs=0)


def powersgd(folder):
    return "automatic_powersgd", {"shapes": SHAPES, "folder": str(folder), "rate": 1e5}


def check_powersgd(results, decision, logs=1):
    """Check whether gradients are compressed, in the way of `check`."""
    for rank, result in enumerate(results):
        for prefix in ("chosen", "early", "late"):
            assert list(result[f"{prefix}/decision"]) == decision, prefix
            for a, b in zip(weights(result, "chosen"), weights(result, prefix)):
                np.testing.assert_array_equal(a, b, err_msg=prefix)
        same = "given" if decision[0] == "fp16" else "plain"
        for name, other in (("chosen", same), ("fast", "plain")):
            for a, b in zip(weights(result, name), weights(result, other)):
                np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 * (other == "plain"))
        assert list(result["fast/decision"]) == ["none", "0"]
        for prefix in ("chosen", "early", "fast", "measured"):
            assert len(result[f"{prefix}/log"]) == (logs if rank == 0 else 0)
        assert not len(result["late/log"])
        for key, array in result.items():
            if not key.endswith("/log"):
                np.testing.assert_array_equal(array, results[0][key], err_msg=key)


@pytest.mark.parametrize("of_a_machine", [1, 2])
def test_all_choose_whether_powersgd_compresses_and_keep_it(tmp_path, of_a_machine):
    results = run(*powersgd(tmp_path), 2, 1, {"BYTEPS_LOCAL_SIZE": of_a_machine})
    check_powersgd(results, ["fp16", "2"])


def test_all_choose_whether_powersgd_compresses_over_horovod(tmp_path):
    pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
    check_powersgd(run_horovod(*powersgd(tmp_path)), ["fp16", "2"])


def test_powersgd_does_not_compress_where_nothing_is_sent(tmp_path):
    check_powersgd([run_local(*powersgd(tmp_path))], ["none", "0"], logs=0)


@needs_namespaces
def test_a_slow_link_is_measured_to_be_slow_and_gradients_are_compressed(tmp_path):
    job = {"shapes": [(500, 500), (10,)], "compression_params": {"compressor": "auto"}}
    with Hosts(tmp_path, workers=2, servers=1) as hosts:
        for host in hosts.hosts.values():
            hosts.network.shape(host, 5e6)  # so slow that a busy processor matters little
        hosts.start_roles()
        for rank in range(2):
            more = {"steps": 2, "optimizer_params": {"learning_rate": 0.1}}
            hosts.start_worker(rank, "steps", {**job, **more})
        first, second = hosts.results()
        said = hosts.log("worker0")
    assert "auto, safe: the link carries" in said and "bytegrad for 1 of 250,000 elements" in said
    assert "none for 1 of 10 elements (p1)" in said
    assert "auto" not in hosts.log("worker1")
    np.testing.assert_array_equal(first["w0"], second["w0"])
