"""compression_stats()'s exposed seconds: the time from the last gradient to the last average."""

import signal
import threading
import time
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import Parameter

import gluon_gc as bps
from gluon_gc.mxnet.byteps.runtime import default_exchange
from gluon_gc.mxnet.engine.operators import KEPT_SPANS
from gluon_gc.mxnet.kvstore import CompressingKVStore
from gluon_gc.mxnet.kvstore.local import Local
from tests.mxnet.cluster import jobs

TIMEOUT = 60
HELD = 0.2


class Gate:
    """Blocks callers until it is opened."""

    def __init__(self):
        self.came, self.opened = threading.Semaphore(0), threading.Event()

    def pass_through(self):
        self.came.release()
        assert self.opened.wait(TIMEOUT)

    def wait_for(self, count):
        for _ in range(count):
            assert self.came.acquire(timeout=TIMEOUT)


gates = {}


class Held(mx.operator.CustomOp):
    def __init__(self, gate):
        super().__init__()
        self._gate = gate

    def forward(self, is_train, req, in_data, out_data, aux):
        self._gate.pass_through()
        self.assign(out_data[0], req[0], in_data[0])


@mx.operator.register("held")
class HeldProperty(mx.operator.CustomOpProp):
    def __init__(self, gate):
        super().__init__()
        self._gate = gates[gate]

    def create_operator(self, ctx, shapes, dtypes):
        return Held(self._gate)


class HeldNetwork(Local):
    """The exchange of one process, whose messages wait at the gate "network"."""

    def _open(self, channels):
        super()._open(channels)
        for channel in channels:
            channel.encode = held_by_the_network(channel.encode)


def held_by_the_network(encode):
    return lambda *what: mx.nd.Custom(encode(*what), op_type="held", gate="network")


@pytest.fixture
def backward_and_network():
    gates.update(backward=Gate(), network=Gate())
    yield gates["backward"], gates["network"]
    for gate in gates.values():
        gate.opened.set()
    mx.nd.waitall()
    gates.clear()


def parameters(sizes):
    params = [Parameter(f"p{i}", shape=(size,)) for i, size in enumerate(sizes)]
    for param in params:
        param.initialize()
    return params


def backward(params):
    with mx.autograd.record():
        losses = [(param.data() * 2).sum() for param in params]
    mx.autograd.backward(losses)


def exposed_seconds(trainer, **kwargs):
    return trainer.compression_stats(**kwargs)["total"]["exposed_seconds"]


@pytest.mark.parametrize("compression_params", [{"compressor": "onebit"}, None])
def test_neither_backward_nor_what_it_hides_is_exposed(
    monkeypatch, backward_and_network, compression_params
):
    monkeypatch.setenv("BYTEPS_PARTITION_BYTES", "16000")  # two messages
    backward_gate, network = backward_and_network
    params = parameters([4000, 4000])
    params[1].compression_params = None
    trainer = bps.DistributedTrainer(
        params,
        "sgd",
        compression_params=compression_params,
        kvstore=CompressingKVStore(HeldNetwork()),
    )
    backward(params)
    last = params[0].grad()
    last[:] = mx.nd.Custom(last, op_type="held", gate="backward")
    trainer.step(1)
    time.sleep(HELD)
    made_at = time.monotonic()
    backward_gate.opened.set()
    network.wait_for(2)
    held_from = time.monotonic()
    time.sleep(HELD)
    held_until = time.monotonic()
    network.opened.set()
    mx.nd.waitall()
    assert held_until - held_from <= exposed_seconds(trainer) <= time.monotonic() - made_at


def test_exposed_seconds_are_the_average_of_the_latest_steps():
    params = parameters([4000, 10])
    trainer = bps.DistributedTrainer(params, "sgd", kvstore="local")
    assert exposed_seconds(trainer) == 0
    took = []
    for _ in range(KEPT_SPANS + 1):
        backward(params)
        mx.nd.waitall()
        start = time.monotonic()
        trainer.step(1)
        mx.nd.waitall()
        took.append(time.monotonic() - start)
        kept = took[-KEPT_SPANS:]
        assert 0 < exposed_seconds(trainer) <= sum(kept) / len(kept)
    exposed_seconds(trainer, reset=True)
    assert exposed_seconds(trainer) == 0


def step_without_a_server(folder, compression_params):
    """Train a step while the server is stopped; signal that step() has returned, then wait.

    By that signal, all compression is done. Returns the weights, the exposed seconds, and those
    that the step took.
    """
    folder = Path(folder)
    (param,) = params = jobs.parameters([(1000,)])
    trainer = bps.DistributedTrainer(
        params, "sgd", {"learning_rate": 1.0}, compression_params=compression_params
    )
    jobs.backward(params, [np.ones(1000, np.float32)])
    trainer.step(1)
    mx.nd.waitall()
    trainer.compression_stats(reset=True)
    (folder / "ready").touch()
    jobs.wait_for(folder / "stopped")
    jobs.backward(params, [np.ones(1000, np.float32)])
    started = time.monotonic()
    trainer.step(1)
    for channel in default_exchange().channels.of(trainer._averaging.names()):
        if channel.coder is not None:
            channel.coder.state()
    (folder / "returned").touch()
    exposed = trainer.compression_stats()["total"]["exposed_seconds"]
    return param.data().asnumpy(), exposed, time.monotonic() - started


@pytest.mark.parametrize("compressor", ["onebit", None])
def test_step_returns_while_the_server_stands_still(tmp_path, cluster, compressor):
    params = {"compressor": compressor, "ef": "vanilla", "scaling": True} if compressor else None
    nodes = cluster(1, 1)
    nodes.start_roles()
    job = {"folder": str(tmp_path), "compression_params": params}
    nodes.start_worker(0, step_without_a_server, job)
    nodes.wait_for(tmp_path / "ready")
    nodes.suspend("server0")
    (tmp_path / "stopped").touch()
    nodes.wait_for(tmp_path / "returned", timeout=8)
    time.sleep(HELD)
    assert not nodes.result_file(0).exists()
    nodes.processes["server0"].send_signal(signal.SIGCONT)
    ((weight, exposed, took),) = nodes.results()
    np.testing.assert_array_equal(weight, np.full(1000, -1, np.float32))
    # Only messages that were ready count as waiting.
    assert (HELD if params else 0) < exposed <= took
