"""bps.init with a mailbox, and what MXNet's trainer does and refuses with one."""

import os
import signal
import sys
from unittest import mock

import mxnet as mx
import pytest
from mxnet.contrib.amp.loss_scaler import LossScaler

import gluon_gc.mxnet as bps
from gluon_gc.algorithms.local_steps import LocalSteps
from gluon_gc.mailbox import objects
from gluon_gc.mailbox.store import Store
from tests.neutral.mailbox.recording import digest
from tests.neutral.mailbox.runs import EVERY_5, ONEBIT, Replay, become_run_of

from .job import Batches, has_equal_copies, network, trainer_of, values_of

CONFIG = {"algorithm": EVERY_5, "compression_params": ONEBIT}


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "run")


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Be a process without a cluster, before and after the test."""
    monkeypatch.setenv("BYTEPS_MIN_COMPRESS_BYTES", "0")
    bps.shutdown()
    yield
    bps.shutdown()


def lives(url, **settings):
    """Be another worker of a run: a process that starts again does the same."""
    bps.shutdown()
    bps.init(mailbox=url, **{"grace": 0.05, **settings})


def make(seed=0, contexts=1, outputs=5, **config):
    """Return a model and its trainer."""
    net = network(contexts, seed, outputs)
    return net, trainer_of(net, {**CONFIG, **config})


def train(net, trainer, batch_sizes, contexts=1, scale=1.0):
    batches = Batches(0, contexts)
    for batch_size in batch_sizes:
        batches.backward(net, batch_size, scale)
        trainer.step(batch_size)


def result(url, number, kind="difference"):
    """Return the header of a round's result."""
    return objects.unpack("", Store(url).get(objects.result_name(kind, number))).header


def test_wrong_settings_are_refused_by_name_and_a_later_init_counts(url, monkeypatch):
    for error, settings in (
        (ValueError, {"grace": 0}),
        (ValueError, {"keep": 0}),
        (ValueError, {"worker_name": "a/b"}),
        (TypeError, {"graces": 3}),
        (TypeError, {"samples_per_step": 4}),
    ):
        with pytest.raises(error, match=next(iter(settings))):
            bps.init(mailbox=url, **settings)
    with pytest.raises(TypeError, match="grace is for runs with a mailbox"):
        bps.init(grace=3)
    with pytest.raises(ValueError, match="mailbox must be"):
        bps.init(mailbox="ftp://host/run")
    for call in (bps.worker_name, bps.worker_seed, bps.rounds, lambda: bps.report_loss(1.0)):
        with pytest.raises(RuntimeError, match="call bps.init"):
            call()
    assert not os.path.exists(url)
    bps.init()
    with pytest.raises(ValueError, match="without a mailbox"):
        make(algorithm={**EVERY_5, "every": "1 s"})
    monkeypatch.setenv("GLUON_GC_MAILBOX", url)
    bps.init(worker_name="mine")  # after an init without a mailbox
    assert bps.worker_name().startswith("mine-")
    with pytest.raises(RuntimeError, match="before it joins the run at"):
        bps.init(mailbox=f"{url}2")


def test_a_mailbox_within_a_cluster_is_refused_before_it_connects(url, monkeypatch):
    before = os.environ.get("DMLC_NUM_WORKER")
    cluster = {"ROLE": "worker", "NUM_WORKER": 2, "NUM_SERVER": 1, "WORKER_ID": 0}
    cluster.update(PS_ROOT_URI="127.0.0.1", PS_ROOT_PORT=1)
    with monkeypatch.context() as variables:
        for name, value in cluster.items():
            variables.setenv(f"DMLC_{name}", str(value))
        with pytest.raises(bps.ConfigurationError, match="a mailbox is for processes without a cl"):
            bps.init(mailbox=url)
    assert not os.path.exists(url)
    bps.init(mailbox=url)
    for call in (bps.suspend, lambda: bps.resume(2, 1)):
        with pytest.raises(RuntimeError, match="is for clusters, but this process is a worker of"):
            call()
    assert os.environ.get("DMLC_NUM_WORKER") == before


def test_what_a_mailbox_cannot_do_is_refused(url, tmp_path):
    lives(url)
    with pytest.raises(ValueError, match="with a mailbox, got None"):
        make(algorithm=None)
    with pytest.raises(ValueError, match="use DistributedTrainer"):
        bps.DistributedOptimizer(mx.optimizer.SGD())
    with pytest.raises(ValueError, match="'local_steps' with a mailbox, got 'powersgd'"):
        make(algorithm="powersgd", compression_params=None)
    with pytest.raises(ValueError, match=r"algorithm\['start'\] must be 0 with a mailbox, got 3"):
        make(algorithm={"name": "local_steps", "start": 3})
    for text, compressor in (
        ("'randomk' with a mailbox", {"compressor": "randomk", "k": 0.1, "ef": "vanilla"}),
        ("got 'auto'", {"compressor": "auto"}),
    ):
        with pytest.raises(ValueError, match=text):
            train(*make(compression_params=compressor), [4])
    net, trainer = make()
    file = str(tmp_path / "states")
    for call in (trainer.save_states, trainer.load_states):
        with pytest.raises(RuntimeError, match="save only the model's parameters"):
            call(file)
    assert not os.path.exists(file)
    assert Store(url).list("") == []
    train(net, trainer, [4])
    with pytest.raises(RuntimeError, match="save only the model's parameters"):
        trainer.save_states(file)
    with pytest.raises(RuntimeError, match="the parameters of one optimizer"):
        train(*make(), [4])


def test_a_run_keeps_its_frozen_parameters(url):
    lives(url)
    net, trainer = make()
    net[0].collect_params().setattr("grad_req", "null")
    train(net, trainer, [4] * 6)
    net[0].collect_params().setattr("grad_req", "write")
    with pytest.raises(ValueError, match="has changed since .* make another run, at another URL"):
        train(net, trainer, [4])
    bps.shutdown()
    bps.init()
    net, trainer = make()
    net.collect_params().setattr("grad_req", "null")
    before = values_of(net)
    for _ in range(6):
        trainer.step(4)
    assert digest({"": values_of(net)}) == digest({"": before})


def test_a_report_has_the_bytes_of_a_mailbox(url):
    lives(url)
    net, trainer = make()
    reporter = bps.report(trainer, every=10, measure_error=10)
    train(net, trainer, [8] * 20)
    assert reporter.last.step == 20 and reporter.last.pushed_bytes > 0
    assert reporter.last.residual_ratio is reporter.last.error is reporter.last.waited_for is None


def test_a_worker_that_does_not_fit_its_run_is_told_why(url):
    lives(url)
    train(*make(), [4] * 5)
    lives(url)
    net, trainer = make(seed=1, outputs=6)
    before = values_of(net)
    said = r"shape \[6, 16\] for parameter net_dense1_weight, but the run has \[5, 16\]"
    with pytest.raises(RuntimeError, match=said):
        trainer.step(4, ignore_stale_grad=True)
    assert digest({"": values_of(net)}) == digest({"": before})
    become_run_of(url, "torch")
    lives(url)
    with pytest.raises(RuntimeError, match='worker has framework "mxnet", but the run has "torch"'):
        train(*make(), [4])


def test_a_worker_learns_of_its_run(url):
    lives(url, worker_name="early")
    names, seeds = {bps.worker_name()}, {bps.worker_seed()}
    assert (bps.size(), bps.rank(), bps.rounds()) == (1, 0, 0)
    bps.report_loss(2.5)
    net, trainer = make()
    assert f"worker {bps.worker_name()} of the run at file://" in repr(trainer)
    trainer._amp_loss_scaler, trainer._amp_original_scale = LossScaler(), 1.0
    train(net, trainer, [2, 3, 4, 5, 6])
    train(net, trainer, [7], scale=float("inf"))  # AMP skips this step, which has no weight
    train(net, trainer, [8] * 4)
    assert bps.rounds() == 2
    weights = [result(url, number)["counted"][0]["weight"] for number in (1, 2)]
    assert weights == [2 + 3 + 4 + 5 + 6, 4 * 8]
    (entry,) = result(url, 2)["counted"]
    assert (entry["worker"], entry["steps"], entry["loss"]) == (bps.worker_name(), 10, 2.5)
    first_name, stats = bps.worker_name(), trainer.compression_stats(reset=True)
    payloads = Store(url).list("difference/rounds/00000001/payloads/")
    pushed_bytes = stats["total"]["pushed_bytes"]
    assert [payload.size for payload in payloads] == pytest.approx([pushed_bytes], rel=0.02)
    assert set(stats["tensors"]) == {f"difference of {name}" for name in values_of(net)}
    assert trainer.compression_stats()["total"]["pushed_bytes"] == 0
    lives(url)
    names.add(bps.worker_name())
    seeds.add(bps.worker_seed())
    assert len(names) == len(seeds) == 2
    net, trainer = make(seed=7)
    before = values_of(net)
    Batches(0).backward(net, 4)
    trainer.step(4)
    after = values_of(net)
    # It has the run's parameters, and its first gradient, which was of others, is used up.
    anchor = {n: a.asnumpy() for n, a in trainer._averaging._driver.state["anchor"].items()}
    assert digest({"": after}) == digest({"": anchor}) != digest({"": before})
    with pytest.raises(UserWarning, match="has not been updated by backward"):
        trainer.step(4)
    assert bps.rounds() == 2
    train(net, trainer, [4] * 4)
    (entry,) = result(url, 3)["counted"]
    assert (entry["worker"], entry["weight"], entry["steps"]) == (bps.worker_name(), 16, 5)
    assert result(url, 3)["left"] == [first_name]


def test_gradients_of_nearly_equal_parameters_are_left_out_too(url):
    config = {"lr": 1e-6, "algorithm": {"name": "local_steps", "every": 1, "outer_momentum": 0}}
    lives(url)
    net, trainer = make(**config)
    train(net, trainer, [4, 4])
    trained = values_of(net)
    lives(url)
    net, trainer = make(**config)
    assert digest({"": values_of(net)}) != digest({"": trained})
    train(net, trainer, [4])
    assert digest({"": values_of(net)}) == digest({"": trained})


def test_sigterm_waits_until_a_round_is_applied(url):
    lives(url)
    net, trainer = make()
    train(net, trainer, [4] * 4)
    move_anchor = LocalSteps._move_anchor

    def interrupted(self, name, *arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        move_anchor(self, name, *arguments)

    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
    try:
        with mock.patch.object(LocalSteps, "_move_anchor", interrupted):
            with pytest.raises(SystemExit):
                train(net, trainer, [4])
    finally:
        signal.signal(signal.SIGTERM, before)
    anchor = {n: a.asnumpy() for n, a in trainer._averaging._driver.state["anchor"].items()}
    assert digest({"": values_of(net)}) == digest({"": anchor})
    assert bps.rounds() == 1


@pytest.fixture
def ends_at_sigterm():
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_sigterm_that_python_ignores_ends_the_next_step(url, ends_at_sigterm, monkeypatch):
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: ignored.append(what.exc_type))

    class Freed:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)

    lives(url)
    net, trainer = make()
    train(net, trainer, [4] * 3)
    Freed()
    before = values_of(net)
    with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)):
        train(net, trainer, [4])
    assert ignored == [SystemExit] and digest({"": values_of(net)}) == digest({"": before})
    bps.shutdown()
    assert Store(url).list(objects.payloads_folder("difference", 1))  # what it has changed


def test_fragments_that_overlap_have_the_replays_bits_and_all_contexts_follow(url):
    algorithm = {**EVERY_5, "every": 4, "fragments": 2, "overlap": 1, "mix": 0.25}
    dgc = {"compressor": "dgc", "k": 0.05, "seed": 3, "warmup_epochs": 3}
    lives(url)
    net, trainer = make(contexts=2, algorithm=algorithm, compression_params=dgc)
    seen = {}
    for step in range(24):
        if step in (0, 12):
            trainer.set_epoch(step)
        train(net, trainer, [6], contexts=2)
        assert has_equal_copies(net)
        driver = trainer._averaging._driver
        for kind, lane in driver._lanes.items():
            if lane.is_idle:
                seen[kind, lane.participant.round - 1] = digest(driver._state_of(kind))
    bps.shutdown()
    assert has_equal_copies(net)
    config = {"algorithm": algorithm, "compression_params": dgc}
    replays = {kind: Replay(url, config, kind) for kind in ("difference.0", "difference.1")}
    assert len(seen) >= 10
    for (kind, number), found in seen.items():
        assert found == replays[kind].digests[number], (kind, number)
    folders = [objects.payloads_folder("difference.0", number) for number in (1, 5)]
    sizes = [sum(payload.size for payload in Store(url).list(folder)) for folder in folders]
    assert sizes[0] > 2 * sizes[1]  # the warm-up has ended
