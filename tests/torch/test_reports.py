"""bps.report: its numbers, the sinks it writes to, and that training keeps its bits."""

import logging
import sys
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist

import gluon_gc.torch as bps
from gluon_gc.log import logger
from tests import reported
from tests.torch.common import (
    DITHERING,
    ONEBIT,
    SIGNS,
    TOPK,
    Net,
    assert_alike,
    flat,
    loss_of,
    raised,
    sgd,
    sharded,
    train,
    wrapped,
)
from tests.torch.workers import on_workers

SECONDS = ("compress_seconds", "wait_seconds", "decompress_seconds")
BYTES = ("pushed_bytes", "pulled_bytes", "ratio")


def gradients_of(net, step):
    """Return this worker's own gradients in float64, by parameter."""
    gradients = torch.autograd.grad(loss_of(net, step), list(net.parameters()))
    return {n: g.double().numpy() for (n, _), g in zip(net.named_parameters(), gradients)}


@on_workers(2)
def test_reports_have_the_numbers_of_compression_stats(tmp_path, port):
    net, optimizer, ddp, state = wrapped(TOPK)
    reporter = bps.report(state, every=4, tensorboard=tmp_path, prometheus=port)
    train(net, optimizer, ddp, range(7))
    total, last = state.compression_stats()["total"], reporter.last
    assert last.step == 4 and last.worker == dist.get_rank()
    for name in BYTES:
        assert getattr(last, name) == pytest.approx(total[name])
    train(net, optimizer, ddp, range(7, 8))
    state.compression_stats(reset=True)
    train(net, optimizer, ddp, range(8, 12))
    total, last = state.compression_stats()["total"], reporter.last
    assert last.step == 12
    for name in (*BYTES, *SECONDS):  # of the steps 9 to 12
        assert getattr(last, name) == pytest.approx(total[name])
    assert last.exchange_seconds > 0 and last.compute_seconds > 0
    assert last.step_seconds == pytest.approx(last.exchange_seconds + last.compute_seconds)
    served = reported.scraped(port + dist.get_rank())
    again = bps.report(state, every=4, prometheus=port)  # the port is free again
    assert reported.scraped(port + dist.get_rank()) == {}
    state.close()
    raised(OSError, "", lambda: reported.scraped(port + dist.get_rank()))
    assert again.last is None
    drawn = reported.scalars(tmp_path / f"worker{dist.get_rank()}")
    assert sorted(drawn) == [4, 8, 12]
    for name, value in last.values().items():
        assert served[f'gluon_gc_{name}{{worker="{last.worker}"}}'] == pytest.approx(value)
        assert drawn[12][f"gluon_gc/{name}"] == pytest.approx(value)
    for name, value in last.worst.items():
        labels = f'{{tensor="{name}",worker="{last.worker}"}}'
        assert served[f"gluon_gc_residual_ratio_of_tensor{labels}"] == pytest.approx(value)
        assert drawn[12][f"gluon_gc/residual_ratio/{name}"] == pytest.approx(value)


@pytest.fixture
def port():
    return reported.two_free_ports()


@on_workers(2)
def test_the_residual_is_compared_with_this_workers_gradient():
    for params in (TOPK, SIGNS):
        net, optimizer, ddp, state = wrapped(params)
        reporter = bps.report(state, every=3)
        train(net, optimizer, ddp, range(2))
        own = gradients_of(net, 2)
        train(net, optimizer, ddp, range(2, 3))
        arrays = state.state_dict()["arrays"]
        residuals = {
            name: 2 * arrays[name]["worker.residual.0"].double().numpy()  # of gradient / workers
            for name in own
            if "worker.residual.0" in arrays[name]
        }
        assert "first.weight" in residuals
        both = [(np.linalg.norm(r), np.linalg.norm(own[name])) for name, r in residuals.items()]
        expected, gradient = (np.linalg.norm(norms) for norms in zip(*both))
        assert reporter.last.residual_ratio == pytest.approx(expected / gradient, rel=1e-5)
        ratios = {name: r / g for name, (r, g) in zip(residuals, both)}
        largest = sorted(ratios, key=lambda name: -ratios[name])[:3]
        assert list(reporter.last.worst) == largest
        assert reporter.last.worst == pytest.approx({n: ratios[n] for n in largest}, rel=1e-5)
        state.close()


@on_workers(2)
def test_the_error_of_the_average_is_that_of_numpy():
    for params in (TOPK, DITHERING):
        net, optimizer, ddp, state = wrapped(params)
        reporter = bps.report(state, every=1, measure_error=3)
        train(net, optimizer, ddp, range(2))
        assert reporter.last.error is None
        own = gradients_of(net, 2)
        optimizer.zero_grad()
        loss_of(ddp, 2).backward()
        average = np.concatenate([p.grad.double().numpy().ravel() for p in net.parameters()])
        optimizer.step()
        mine = torch.from_numpy(np.concatenate([g.ravel() for g in own.values()]))
        exact = [torch.empty_like(mine) for _ in range(2)]
        dist.all_gather(exact, mine)
        exact = sum(exact).numpy() / 2
        error = np.linalg.norm(average - exact) / np.linalg.norm(exact)
        assert reporter.last.error == pytest.approx(error, rel=1e-5)
        train(net, optimizer, ddp, range(3, 4))
        assert reporter.last.error is None
        state.close()


@on_workers(2)
def test_a_report_keeps_the_bits_of_training():
    local_steps = {"name": "local_steps", "every": 2, "overlap": 1}
    adam = {"name": "onebit_adam", "freeze_step": 2}
    for params, algorithm in (
        (ONEBIT, None),
        (TOPK, None),
        (DITHERING, None),
        (SIGNS, local_steps),
        (SIGNS, adam),
        ({}, "powersgd"),
    ):
        weights = []
        for reports in (False, True):
            net = Net()
            optimizer = sgd(net) if algorithm is not adam else torch.optim.Adam(net.parameters())
            options = {"compression_params": params, "algorithm": algorithm}
            optimizer = bps.DistributedOptimizer(optimizer, net.named_parameters(), **options)
            if reports:
                reporter = bps.report(optimizer, every=2, measure_error=4)
            weights.append(train(net, optimizer, net, range(9)))
            optimizer.compression_state.close()
        assert torch.equal(*weights)
        assert reporter.last.step == 8 and reporter.last.pushed_bytes > 0
        if params:
            assert reporter.last.error > 0 and reporter.last.residual_ratio > 0


@on_workers(2)
def test_a_gradient_without_a_scale_or_a_dtype_of_its_own_is_measured():
    for dtype in (torch.bfloat16, torch.float64):
        net = Net().to(dtype)
        optimizer = bps.DistributedOptimizer(sgd(net), net.named_parameters(), {"fp16": True})
        reporter = bps.report(optimizer, every=1, measure_error=1)
        x = torch.randn(8, 20, generator=torch.Generator().manual_seed(bps.rank()))
        net(x.to(dtype)).square().mean().backward()
        optimizer.step()
        assert 0 <= reporter.last.error < 0.01
        assert reporter.last.residual_ratio is None
        optimizer.compression_state.close()


@on_workers(2)
def test_the_scale_of_a_loss_does_not_matter():
    ratios = []
    for scale in (None, 4.0):
        scaler = torch.amp.GradScaler("cpu", init_scale=scale) if scale else None
        net, optimizer, ddp, state = wrapped(TOPK, grad_scaler=scaler)
        reporter = bps.report(state, every=2, measure_error=2)
        for step in range(2):
            optimizer.zero_grad()
            loss = loss_of(ddp, step)
            (scaler.scale(loss) if scaler else loss).backward()
            if scaler:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
        ratios.append((reporter.last.residual_ratio, reporter.last.error))
        state.close()
    assert ratios[0] == pytest.approx(ratios[1], rel=1e-5)


@on_workers(2)
def test_a_vector_is_measured_in_its_first_round_after_a_report():
    net = Net()
    local_steps = {"name": "local_steps", "every": 2, "outer_lr": 1.0, "outer_momentum": 0.0}
    plain = torch.optim.SGD(net.parameters(), lr=0.1)
    options = {"compression_params": TOPK, "algorithm": local_steps}
    optimizer = bps.DistributedOptimizer(plain, net.named_parameters(), **options)
    reporter, before = bps.report(optimizer, every=3, measure_error=3), flat(net)
    train(net, optimizer, net, range(1))
    after, own = flat(net), gradients_of(net, 1)
    change = 0.1 * np.concatenate([gradient.ravel() for gradient in own.values()])
    vector = (before - after).double() + torch.from_numpy(change)
    train(net, optimizer, net, range(1, 2))
    average = (before - flat(net)).double()
    vectors = [torch.empty_like(vector) for _ in range(2)]
    dist.all_gather(vectors, vector)
    exact = sum(vectors) / 2
    error = (average - exact).norm() / exact.norm()
    assert reporter.last is None
    train(net, optimizer, net, range(2, 3))
    assert reporter.last.error == pytest.approx(float(error), rel=1e-4)
    assert 0 < reporter.last.residual_ratio < 1  # of the first round
    train(net, optimizer, net, range(3, 6))
    total = optimizer.compression_state.compression_stats()["total"]  # of three rounds in six steps
    assert reporter.last.step == 6
    assert reporter.last.pushed_bytes == pytest.approx(total["pushed_bytes"] * 4 / 3)
    optimizer.compression_state.close()


@on_workers(2)
def test_the_worker_that_others_waited_for_is_named():
    net, optimizer, ddp, state = wrapped(SIGNS)
    reporter = bps.report(state, every=4)
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    for step in range(4):
        time.sleep(0.3 * dist.get_rank())
        train(net, optimizer, ddp, [step])
    assert reporter.last.waited_for == 1
    assert len(lines) == 1 and lines[0].startswith(f"worker {dist.get_rank()}, step 4: ")
    assert "the others waited for worker 1" in lines[0]
    logger.removeHandler(handler)
    state.close()


@on_workers(2)
def test_a_sink_whose_package_is_missing_is_an_error_on_all_workers():
    net, optimizer, ddp, state = wrapped(TOPK)
    sys.modules["prometheus_client"] = None
    said = "prometheus needs a package that is missing: install prometheus_client"
    if dist.get_rank():  # only one worker asks for it
        raised(ImportError, said, lambda: bps.report(state, prometheus=9))
    else:
        raised(RuntimeError, "worker 1 has arguments", lambda: bps.report(state))
    del sys.modules["prometheus_client"]
    other = 10 + dist.get_rank()
    raised(RuntimeError, "has every 11", lambda: bps.report(state, every=other))
    raised(ValueError, "every must be > 0, got 0", lambda: bps.report(state, every=0))
    raised(TypeError, "every must be a whole number", lambda: bps.report(state, every=0.5))
    raised(ValueError, "a multiple of every (3)", lambda: bps.report(state, 3, measure_error=5))
    raised(TypeError, "got SGD", lambda: bps.report(optimizer))
    state.close()
    raised(RuntimeError, "is closed", lambda: bps.report(state))
    raised(ValueError, "ShardedCompression of fully_shard", lambda: bps.report(sharded(TOPK)[2]))


@on_workers(2)
def test_steps_that_are_skipped_or_late_are_reported():
    net, optimizer, ddp, state = wrapped(TOPK, on_nonfinite="skip")
    reporter = bps.report(state, every=2, measure_error=2)
    train(net, optimizer, ddp, range(1))
    optimizer.zero_grad()
    (loss_of(ddp, 1) * float("nan" if dist.get_rank() else 1.0)).backward()
    optimizer.step()
    train(net, optimizer, ddp, range(2, 4))
    assert reporter.last.residual_ratio > 0
    assert_alike(flat(net))
    state.close()
    from gluon_gc.torch.cross_barrier import CrossBarrier

    net = Net()
    optimizer = CrossBarrier(net, sgd(net), net.named_parameters(), TOPK)
    reporter = bps.report(optimizer, every=2, measure_error=2)
    train(net, optimizer, net, range(5))
    assert reporter.last.step == 4 and reporter.last.residual_ratio > 0
    assert reporter.last.error > 0
    optimizer.compression_state.close()
