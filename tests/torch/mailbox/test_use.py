"""bps.init with a mailbox: its settings, its errors, and what a worker learns of its run."""

import os
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gluon_gc.torch as bps
from gluon_gc.mailbox import objects, store
from gluon_gc.mailbox.participant import Participant
from gluon_gc.mailbox.store import Store
from tests.neutral.mailbox.runs import EVERY_5, ONEBIT, become_run_of
from tests.torch.common import raised
from tests.torch.workers import on_workers

from .job import Batches, Net, optimizer_of

CONFIG = {"algorithm": EVERY_5, "compression_params": ONEBIT}


def trained(net, steps, **config):
    """Train a model for some steps, and return its optimizer."""
    optimizer = optimizer_of(net, {**CONFIG, **config})
    batches = Batches(0)
    for _ in range(steps):
        optimizer.zero_grad()
        batches.loss(net).backward()
        optimizer.step()
    return optimizer


def lives(url, **settings):
    """Be another worker of a run: a process that starts again does the same."""
    bps.shutdown()
    bps.init(mailbox=url, **{"grace": 0.05, **settings})


@on_workers(1, BYTEPS_MIN_COMPRESS_BYTES=0)
def test_wrong_settings_are_refused_by_name(tmp_path):
    url = str(tmp_path / "run")
    for kind, settings in (
        (ValueError, {"min_workers": 0}),
        (ValueError, {"min_workers": 1.5}),
        (ValueError, {"grace": 0}),
        (ValueError, {"grace": "30"}),
        (ValueError, {"keep": 0}),
        (ValueError, {"samples_per_step": 0}),
        (ValueError, {"worker_name": "a/b"}),
        (TypeError, {"graces": 3}),
    ):
        raised(kind, next(iter(settings)), lambda s=settings: bps.init(mailbox=url, **s))
    raised(ValueError, "mailbox must be", lambda: bps.init(mailbox="ftp://host/run"))
    raised(TypeError, "did you mean 'timeout'", lambda: bps.init(timout=3))
    raised(TypeError, "grace is for runs with a mailbox", lambda: bps.init(grace=3))
    raised(RuntimeError, "call bps.init(mailbox=URL) first", bps.worker_name)
    raised(RuntimeError, "call bps.init(mailbox=URL) first", lambda: bps.report_loss(1.0))
    missing = mock.patch.multiple(store, obstore=None, _missing=ImportError("none"), create=True)
    with missing:
        message = "pip install 'gluon_gc[mailbox]'"
        raised(ImportError, message, lambda: bps.init(mailbox=url))
    assert not os.path.exists(url)
    bps.init()
    by_time = {"name": "local_steps", "every": "0.5 s"}
    raised(ValueError, "without a mailbox", lambda: optimizer_of(Net(), {"algorithm": by_time}))
    with mock.patch.dict(os.environ, GLUON_GC_MAILBOX=url):
        bps.init(worker_name="mine")
        assert bps.worker_name().startswith("mine-")
        assert os.path.isdir(url)
        other = f"{url}2"
        raised(RuntimeError, "before it joins the run at", lambda: bps.init(mailbox=other))
        raised(RuntimeError, "or with other settings", lambda: bps.init(mailbox=url, grace=3))
        bps.init(mailbox=Path(url))


@on_workers(1, BYTEPS_MIN_COMPRESS_BYTES=0)
def test_what_a_mailbox_cannot_do_is_refused(tmp_path):
    url = str(tmp_path / "run")
    lives(url)
    for text, config in (
        ("'randomk' with a mailbox", {"compression_params": {"compressor": "randomk", "k": 0.1}}),
        ("got 'auto'", {"compression_params": {"compressor": "auto"}}),
        ("'local_steps' with a mailbox", {"algorithm": "powersgd", "compression_params": None}),
        ("with a mailbox, got None", {"algorithm": None}),
        ("['start'] must be 0 with", {"algorithm": {"name": "local_steps", "start": 3}}),
    ):
        raised(ValueError, text, lambda c=config: optimizer_of(Net(), {**CONFIG, **c}))
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicas", "shards"))
    for in_part in (False, True):
        net = Net()
        fully_shard(net.plain if in_part else net, mesh=mesh["shards"] if in_part else mesh)
        said = "must have its own part of all parameters, as with fully_shard, but parameter "
        raised(ValueError, said, lambda net=net: optimizer_of(net, CONFIG))
    assert Store(url).list("") == []
    raised(RuntimeError, "bps.suspend is for clusters", bps.suspend)
    optimizer = trained(Net(), 6)
    state = optimizer.compression_state
    raised(RuntimeError, "save only the model's parameters", state.state_dict)
    raised(RuntimeError, "save only the model's parameters", lambda: state.load_state_dict({}))


@on_workers(1, BYTEPS_MIN_COMPRESS_BYTES=0)
def test_a_report_has_the_bytes_of_a_mailbox(tmp_path):
    lives(str(tmp_path / "run"))
    optimizer, batches = optimizer_of(net := Net(), CONFIG), Batches(0)
    reporter = bps.report(optimizer, every=10, measure_error=10)
    for _ in range(20):
        optimizer.zero_grad()
        batches.loss(net).backward()
        optimizer.step()
    assert reporter.last.step == 20 and reporter.last.pushed_bytes > 0
    assert reporter.last.residual_ratio is reporter.last.error is reporter.last.waited_for is None


@on_workers(1, BYTEPS_MIN_COMPRESS_BYTES=0)
def test_a_worker_that_does_not_fit_its_run_is_told_why(tmp_path):
    url = str(tmp_path / "run")
    lives(url)
    trained(Net(), 6)
    larger = Net()
    larger.plain = torch.nn.Linear(20, 6)
    for text, net in (
        ("shape [6, 20] for parameter plain.weight, but the run has [5, 20]", larger),
        ('dtype "float64" for parameter onebit.weight', Net().double()),
    ):
        lives(url)
        raised(RuntimeError, text, lambda net=net: optimizer_of(net, CONFIG))
    become_run_of(url, "mxnet")
    lives(url)
    text = 'this worker has framework "torch", but the run has "mxnet"'
    raised(RuntimeError, text, lambda: optimizer_of(Net(), CONFIG))


@on_workers(1, BYTEPS_MIN_COMPRESS_BYTES=0)
def test_a_worker_learns_of_its_run(tmp_path):
    url = str(tmp_path / "run")
    lives(url, samples_per_step=16)
    seeds = {bps.worker_seed()}
    assert 0 <= bps.worker_seed() < 2**32
    assert bps.size() == 1
    bps.report_loss(2.5)
    optimizer = trained(Net(), 22)
    state = optimizer.compression_state
    stats = state.compression_stats(reset=True)
    assert stats["rounds"] == {"difference": 4}
    total = stats["total"]
    payloads = Store(url).list("difference/rounds/00000001/payloads/")
    assert [p.size * 4 / 22 for p in payloads] == pytest.approx([total["pushed_bytes"]], rel=0.02)
    assert total["pulled_bytes"] == 0  # it has its own payloads
    assert total["ratio"] > 5
    assert state.compression_stats()["rounds"] == {"difference": 0}
    result = objects.unpack("", Store(url).get(objects.result_name("difference", 4))).header
    (entry,) = result["counted"]
    assert entry["worker"] == bps.worker_name()
    assert entry["weight"] == 16 * 5
    assert entry["steps"] == 20
    assert entry["loss"] == 2.5
    lives(url, worker_name="again")
    seeds.add(bps.worker_seed())
    assert len(seeds) == 2


@on_workers(1, BYTEPS_MIN_COMPRESS_BYTES=0)
def test_steps_that_a_scaler_skips_have_no_weight(tmp_path):
    url = str(tmp_path / "run")
    lives(url)
    optimizer, batches = optimizer_of(net := Net(), CONFIG), Batches(0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for step in range(10):
        optimizer.zero_grad()
        loss = scaler.scale(batches.loss(net))
        (loss * (float("inf") if step in (1, 2, 7) else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
    results = [Store(url).get(objects.result_name("difference", number)) for number in (1, 2)]
    counted = [objects.unpack("", data).header["counted"] for data in results]
    assert [entry["weight"] for (entry,) in counted] == [3, 4]


@on_workers(1, BYTEPS_MIN_COMPRESS_BYTES=0)
def test_set_epoch_changes_the_next_rounds_payload(tmp_path):
    url = str(tmp_path / "run")
    lives(url)
    dgc = {"compressor": "dgc", "k": 0.01, "seed": 3, "warmup_epochs": 3}
    net = Net()
    optimizer = optimizer_of(net, {**CONFIG, "compression_params": dgc})
    batches, sizes = Batches(0), []
    for epoch in (0, 9):
        optimizer.compression_state.set_epoch(epoch)
        for _ in range(5):
            optimizer.zero_grad()
            batches.loss(net).backward()
            optimizer.step()
        (payload,) = Store(url).list(f"difference/rounds/{len(sizes) + 1:08}/payloads/")
        sizes.append(payload.size)
    assert sizes[0] > 2 * sizes[1]


@on_workers(1, BYTEPS_MIN_COMPRESS_BYTES=0)
def test_a_round_that_fails_while_a_worker_leaves_is_not_an_error(tmp_path):
    lives(str(tmp_path / "run"))
    # As Python's thread pools do at the end of a process.
    error = RuntimeError("cannot schedule new futures after interpreter shutdown")
    with mock.patch.object(Participant, "take_part", side_effect=error) as take_part:
        trained(Net(), 5, algorithm={**EVERY_5, "overlap": 1})
        bps.shutdown()
    assert take_part.called
    bps.init()
