"""BytePS's API for PyTorch, and its scripts with the import changed."""

import functools
import os
import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gluon_gc.torch as bps
from gluon_gc.torch import ops
from gluon_gc.torch.parallel import DistributedDataParallel as DDP
from tests.torch import scripts
from tests.torch.common import (
    DGC,
    DITHERING,
    ONEBIT,
    TOPK,
    Net,
    assert_alike,
    flat,
    loss_of,
    raised,
    sgd,
    train,
    trained,
)
from tests.torch.optimizers.test_cross_barrier import cross_barrier
from tests.torch.workers import on_workers

SCRIPTS = Path(__file__).parents[1] / "byteps_scripts" / "pytorch"
BENCHMARK = "--no-cuda --batch-size 4 --num-warmup-batches 3 --num-iters 2 --num-batches-per-iter 2"


def script(name, words=""):
    """Run a script like BytePS's examples; returns its global variables at the end."""
    sys.argv = [name, *words.split()]
    names = runpy.run_path(str(SCRIPTS / f"{name}.py"))
    if "model" in names:
        assert_alike(flat(names["model"]))
    return names


def some_scripts_of_byteps(folder):
    os.chdir(folder)
    sys.path.insert(0, str(SCRIPTS))
    for name in ("benchmark_cross_barrier", "elastic_benchmark"):
        script(name, BENCHMARK)


def scripts_of_byteps(folder):
    os.chdir(folder)
    sys.path.insert(0, str(SCRIPTS))
    for fp16 in ("", "--fp16-allreduce"):
        script("benchmark_cross_barrier", f"{BENCHMARK} {fp16}")
    words = "--no-cuda --batch-size 8 --batches-per-pushpull 2 --fp16-pushpull --epochs"
    assert script("imagenet", f"{words} 1")["resume_from_epoch"] == 0
    dist.barrier()
    again = script("imagenet", f"{words} 2 --base-lr 0.1")
    assert again["resume_from_epoch"] == 1 and again["accuracy"] > 0.8
    words = "data --arch resnet18 --batch-size 8 --multiprocessing-distributed --epochs"
    script("imagenet_ddp", f"{words} 3")
    dist.barrier()
    again = script("imagenet_ddp", f"{words} 4 --resume checkpoint.pth.tar")
    assert again["args"].start_epoch == 3 and again["accuracy"] > 0.8
    script("elastic_benchmark", BENCHMARK)


# Arguments


@on_workers(2)
def test_compression_is_an_argument():
    fp16, none = bps.Compression.fp16, bps.Compression.none

    def weights_of(*args, **kwargs):
        net = Net()
        optimizer = bps.DistributedOptimizer(sgd(net), net.named_parameters(), *args, **kwargs)
        weights = train(net, optimizer, net, range(3))
        stats = optimizer.compression_state.compression_stats()
        optimizer.compression_state.close()
        return weights, stats["total"]["pushed_bytes"]

    plain, sent = weights_of()
    halves, sent_in_fp16 = weights_of(fp16)
    assert 1.9 < sent / sent_in_fp16 < 2.1
    assert torch.allclose(plain, halves, atol=1e-3) and not torch.equal(plain, halves)
    for args, kwargs, expected in (
        ((none,), {}, plain),
        ((none(),), {}, plain),
        ((None, 1, 0), {}, plain),
        ((), {"compression": fp16(), "staleness": 1}, halves),
        (({"fp16": True}, 1), {}, halves),
        ((none, 1, 0, {"fp16": True}), {}, halves),
        ((), {"compression_params": {"fp16": True}}, halves),
    ):
        assert torch.equal(weights_of(*args, **kwargs)[0], expected), (args, kwargs)
    assert torch.equal(weights_of(ONEBIT)[0], trained(ONEBIT, steps=3))
    net = Net()
    for kind, said, kwargs in (
        (
            TypeError,
            "compression must be Compression.none, Compression.fp16 or",
            {"compression": 1},
        ),
        (ValueError, "give one of them", {"compression": fp16, "compression_params": TOPK}),
        (ValueError, "staleness must be a whole number >= 0, got -1", {"staleness": -1}),
        (ValueError, "staleness must be a whole number >= 0, got True", {"staleness": True}),
    ):
        wrong = functools.partial(bps.DistributedOptimizer, sgd(net), net.named_parameters())
        raised(kind, said, lambda w=wrong, k=kwargs: w(**k))


@on_workers(2)
def test_single_tensors_as_byteps_has_them():
    rank = bps.rank()
    assert bps.byteps_push_pull is ops.push_pull_async_inplace
    x = torch.arange(4.0) + rank
    handle = bps.byteps_push_pull(x, average=False, name="x", version=1, priority=2)
    assert torch.equal(bps.synchronize(handle), 2 * torch.arange(4.0) + 1) and bps.poll(handle)
    handle = ops.push_pull_async_inplace(x, True, "x")  # as the script that times tensors does
    while not ops.poll(handle):
        pass
    assert torch.equal(ops.synchronize(handle), 2 * torch.arange(4.0) + 1)
    third = torch.full((3,), (1.0 + rank) / 3)
    compression = bps.Compression.fp16
    halves = bps.push_pull(third, True, "half", 0, 0, compression)
    assert halves.dtype == torch.float32 and torch.equal(halves, halves.half().float())
    assert torch.allclose(halves, torch.full((3,), 0.5), atol=1e-3)
    for whole in (torch.tensor([rank]), torch.ones(2, dtype=torch.bfloat16)):
        assert bps.push_pull(whole, compression=compression).dtype == whole.dtype
    raised(TypeError, "must be a torch.Tensor", lambda: bps.push_pull(3, compression=compression))

    class Negated:
        @staticmethod
        def compress(tensor):
            return -tensor, "context"

        @staticmethod
        def decompress(tensor, ctx):
            assert ctx == "context"
            return -tensor

    assert torch.equal(bps.push_pull(torch.ones(2), compression=Negated), torch.ones(2))
    for _ in range(2):  # a script may declare a metric in each epoch
        bps.declare("metric")
        assert bps.push_pull_inplace(torch.ones(1), average=False, name="metric").item() == 2
    raised(ValueError, "with other compression", lambda: bps.declare("metric", compressor="onebit"))
    tensors = [torch.full((2,), float(rank)), (None, torch.full((3,), float(rank)))]
    bps.broadcast_parameters(tensors, 1, prefix="Parameter.")
    assert tensors[0].tolist() == [1.0, 1.0] and tensors[1][1].tolist() == [1.0] * 3


@on_workers(2)
def test_gradients_flow_through_push_pull():
    rank = bps.rank()
    for average, expected in ((True, 1.5), (False, 3.0)):
        for compression in (bps.Compression.none, bps.Compression.fp16):
            x = torch.full((2,), float(rank), requires_grad=True)
            y = bps.push_pull(x, average, "x", compression=compression)
            ((rank + 1) * y.sum()).backward()
            assert torch.equal(x.grad, torch.full((2,), expected))
    assert not bps.push_pull(torch.ones(2)).requires_grad


# DistributedDataParallel


@on_workers(2)
def test_the_data_parallel_module_is_pytorchs_with_our_hook():
    for compression in (bps.Compression.none, TOPK):
        params = {} if compression is bps.Compression.none else compression
        net = Net()
        with torch.no_grad():
            net.first.weight += bps.rank()
        model = DDP(net, [bps.local_rank()], True, compression)
        assert isinstance(model, DistributedDataParallel) and model.module is net
        assert set(model.state_dict()) == {f"module.{name}" for name in net.state_dict()}
        assert_alike(flat(net))
        net.load_state_dict(Net().state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(8):
            optimizer.zero_grad()
            loss_of(model, step, short=step % 3 == 1).backward()
            assert_alike(torch.cat([p.grad.flatten() for p in net.first.parameters()]))
            model.synchronize()
            optimizer.step()
        twin = Net()
        ddp = DistributedDataParallel(twin, find_unused_parameters=True)
        state = bps.CompressionState(twin.named_parameters(), params)
        ddp.register_comm_hook(state, bps.compression_hook)
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
        for step in range(8):
            optimizer.zero_grad()
            loss_of(ddp, step, short=step % 3 == 1).backward()
            optimizer.step()
        assert torch.equal(flat(net), flat(twin))
        model.compression_state.close()
        state.close()
    raised(TypeError, "compression must be", lambda: DDP(Net(), compression="fp16"))


@on_workers(2)
def test_buffers_are_those_of_worker_0():
    for broadcast in (True, False):
        net = torch.nn.BatchNorm1d(3)
        net.running_mean += bps.rank()
        model = DDP(net, device_ids=[0], broadcast_buffers=broadcast)
        assert net.running_mean.tolist() == [0.0] * 3
        net.running_mean += bps.rank()
        model.eval()(torch.zeros(2, 3))
        assert net.running_mean.tolist() == [0.0 if broadcast else float(bps.rank())] * 3
        model.compression_state.close()


# suspend and resume


def suspended(params, cross, how):
    """Return the weights after six steps, between which workers leave and come back."""
    net = Net()
    optimizer = sgd(net)
    if cross:
        optimizer = cross_barrier(net, optimizer, params)
    else:
        optimizer = bps.DistributedOptimizer(optimizer, net.named_parameters(), params)
    optimizer.compression_state.set_epoch(0)
    train(net, optimizer, net, range(3))
    if how != "stay":
        rank = bps.rank()
        bps.suspend()
        loss = net(torch.ones(1, 20)).sum()
        raised(RuntimeError, "call bps.resume() first", loss.backward)
        bps.resume(2, 1, rank if how == "same" else 1 - rank)
        optimizer.zero_grad()
    train(net, optimizer, net, range(3, 6))
    weights = flat(net)
    assert_alike(weights)
    optimizer.compression_state.close()
    return weights


@on_workers(2)
def test_optimizers_go_on_after_a_suspension():
    for params in (ONEBIT, DITHERING, {**DGC, "warmup_epochs": 4}, {}):
        for cross in (False, True):
            stayed = suspended(params, cross, "stay")
            assert torch.equal(suspended(params, cross, "same"), stayed), (params, cross)
            others = suspended(params, cross, "exchanged")
            assert torch.allclose(others, stayed, atol=0.1)


@on_workers(2)
def test_workers_that_resume_with_one_rank_are_refused():
    """Afterwards they may resume with different ranks."""
    net, rank = Net(), bps.rank()
    optimizer = bps.DistributedOptimizer(sgd(net), net.named_parameters(), TOPK)
    train(net, optimizer, net, range(2))
    bps.suspend()
    began = time.monotonic()
    said = "global_rank must differ between workers, but 2 workers called resume with global_rank 0"
    raised(ValueError, said, lambda: bps.resume(2, 1, 0))
    assert time.monotonic() - began < 10
    bps.resume(2, 1)
    assert bps.rank() == rank
    train(net, optimizer, net, range(2, 4))
    assert_alike(flat(net))
    optimizer.compression_state.close()


def fewer_workers_go_on():
    """These processes run nothing else, because worker 1 leaves the job."""
    net = Net()
    optimizer = bps.DistributedOptimizer(sgd(net), net.named_parameters(), TOPK)
    model = DDP(Net(), compression=TOPK)
    loss_of(net, 0).backward()  # dropped; copies are kept from now on
    train(net, optimizer, net, range(3))
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), model, range(1))
    bps.declare("t", compressor="topk", k=1)
    residuals = _residual(optimizer)
    dist.all_reduce(residuals)
    loss_of(net, 3).backward()  # dropped, too
    rank = bps.rank()
    raised(RuntimeError, "bps.suspend(), which was not called", lambda: bps.resume(2, 1, 0))
    bps.suspend()
    raised(RuntimeError, "there is nothing to suspend", bps.suspend)
    raised(
        ValueError, "num_workers must be a whole number from 1 to 2", lambda: bps.resume(3, 1, 0)
    )
    raised(ValueError, "global_rank must be a whole number from 0", lambda: bps.resume(1, 1, 1))
    if rank == 1:
        return
    os.environ["GLUON_GC_CONNECT_TIMEOUT"] = "1"
    raised(ConnectionError, "worker 1 did not call resume within 1 s", lambda: bps.resume(2, 1, 0))
    bps.resume(1, 1, 0)
    assert bps.size() == 1 and optimizer.compression_state.steps == 3
    assert torch.allclose(_residual(optimizer), residuals)
    train(net, optimizer, net, range(3, 6))
    assert torch.equal(bps.push_pull(torch.tensor([1.0, 2.0]), name="t"), torch.tensor([0, 2.0]))
    said = "this CompressionState is closed"
    raised(RuntimeError, said, lambda: loss_of(model, 0).backward())


def test_fewer_workers_go_on():
    scripts.run(*scripts.body_of(fewer_workers_go_on))


def _residual(optimizer):
    arrays = optimizer.compression_state.state_dict()["arrays"]["second.weight"]
    return next(array for name, array in arrays.items() if name.startswith("worker.residual"))


def test_calls_before_init_name_it(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for call in (
        bps.rank,
        bps.size,
        lambda: bps.CompressionState(model.named_parameters()),
        lambda: bps.DistributedOptimizer(optimizer, model.named_parameters()),
        lambda: bps.DistributedOptimizer(optimizer, algorithm="powersgd"),
        lambda: DDP(model),
        lambda: bps.broadcast_parameters(model.state_dict()),
        lambda: bps.push_pull(torch.ones(2)),
        lambda: bps.average_statistics(model),
    ):
        with pytest.raises(RuntimeError, match=r"call bps.init\(\) first"):
            call()


def test_scripts_of_byteps_run_with_another_import(tmp_path):
    said = scripts.run(*scripts.body_of(scripts_of_byteps), tmp_path)
    assert "bps is resumed, with 2 workers" in said


def test_scripts_of_byteps_run_under_bpslaunch(tmp_path):
    bpslaunch = scripts.HERE.parents[1] / "bpslaunch.py"
    done = subprocess.run(
        [
            *(sys.executable, bpslaunch, "--local", "-n", "2"),
            *(sys.executable, *scripts.body_of(some_scripts_of_byteps), tmp_path),
        ],
        env=scripts.environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=100,
    )
    assert done.returncode == 0, done.stdout
    assert "bps is resumed, with 2 workers" in done.stdout
