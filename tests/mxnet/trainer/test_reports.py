"""bps.report: its numbers, the sinks it writes to, and that training keeps its bits."""

import sys
import time

import mxnet as mx
import numpy as np
import pytest

import gluon_gc as bps
from tests import reported
from tests.mxnet.cluster.jobs import backward, gradients_of, parameters, train_steps, weights_of
from tests.mxnet.cluster.standing import on_workers
from tests.processes import free_port

SHAPES = [(40, 50), (30,), (5000,)]
TOPK = {"compressor": "topk", "k": 0.05, "ef": "vanilla"}
ONEBIT = {"compressor": "onebit", "scaling": True, "ef": "vanilla", "momentum": "nesterov"}
DITHERING = {"compressor": "dithering", "k": 4, "seed": 3, "ef": "corrected"}
SECONDS = ("compress_seconds", "wait_seconds", "decompress_seconds", "exchange_seconds")
BYTES = ("pushed_bytes", "pulled_bytes", "ratio")
LOCAL_STEPS = {"name": "local_steps", "every": 2}


def trainer_of(compression_params, contexts=1, **more):
    params = parameters(SHAPES, contexts=contexts)
    options = {"learning_rate": 0.1, "momentum": 0.0 if "algorithm" in more else 0.9}
    trainer = bps.DistributedTrainer(
        params, "sgd", options, compression_params=compression_params, **more
    )
    return params, trainer


@on_workers(2, "servers", "machine")
def test_reports_have_the_numbers_of_compression_stats():
    params, trainer = trainer_of(TOPK)
    reporter = bps.report(trainer, every=4)
    train_steps(params, trainer, range(7), SHAPES)
    assert reporter.last.step == 4 and reporter.last.worker == bps.rank()
    train_steps(params, trainer, range(7, 8), SHAPES)
    trainer.compression_stats(reset=True)
    train_steps(params, trainer, range(8, 12), SHAPES)
    total, last = trainer.compression_stats()["total"], reporter.last
    assert last.step == 12
    for name in (*BYTES, *SECONDS):  # of the steps 9 to 12
        assert getattr(last, name) == pytest.approx(total[name])
    assert last.step_seconds >= last.compute_seconds > 0


@pytest.mark.parametrize("contexts", [1, 2])
@on_workers(2, "servers", "horovod")
def test_the_residual_is_compared_with_this_workers_gradient(contexts):
    for compression in (TOPK, DITHERING):
        params, trainer = trainer_of(compression, contexts)
        reporter = bps.report(trainer, every=3)
        train_steps(params, trainer, range(3), SHAPES)
        own = [contexts * g for g in gradients_of(bps.rank(), 2, SHAPES)]
        residuals = residuals_of(trainer)
        assert len(residuals) == len(params)
        norms = [
            (2 * np.linalg.norm(residual), np.linalg.norm(gradient))  # of gradient / workers
            for residual, gradient in zip(residuals, own)
        ]
        expected, gradient = (np.linalg.norm(each) for each in zip(*norms))
        assert reporter.last.residual_ratio == pytest.approx(expected / gradient, rel=1e-5)
        ratios = {param.name: r / g for param, (r, g) in zip(params, norms)}
        assert reporter.last.worst == pytest.approx(ratios, rel=1e-5)


def residuals_of(trainer):
    """Return this worker's residuals, flat, in the order of the parameters."""
    from gluon_gc.mxnet.state import tensor_states

    averaging = trainer._averaging
    states = dict(tensor_states.state(averaging.exchange, averaging.names()))
    return [
        states[key]
        for key in sorted(states, key=lambda key: key.tensor)
        if (key.node, key.what) == ("worker", "residual")
    ]


@on_workers(2, "servers", "machine", "horovod")
def test_the_error_of_the_average_is_that_of_numpy():
    params, trainer = trainer_of(TOPK)
    reporter = bps.report(trainer, every=1, measure_error=3)
    train_steps(params, trainer, range(2), SHAPES)
    assert reporter.last.error is None
    backward(params, gradients_of(bps.rank(), 2, SHAPES))
    trainer.allreduce_grads(1)
    average = np.concatenate([param.grad().asnumpy().ravel() for param in params])
    trainer.update(1)
    of_workers = [np.concatenate([g.ravel() for g in gradients_of(r, 2, SHAPES)]) for r in (0, 1)]
    exact = np.mean(of_workers, axis=0, dtype=np.float64)
    error = np.linalg.norm(average - exact) / np.linalg.norm(exact)
    assert reporter.last.error == pytest.approx(error, rel=1e-5)
    train_steps(params, trainer, range(3, 4), SHAPES)
    assert reporter.last.error is None


@on_workers(2, "servers", "machine")
def test_a_report_keeps_the_bits_of_training():
    for compression, more in (
        (ONEBIT, {}),
        (DITHERING, {"max_grad_norm": 1.0}),
        (TOPK, {"on_nonfinite": "skip"}),
        ({**TOPK, "momentum": None}, {"algorithm": LOCAL_STEPS}),
    ):
        weights = []
        for reports in (False, True):
            params, trainer = trainer_of(compression, 2, **more)
            if reports:
                reporter = bps.report(trainer, every=2, measure_error=4)
            train_steps(params, trainer, range(9), SHAPES)
            weights.append(weights_of(params))
        for name, array in weights[0].items():
            np.testing.assert_array_equal(array, weights[1][name])
        assert reporter.last.step == 8 and reporter.last.error > 0
        assert reporter.last.residual_ratio is None or reporter.last.residual_ratio > 0


@on_workers(2, "servers")
def test_the_worker_that_others_waited_for_is_named():
    params, trainer = trainer_of(TOPK)
    reporter = bps.report(trainer, every=4)
    for step in range(4):
        time.sleep(0.3 * bps.rank())
        train_steps(params, trainer, [step], SHAPES)
        mx.nd.waitall()
    assert reporter.last.waited_for == 1
    assert "the others waited for worker 1" in reporter.last.line()


@on_workers(2, "servers")
def test_arguments_that_are_wrong_are_an_error_on_all_workers():
    params, trainer = trainer_of(TOPK)
    sys.modules["prometheus_client"] = None
    try:
        if bps.rank():
            with pytest.raises(ImportError, match="install prometheus_client"):
                bps.report(trainer, prometheus=9)
        else:
            with pytest.raises(RuntimeError, match="worker 1 has arguments"):
                bps.report(trainer)
    finally:
        del sys.modules["prometheus_client"]
    with pytest.raises(RuntimeError, match="has every 11"):
        bps.report(trainer, every=10 + bps.rank())
    with pytest.raises(ValueError, match="prometheus must be > 0, got -1"):
        bps.report(trainer, prometheus=-1)
    with pytest.raises(TypeError, match="needs a DistributedTrainer, got list"):
        bps.report(params)


@on_workers(2, "servers")
def test_an_overflow_or_averages_without_an_update_stop_no_report():
    params, trainer = trainer_of(TOPK, on_nonfinite="skip")
    reporter = bps.report(trainer, every=2, measure_error=2)
    train_steps(params, trainer, range(1), SHAPES)
    values = gradients_of(bps.rank(), 1, SHAPES)
    values[0][0] = np.nan if bps.rank() else 1.0
    backward(params, values)
    trainer.step(1)
    train_steps(params, trainer, range(2, 4), SHAPES)
    assert reporter.last.residual_ratio > 0 and reporter.last.error > 0
    for step in range(4, 8):
        backward(params, gradients_of(bps.rank(), step, SHAPES))
        trainer.allreduce_grads(1)
        if step % 2:
            trainer.update(1)
    assert reporter.last.residual_ratio > 0


def test_a_report_is_drawn_and_served_until_shutdown(tmp_path):
    bps.init()
    params, trainer = trainer_of(TOPK)
    port = free_port()
    more = {"tensorboard": tmp_path, "prometheus": port}
    bps.report(trainer, **more)
    reporter = bps.report(trainer, every=1, measure_error=1, **more)  # the port is free again
    for param in params:
        param.grad()[:] = 1.0
        param.list_data()[0]._fresh_grad = True
    trainer.step(1)
    assert reported.scraped(port)['gluon_gc_step{worker="0"}'] == 1
    assert reporter.last.error > 0 and reporter.last.waited_for is None
    bps.shutdown()
    with pytest.raises(OSError):
        reported.scraped(port)
    ratio = reported.scalars(tmp_path / "worker0")[1]["gluon_gc/ratio"]
    assert ratio == pytest.approx(reporter.last.ratio)
