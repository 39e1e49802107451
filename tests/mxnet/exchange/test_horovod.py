"""Compressed gradients over Horovod, started by horovodrun."""

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

import gluon_gc as bps
from benchmark.network import Network
from gluon_gc.mxnet.byteps.runtime import default_exchange
from gluon_gc.mxnet.kvstore.horovod.message_groups import Alltoall
from gluon_gc.mxnet.kvstore.horovod.process_set import Packed
from tests.mxnet.cluster.cluster import Cluster, needs_horovod, start_forked_horovod, start_horovod
from tests.mxnet.cluster.hosts import needs_namespaces
from tests.mxnet.cluster.jobs import (
    backward,
    forever,
    gradients_of,
    parameters,
    ranks,
    train_steps,
    wait_for,
)
from tests.mxnet.cluster.standing import run, run_horovod
from tests.mxnet.exchange.test_two_way import (
    CHUNK,
    PARTITION,
    arguments,
    assert_equal,
    check_replay,
    corrected,
    steps,
)


@corrected()
def test_every_compressor_agrees_with_a_numpy_replay(options):
    check_replay(run_horovod(steps, options), options)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_dtypes_agree_with_a_numpy_replay(dtype):
    options = arguments(dtype=dtype, steps=5)
    check_replay(run_horovod(steps, options), options)


@corrected()
def test_two_workers_get_bit_for_bit_what_the_parameter_server_gives_them(options):
    ours = run_horovod(steps, options, 2, PARTITION)
    for result, other in zip(ours, run(steps, options, 2, 2, PARTITION)):
        assert_equal(result, other)


def test_four_workers_agree_with_a_numpy_replay():
    options = arguments("dithering", steps=5)  # four busy processes are slow on two cores
    check_replay(run_horovod(steps, options, 4, PARTITION), options, CHUNK)


def test_there_may_be_fewer_chunks_than_workers():
    options = arguments("onebit", shapes=[(5,)], steps=2)
    check_replay(run_horovod(steps, options, 3), options)


@pytest.mark.parametrize(
    "name, exchange", [("onebit", None), ("dithering", None), ("topk", "gather")]
)
def test_a_step_returns_before_the_others_have_come(tmp_path, name, exchange):
    options = arguments(name, "corrected", exchange=exchange, steps=3, folder=str(tmp_path))
    check_replay(run_horovod(steps, options), options)


@needs_namespaces
def test_a_slow_link_only_makes_a_broadcast_take_longer(monkeypatch):
    """Gloo aborts a collective that takes longer than its time-out, by default 30 s."""
    needs_horovod()
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "benchmark")
    from processes import Processes, read_line

    script = (
        "import os; os.environ['HOROVOD_GLOO_TIMEOUT_SECONDS'] = '10'\n"
        "import mxnet as mx, gluon_gc as bps\n"
        "bps.init()\n"
        "array = mx.nd.full(10_000_000, bps.rank())\n"
        "bps.broadcast_parameters([array], root_rank=1)\n"
        "print('mean', array.mean().asscalar(), flush=True)\n"
        "bps.shutdown()"
    )
    with Network(2, rate=25e6) as network, Processes(network, timeout=100) as processes:
        for worker in processes.start_workers("horovod", 2, 0, lambda rank: ["-c", script]):
            assert float(read_line(worker, "mean ")) == 1


def differing():
    """Train a step with compression_params that differ between workers."""
    params = parameters([(40,)])
    compression = {"compressor": "topk", "k": 1 + bps.rank()}
    train_steps(
        params, bps.DistributedTrainer(params, "sgd", compression_params=compression), [0], [(40,)]
    )


def test_workers_that_differ_in_their_settings_are_told(tmp_path):
    with start_forked_horovod(tmp_path, differing) as cluster:
        for name in ("worker0", "worker1"):
            assert cluster.wait(name) != 0
            log = cluster.log(name)
            assert "the workers do not fit together: worker 1 has k 2 for the gradient of " in log


def test_when_a_worker_dies_horovodrun_ends_the_others(tmp_path):
    job = {"folder": str(tmp_path), "compressor": "onebit"}
    with start_horovod(tmp_path, forever, job) as cluster:
        for rank in range(2):
            cluster.wait_for(tmp_path / f"running{rank}")
        os.kill(int((tmp_path / "running1").read_text()), signal.SIGKILL)
        assert cluster.wait("horovodrun", timeout=60) != 0
        assert "exited with" in cluster.log("horovodrun")


def test_a_collective_may_be_done_before_who_queued_it_has_returned(tmp_path):
    source, library = Path(__file__).with_name("late_name.c"), tmp_path / "late_name.so"
    compiled = ["cc", "-shared", "-fPIC", str(source), "-Wl,--no-as-needed", "-lstdc++", "-ldl"]
    subprocess.run([*compiled, "-o", str(library)], check=True)
    options = arguments(steps=3)
    with start_horovod(tmp_path, steps, options, 2, {"LD_PRELOAD": str(library)}) as cluster:
        check_replay(cluster.results(), options)


def broken_alltoall():
    """Train two steps; in the second, worker 1 announces more bytes than it has."""
    (param,) = params = parameters([(1000,)])
    compression = {"compressor": "onebit", "ef": "vanilla"}
    trainer = bps.DistributedTrainer(
        params, "sgd", {"learning_rate": 0.1}, compression_params=compression
    )
    everybody = default_exchange()._everybody
    exchange = everybody.exchange
    for step in range(2):
        if step == 1 and bps.rank() == 1:
            everybody.exchange = lambda packed, *more: exchange(
                packed._replace(splits=packed.splits + 1000), *more
            )
        backward(params, gradients_of(bps.rank(), step, [(1000,)]))
        trainer.step(1)
        param.grad().wait_to_read()


def test_an_error_in_a_collective_ends_all_and_says_what_it_is(tmp_path):
    with start_forked_horovod(tmp_path, broken_alltoall) as cluster:
        assert cluster.wait("worker0", timeout=60) != 0 != cluster.wait("worker1", timeout=60)
        said = "Sum of splits entries is greater than the first dimension of tensor."
        assert said in cluster.log("worker1")


def test_bpslaunch_starts_workers_on_horovod(tmp_path):
    needs_horovod()
    job = Cluster(tmp_path, 2, 0).command("RANK", ranks)
    launch = [sys.executable, "-m", "bpslaunch", "--local", "-n", "2", "--backend", "horovod"]
    done = subprocess.run([*launch, *job], capture_output=True, encoding="utf-8", timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        assert pickle.loads((tmp_path / f"result{rank}").read_bytes()) == (rank, rank, 2)


class _Gate(mx.operator.CustomOp):
    """Passes its input on after a file appears; other operators run meanwhile."""

    def __init__(self, path):
        super().__init__()
        self._path = path

    def forward(self, is_train, req, in_data, out_data, aux):
        wait_for(self._path)
        self.assign(out_data[0], req[0], in_data[0])


@mx.operator.register("gate")
class _GateProp(mx.operator.CustomOpProp):
    def __init__(self, path):
        super().__init__(need_top_grad=False)
        self._path = Path(path)

    def create_operator(self, ctx, shapes, dtypes):
        return _Gate(self._path)


def in_another_order(folder, size):
    """Sum two tensors; even and odd workers start with different ones.

    A worker's second tensor is ready only after its neighbour has queued both.
    """
    folder, rank = Path(folder), bps.rank()
    tensors = {}
    for i, values in enumerate(gradients_of(rank, 0, [size] * 2)):
        name = f"t{i}"
        bps.byteps_declare_tensor(name, compressor="topk", k=10**6)
        tensors[name] = mx.nd.array(values)
        if i != rank % 2:
            queued = str(folder / f"queued{rank ^ 1}")
            tensors[name] = mx.nd.Custom(tensors[name], op_type="gate", path=queued)
    for name, tensor in tensors.items():
        bps.byteps_push_pull(tensor, name=name, is_average=False)
    (folder / f"queued{rank}").touch()
    return {name: tensor.asnumpy() for name, tensor in tensors.items()}


def test_gradients_may_become_ready_in_another_order_on_each_worker(tmp_path):
    given = [gradients_of(rank, 0, [1000] * 2) for rank in range(2)]
    for result in run_horovod(in_another_order, {"folder": str(tmp_path), "size": 1000}):
        for i, (first, second) in enumerate(zip(*given)):
            np.testing.assert_array_equal(result[f"t{i}"], first + second)


def forgotten_alltoall(folder):
    """Run an alltoall; worker 0 frees all but the result before worker 1 begins."""
    rank, queued = bps.rank(), Path(folder, "queued")
    if rank == 1:
        wait_for(queued)
    data = mx.nd.array(range(4 * rank, 4 * rank + 4), dtype="uint8")
    splits = mx.nd.array([1, 3], dtype="int32")
    came = Alltoall(default_exchange()._everybody, 6, "forgotten")(Packed(data, splits))
    del data, splits
    more = [mx.nd.ones(1) for _ in range(100)]  # these may reuse the memory that was freed
    if rank == 0:
        queued.touch()
    more[0].wait_to_read()
    return came.splits.asnumpy().tolist(), came.data.asnumpy().tolist()


def test_an_alltoall_needs_nothing_of_who_queued_it(tmp_path):
    first, second = run_horovod(forgotten_alltoall, {"folder": str(tmp_path)})
    assert (first[0], first[1][:2]) == ([1, 1], [0, 4])
    assert second == ([3, 3], [1, 2, 3, 5, 6, 7])
