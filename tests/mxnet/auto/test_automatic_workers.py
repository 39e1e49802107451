"""The compressor "auto" on every backend: all workers make the same choice, and keep it."""

import logging
from contextlib import contextmanager

import mxnet as mx
import numpy as np
import pytest

import gluon_gc as bps
from gluon_gc.auto.choice import Link, Measured, TrafficCost
from gluon_gc.auto.local_steps import StepClock
from gluon_gc.auto.speed import Speed
from gluon_gc.log import logger
from gluon_gc.mxnet.trainer.automatic import Workers
from tests.mxnet.cluster.hosts import Hosts, needs_namespaces
from tests.mxnet.cluster.jobs import backward, gradients_of, parameters
from tests.mxnet.cluster.standing import run, run_horovod, run_local, run_machine
from tests.mxnet.exchange.test_two_way import steps

SHAPES = [(300, 100), (2,), (64, 300)]


def weights(result, name):
    return [result[f"{name}/w{i}"] for i in range(len(SHAPES))]


def measured_link(rate):
    """Return what a probe would measure on a link of this speed."""
    cost = TrafficCost(0.0, rate)
    kernels = dict.fromkeys(("bytegrad", "blockwise", "onebit", "topk"), Speed(0.0, 0.0, 0.0))
    return Measured(Link(cost, cost, cost), kernels)


@contextmanager
def logged_lines():
    """Yield the list of warnings that are logged in this context."""
    lines, handler = [], logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def automatic(folder, accuracy, optimizer="sgd"):
    """Train with compressor "auto", on simulated and real links; returns weights and choices.

    The results have these prefixes:
    - "chosen/": "auto", told that the link is slow;
    - "given/": a trainer that is given the compression that "chosen" chose;
    - "resumed/": the second half of "chosen" from a checkpoint, told that the link is fast;
    - "fast/": "auto", told that the link is fast;
    - "overridden/": as "chosen", but the first parameter has its own compression;
    - "measured/": "auto" on the real link.
    """
    auto, settings = {"compressor": "auto", "accuracy": accuracy}, {"learning_rate": 0.1}
    if optimizer == "sgd":
        auto["momentum"], settings["momentum"] = "nesterov", 0.9
    file, half, end = f"{folder}/automatic-{bps.rank()}", 2, 4
    result, really = {}, Workers.measured

    def train(name, rate=None, begin=0, compression=auto, overrides=None):
        params = parameters(SHAPES)
        for i, override in (overrides or {}).items():
            params[i].compression_params = override
        trainer = bps.DistributedTrainer(
            params, optimizer, dict(settings), compression_params=compression
        )
        link = measured_link(rate or 0.0)
        Workers.measured = really if rate is None else lambda *_: link
        if begin:
            for i, param in enumerate(params):
                param.set_data(mx.nd.array(result[f"half/w{i}"]))
            trainer.load_states(file)
        for step in range(begin, end):
            backward(params, gradients_of(bps.rank(), step, SHAPES))
            trainer.step(1)
            weights = [param.data().asnumpy() for param in params]
            if name == "chosen" and step + 1 == half:
                trainer.save_states(file)
                result.update((f"half/w{i}", array) for i, array in enumerate(weights))
        result.update((f"{name}/w{i}", array) for i, array in enumerate(weights))
        of_tensors = [trainer._averaging.tensors[i, ""].params for i in range(len(SHAPES))]
        names = [p.compressor.name if p.compressor else p.given().get("fp16") for p in of_tensors]
        result[f"{name}/chosen"] = [str(chosen) for chosen in names]
        return [params.given() or None for params in of_tensors]

    try:
        given = train("chosen", rate=1e6)
        plain = {i: None for i, params in enumerate(given) if params is None}
        train("given", compression=next(filter(None, given), None), overrides=plain)
        train("resumed", rate=1e15, begin=half)
        train("fast", rate=1e15)
        train("overridden", rate=1e6, overrides={0: {"compressor": "dithering", "k": 2, "seed": 1}})
        train("measured")
    finally:
        Workers.measured = really
    return result


def decision_of(trainer):
    """Return what "auto" chose for the trainer's algorithm, as text; [] if nothing."""
    automatic = trainer._averaging._automatic  # None: there was nothing to choose
    return [] if automatic is None else list(map(str, automatic.decision or ()))


def automatic_local_steps(folder, rate, seconds):
    """Train with local_steps and "auto"; returns weights, decisions and log lines.

    `rate` is the speed of the simulated link in bytes per second, `seconds` the simulated time of a
    step. The results have these prefixes:
    - "chosen/": "auto" with the simulated link and time;
    - "given/": a trainer that is given this choice;
    - "early/", "late7/", "late29/": resumed from a checkpoint before the choice, or after 7 or 29
      steps. The late ones are told that the link is fast;
    - "measured/": "auto" on the real link, until its choice.
    """
    auto, result = {"compressor": "auto", "accuracy": "aggressive"}, {}

    def train(name, begin=0, end=38, compression=auto, **options):
        params = parameters(SHAPES)
        trainer = bps.DistributedTrainer(
            params,
            "adam",
            {"learning_rate": 0.01},
            compression_params=compression,
            algorithm={"name": "local_steps", "outer_lr": 0.6, **options},
        )
        if begin:
            trainer.load_states(f"{folder}/{begin}-{bps.rank()}")
        with logged_lines() as lines:
            for step in range(begin, end):
                if name == "chosen" and step in (3, 7, 29):
                    trainer.save_states(f"{folder}/{step}-{bps.rank()}")
                backward(params, gradients_of(bps.rank(), step, SHAPES))
                trainer.step(1)
        result.update((f"{name}/w{i}", p.data().asnumpy()) for i, p in enumerate(params))
        result[f"{name}/decision"] = decision_of(trainer)
        result[f"{name}/log"] = lines
        return trainer

    really, clocked = Workers.measured, StepClock.seconds
    # The other workers' steps are shorter.
    StepClock.seconds = property(lambda clock: seconds / (1 + bps.rank()))
    try:
        Workers.measured = lambda *_: measured_link(rate)
        chosen = train("chosen")
        tensor = next(iter(chosen._averaging.tensors.values()))
        every = chosen._averaging.described["every"]
        train("given", compression=tensor.params.given(), every=every)
        train("early", begin=3)
        Workers.measured = lambda *_: measured_link(1e15)
        for begin in (7, 29):
            train(f"late{begin}", begin=begin)
        StepClock.seconds, Workers.measured = clocked, really
        train("measured", end=7)
    finally:
        StepClock.seconds, Workers.measured = clocked, really
    return result


def automatic_powersgd(folder, rate):
    """Train with powersgd and "auto"; returns weights, decisions and log lines.

    The results have the prefixes of `automatic_local_steps`, with checkpoints of steps 0 and 3.
    "plain/" is a trainer without algorithm; "fast/" is told that the link is fast.
    """
    auto, result, slow = {"compressor": "auto", "accuracy": "aggressive"}, {}, rate

    def train(name, begin=None, rate=None, compression=auto, algorithm="powersgd"):
        if rate is not None:
            Workers.measured = lambda *_: measured_link(rate)
        params = parameters(SHAPES)
        options = {"name": algorithm, "rank": 2} if algorithm else None
        trainer = bps.DistributedTrainer(
            params,
            "sgd",
            {"learning_rate": 0.01},
            compression_params=compression,
            algorithm=options,
        )
        if begin is not None:
            trainer.load_states(f"{folder}/{begin}-{bps.rank()}")
        with logged_lines() as lines:
            for step in range(begin or 0, 6):
                if name == "chosen" and step in (0, 3):
                    trainer.save_states(f"{folder}/{step}-{bps.rank()}")
                backward(params, gradients_of(bps.rank(), step, SHAPES))
                trainer.step(1)
        result.update((f"{name}/w{i}", p.data().asnumpy()) for i, p in enumerate(params))
        if algorithm:
            result[f"{name}/decision"] = decision_of(trainer)
            result[f"{name}/log"] = lines

    really = Workers.measured
    try:
        train("chosen", rate=slow)
        train("given", compression={"fp16": True})
        train("early", begin=0)
        train("late", begin=3, rate=1e15)
        train("fast")
        train("plain", compression=None, algorithm=None)
        Workers.measured = really
        train("measured")
    finally:
        Workers.measured = really
    return result


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
    job = {"folder": str(tmp_path), "accuracy": accuracy, "optimizer": optimizer}
    results = run(automatic, job, 2, 1, machine)
    check(results, [large, "None", large])


def aggressive(folder):
    return {"folder": str(folder), "accuracy": "aggressive"}


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
    return automatic_local_steps, {"folder": str(folder), "rate": 1e6, "seconds": 0.01}


@pytest.mark.parametrize("of_a_machine, every", [(1, 15), (2, 10)])
def test_the_interval_of_local_steps_is_chosen_by_all_and_stays(tmp_path, of_a_machine, every):
    results = run(*local_steps(tmp_path), 2, 1, {"BYTEPS_LOCAL_SIZE": of_a_machine})
    check_local_steps(results, "onebit", every)


def powersgd(folder):
    return automatic_powersgd, {"folder": str(folder), "rate": 1e5}


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


def test_all_choose_whether_powersgd_compresses_and_keep_it(tmp_path):
    results = run(*powersgd(tmp_path), 2, 1, {"BYTEPS_LOCAL_SIZE": 2})
    check_powersgd(results, ["fp16", "2"])


# On other engines


def test_a_choice_is_alike_over_horovod(tmp_path):
    check(run_horovod(automatic, aggressive(tmp_path)), ["topk", "None", "topk"])


def test_nothing_is_chosen_where_nothing_is_sent(tmp_path):
    job = automatic, aggressive(tmp_path)
    for result in (run_local(*job), *run_machine(*job)):
        for name in ("chosen", "resumed", "measured"):
            assert list(result[f"{name}/chosen"]) == ["None"] * len(SHAPES)
        for a, b in zip(weights(result, "chosen"), weights(result, "resumed")):
            np.testing.assert_array_equal(a, b)


def test_the_interval_of_local_steps_stays_where_nothing_is_sent(tmp_path):
    check_local_steps([run_local(*local_steps(tmp_path))], "none", 30, logs=0)
    check_local_steps(run_machine(*local_steps(tmp_path)), "none", 30, logs=0)


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
            hosts.start_worker(rank, steps, {**job, **more})
        first, second = hosts.results()
        said = hosts.log("worker0")
    assert "auto, safe: the link carries" in said and "bytegrad for 1 of 250,000 elements" in said
    assert "none for 1 of 10 elements (p1)" in said
    assert "auto" not in hosts.log("worker1")
    np.testing.assert_array_equal(first["w0"], second["w0"])
