"""CompressionState and DistributedOptimizer in real processes, some of them under torchrun."""

import copy
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from contextlib import nullcontext, suppress
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

import gluon_gc.torch as bps
from gluon_gc.env import ConfigurationError
from gluon_gc.exchange.collectives import ToAll
from gluon_gc.torch.transport import gloo, groups, nccl
from gluon_gc.torch.transport.arrays import GpuCoder
from tests.link import link_of
from tests.processes import free_port
from tests.torch import scripts, test_lifetimes
from tests.torch.common import (
    AUTO,
    DGC,
    DITHERING,
    ONEBIT,
    SETTINGS,
    TOPK,
    Net,
    assert_alike,
    flat,
    logged,
    loss_of,
    raised,
    sgd,
    train,
    train_compiled,
    trained,
    wrapped,
)
from tests.torch.gpu import emulated
from tests.torch.workers import on_workers, run


@on_workers(2)
def test_buckets_and_options_of_ddp():
    for params in SETTINGS:
        expected = trained(params)
        assert_alike(expected)
        assert not torch.equal(expected, flat(Net()))
        for options in (
            {"bucket_cap_mb": 0.01},
            {"gradient_as_bucket_view": True},
            {"static_graph": True},
            {"find_unused_parameters": True},
        ):
            assert torch.equal(trained(params, ddp_options=options), expected), (params, options)


@on_workers(2)
def test_a_worker_may_leave_before_the_other_has_announced_another_exchange():
    _, optimizer, ddp, _ = wrapped(ONEBIT)
    announce = ToAll.expect

    def announce_late(collective):
        time.sleep(1)  # meanwhile worker 1 has its average, and ends
        announce(collective)

    loss_of(ddp, 0).backward()
    optimizer.step()
    optimizer.zero_grad()
    with mock.patch.object(ToAll, "expect", announce_late) if bps.rank() == 0 else nullcontext():
        loss_of(ddp, 1).backward()
    optimizer.step()


@on_workers(2)
def test_a_parameter_without_a_gradient():
    weights = trained(ONEBIT, ddp_options={"find_unused_parameters": True}, short=True)
    assert_alike(weights)


@on_workers(2)
def test_no_sync_averages_the_sum():
    for params in (ONEBIT, {}):
        results = []
        for passes in (1, 2):
            net, optimizer, ddp, state = wrapped(params)
            for step in range(4):
                optimizer.zero_grad()
                if passes == 2:
                    with ddp.no_sync():
                        loss_of(ddp, 2 * step).backward()
                    loss_of(ddp, 2 * step + 1).backward()
                else:
                    (loss_of(ddp, 2 * step) + loss_of(ddp, 2 * step + 1)).backward()
                optimizer.step()
            assert state.steps == 4
            results.append(flat(net))
            state.close()
        assert_alike(results[1])
        assert torch.allclose(*results, atol=2e-2)


@on_workers(2)
def test_compiled():
    net, optimizer, ddp, state = wrapped(TOPK)
    expected = trained(TOPK)
    compiled = torch.compile(ddp, backend="eager")
    assert torch.equal(train(net, optimizer, compiled, range(8)), expected)
    assert torch.equal(train_compiled(*wrapped(TOPK)[:3], range(8)), expected)
    net = Net()
    optimizer = bps.DistributedOptimizer(sgd(net), net.named_parameters(), TOPK)
    assert torch.equal(train_compiled(net, optimizer, net, range(8)), expected)


@on_workers(4, BYTEPS_PARTITION_BYTES=4000)
def test_random_orders_of_tensors_give_the_same_bits():
    random = np.random.default_rng(0)  # the same on all workers
    sizes = {f"t{i}": int(n) for i, n in enumerate(random.integers(1, 5000, 12))}
    parameters = {name: torch.nn.Parameter(torch.zeros(n)) for name, n in sizes.items()}

    def averages(params, orders):
        state = bps.CompressionState(parameters.items(), params)
        results = []
        for step, order in enumerate(orders):
            values = {}
            for name in sizes:
                generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
                values[name] = torch.randn(sizes[name], generator=generator)
            futures = [
                state.average({name: values[name] for name in part}, begins=part is order[0])
                for part in order
            ]
            torch.futures.wait_all(futures)
            results.append(torch.cat([values[name] for name in sizes]))
        state.close()
        return results

    orders = []
    for _ in range(40):
        names = list(random.permutation(list(sizes)))
        cuts = sorted(random.choice(range(1, len(names)), 3, replace=False))
        orders.append([list(part) for part in np.split(names, cuts)])
    whole = [[list(sizes)]] * len(orders)
    for params in ({**ONEBIT, "momentum": None}, DGC):
        for one, other in zip(averages(params, orders), averages(params, whole)):
            assert torch.equal(one, other)
            assert_alike(one)


@on_workers(2)
def test_every_dtype():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for params in (TOPK, {}, {"fp16": True}, {"compressor": "bytegrad"}):
            parameters = {"w": torch.nn.Parameter(torch.zeros(3000, dtype=dtype))}
            state = bps.CompressionState(parameters.items(), params)
            generator = torch.Generator().manual_seed(dist.get_rank())
            values = torch.randn(3000, generator=generator).to(dtype)
            everybody = [torch.empty_like(values) for _ in range(dist.get_world_size())]
            dist.all_gather(everybody, values)
            state.average({"w": values}).wait()
            assert values.dtype == dtype
            assert_alike(values)
            if params != TOPK:
                mean = torch.stack(everybody).double().mean(0)
                assert torch.allclose(values.double(), mean, atol=3e-2)
            state.close()


@on_workers(2)
def test_the_distributed_optimizer_is_the_hook():
    for params in (ONEBIT, TOPK, {}):
        expected = trained(params)
        for scheduled in (False, True):
            net = Net()
            inner = sgd(net)
            if scheduled:
                scheduler = torch.optim.lr_scheduler.ConstantLR(inner, factor=1.0)
            optimizer = bps.DistributedOptimizer(inner, net.named_parameters(), params)
            assert isinstance(optimizer, torch.optim.SGD)
            for step in range(8):
                optimizer.zero_grad()
                loss_of(net, step).backward()
                for _ in range(step % 3):
                    optimizer.synchronize()
                skips = optimizer.skip_synchronize() if step % 3 == 1 else nullcontext()
                with skips:
                    optimizer.step()
                if scheduled:
                    scheduler.step()
            assert torch.equal(flat(net), expected), params
            assert optimizer.compression_state.steps == 8
    net = Net()
    optimizer = bps.DistributedOptimizer(sgd(net), net.named_parameters(), ONEBIT)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(net, 0)
        loss.backward()
        return loss

    assert optimizer.step(closure) > 0
    assert torch.equal(flat(net), trained(ONEBIT, steps=1))


@on_workers(2)
def test_several_backward_passes():
    net = Net()
    optimizer = bps.DistributedOptimizer(sgd(net), net.named_parameters(), TOPK, 2)
    for step in range(4):
        optimizer.zero_grad()
        loss_of(net, 2 * step).backward()
        loss_of(net, 2 * step + 1).backward()
        optimizer.step()
    assert_alike(flat(net))
    assert optimizer.compression_state.steps == 4
    for _ in range(2):
        loss_of(net, 0).backward()
    raised(RuntimeError, "more than backward_passes_per_step", lambda: loss_of(net, 0).backward())


@on_workers(2)
def test_a_layer_that_is_used_twice_under_checkpointing():
    net = torch.nn.Linear(8, 8)
    optimizer = bps.DistributedOptimizer(sgd(net), net.named_parameters())

    def backward(use_reentrant):
        x = torch.ones(4, 8, requires_grad=True)
        for _ in range(2):
            x = checkpoint(net, x, use_reentrant=use_reentrant)
        x.sum().backward()

    backward(use_reentrant=False)
    optimizer.step()
    optimizer.zero_grad()
    raised(RuntimeError, "checkpoint(..., use_reentrant=False)", lambda: backward(True))
    optimizer.zero_grad()


@on_workers(2)
def test_what_is_not_finite():
    for params in (ONEBIT, {}):
        net, optimizer, ddp, state = wrapped(params, on_nonfinite="skip")
        before = train(net, optimizer, ddp, range(3))
        optimizer.zero_grad()
        factor = float("nan") if dist.get_rank() == 0 else 1.0
        (loss_of(ddp, 3) * factor).backward()
        optimizer.step()
        assert torch.equal(flat(net), before)
        after = train(net, optimizer, ddp, range(4, 6))
        assert after.isfinite().all() and not torch.equal(after, before)
        assert_alike(after)
        state.close()
    net, optimizer, ddp, state = wrapped(ONEBIT)
    train(net, optimizer, ddp, range(3))
    said = "has a NaN or an infinity in step 4"
    raised(RuntimeError, said, lambda: (loss_of(ddp, 3) * factor).backward())
    state.close()


@on_workers(2)
def test_a_scaled_loss():
    expected = trained(ONEBIT)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    net, optimizer, ddp, state = wrapped(ONEBIT, grad_scaler=scaler)
    for step in range(8):
        optimizer.zero_grad()
        scaler.scale(loss_of(ddp, step)).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() > 2.0**10
    assert torch.equal(flat(net), expected)
    before, scale = flat(net), scaler.get_scale()
    optimizer.zero_grad()
    factor = float("inf") if dist.get_rank() == 0 else 1.0
    (scaler.scale(loss_of(ddp, 9)) * factor).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(flat(net), before) and scaler.get_scale() < scale
    state.close()


@on_workers(2)
def test_small_gradients_of_a_scaled_loss_are_not_lost_as_float16():
    for dtype, params in ((torch.float16, None), (torch.float32, {"fp16": True})):
        net = torch.nn.Linear(64, 1, bias=False).to(dtype)
        scaler = torch.amp.GradScaler("cpu")
        state = bps.CompressionState(net.named_parameters(), params, grad_scaler=scaler)
        ddp = torch.nn.parallel.DistributedDataParallel(net)
        ddp.register_comm_hook(state, bps.compression_hook)
        output = ddp(torch.full((1, 64), 1e-3, dtype=dtype))
        scaler.scale(output.sum().float() / 2**16).backward()
        gradient = net.weight.grad.float() / scaler.get_scale()
        torch.testing.assert_close(gradient, torch.full((1, 64), 1e-3 / 2**16), rtol=1e-2, atol=0)
        state.close()


def saved(folder):
    """Train five steps, save a checkpoint, train five more steps, and save the weights."""
    for number, params in enumerate(SETTINGS):
        net, optimizer, ddp, state = wrapped(params)
        train(net, optimizer, ddp, range(5))
        path = folder / f"{number}.{dist.get_rank()}.pt"
        states = (net, optimizer, state)
        torch.save([copy.deepcopy(one.state_dict()) for one in states], path)
        torch.save(train(net, optimizer, ddp, range(5, 10)), folder / f"{number}.expected.pt")
        state.close()


def resumed(folder):
    for number, params in enumerate(SETTINGS):
        net, optimizer, ddp, state = wrapped(params)
        path = folder / f"{number}.{dist.get_rank()}.pt"
        for one, states in zip((net, optimizer, state), torch.load(path, weights_only=True)):
            one.load_state_dict(states)
        expected = torch.load(folder / f"{number}.expected.pt", weights_only=True)
        assert torch.equal(train(net, optimizer, ddp, range(5, 10)), expected), params
        state.close()


def resumed_by_fewer(folder):
    """Load the states of two workers into one."""
    files = [torch.load(folder / f"0.{rank}.pt", weights_only=True)[2] for rank in range(2)]
    _, _, _, state = wrapped(ONEBIT)
    said = "world_size is 2 there, but 1 here; pass the list of the state_dicts of all workers"
    raised(ValueError, said, lambda: state.load_state_dict(files[0]))
    _, _, _, other = wrapped({**TOPK, "momentum": "nesterov"})
    raised(ValueError, "compressor of parameter", lambda: other.load_state_dict(files))
    state.load_state_dict(files)
    name = "first.weight"
    of_all = [file["arrays"][name]["worker.residual.0"] for file in files]
    now = state.state_dict()["arrays"][name]
    assert torch.allclose(now["worker.residual.0"], sum(of_all), atol=1e-6)
    aggregated = [file["arrays"][name].get("aggregator.residual.0") for file in files]
    (expected,) = [one for one in aggregated if one is not None]
    assert torch.allclose(now["aggregator.residual.0"], expected, atol=1e-6)
    damaged = {**files[0], "format": 99}
    raised(ValueError, "has format 99", lambda: state.load_state_dict(damaged))


def resumed_with_other_chunks(folder):
    for number, params in enumerate(SETTINGS):
        _, _, _, state = wrapped(params)
        files = [torch.load(folder / f"{number}.{i}.pt", weights_only=True)[2] for i in range(2)]
        file = files[dist.get_rank()]
        state.load_state_dict(file)
        now = state.state_dict()["arrays"]
        everybody = [None, None]
        dist.all_gather_object(everybody, now)
        for name in now:
            for what in ("worker.residual", "worker.momentum"):
                assert torch.equal(joined(now[name], what), joined(file["arrays"][name], what))
            before, after = (
                joined(
                    {k: a for arrays in workers for k, a in arrays[name].items()}, "aggregator.res"
                )
                for workers in ([one["arrays"] for one in files], everybody)
            )
            assert torch.equal(before, after), (params, name)
        state.close()


def joined(arrays, what):
    """Concatenate the pieces of an array in order."""
    begins = {int(key.split(".")[2]): array for key, array in arrays.items() if what in key}
    return torch.cat([torch.zeros(0), *(begins[begin] for begin in sorted(begins))])


def several_machines():
    """Gradients are averaged; each worker holds a part of its machine's residuals."""
    for params in SETTINGS:
        weights = trained(params)
        assert_alike(weights)
        assert not torch.equal(weights, flat(Net()))
    for group in (None, dist.new_group(range(4))):
        _, _, _, state = wrapped({}, process_group=group)
        assert state.exchange.machines.groups == [[0, 1], [2, 3]]
        values = torch.full((90 * 20,), float(dist.get_rank()))
        state.average({"first.weight": values}).wait()
        assert torch.equal(values, torch.full_like(values, 1.5))
    reported_by_machines()
    _, _, _, state = wrapped(ONEBIT)
    arrays = state.state_dict()["arrays"]
    mine = sum(
        len(tensor) for own in arrays.values() for k, tensor in own.items() if "worker.res" in k
    )
    assert 0 < mine < flat(Net()).numel()
    saved_by_all_workers()
    average_large_values(hierarchical=True)
    average_large_values(hierarchical=False)


def reported_by_machines():
    """A machine's residual is compared with the gradients of as many workers as it has."""
    net, optimizer, ddp, state = wrapped({"compressor": "topk", "k": 0.05, "ef": "vanilla"})
    reporter = bps.report(state, every=1, measure_error=1)
    own = dict(zip(state.parameters, torch.autograd.grad(loss_of(net, 0), list(net.parameters()))))
    train(net, optimizer, ddp, range(1))
    squares = [0.0, 0.0]
    for name, arrays in state.state_dict()["arrays"].items():
        for key, residual in arrays.items():
            node, kind, begin = key.split(".")
            if (node, kind) == ("worker", "residual"):
                part = own[name].reshape(-1)[int(begin) : int(begin) + len(residual)]
                squares[0] += float((2 * residual.double()).square().sum())  # of two machines
                squares[1] += float(part.double().square().sum())
    ratio = (squares[0] / squares[1]) ** 0.5
    assert reporter.last.residual_ratio == pytest.approx(ratio, rel=1e-5)
    assert 0 < reporter.last.error < 1
    state.close()


def saved_by_all_workers():
    """The list of all workers' state_dicts restores the same residuals as each worker's own."""
    net, sgd_of_net, ddp, state = wrapped(ONEBIT)
    restored_from_list(state, lambda steps: train(net, sgd_of_net, ddp, steps))
    net = Net()
    params, algorithm = {"compressor": "onebit"}, {"name": "local_steps", "every": 2}
    optimizer = bps.DistributedOptimizer(
        sgd(net), net.named_parameters(), {**params, "ef": "vanilla"}, algorithm=algorithm
    )
    local_steps = optimizer.compression_state
    restored_from_list(local_steps, lambda steps: train(net, optimizer, net, steps))


def restored_from_list(state, train_for):
    """Train, load the list of all workers' earlier state_dicts, and compare this worker's."""

    def residuals(saved):
        kinds = saved["residuals"] if "residuals" in saved else {"gradient": saved["arrays"]}
        return {
            (name, key): array
            for tensors in kinds.values()
            for name, arrays in tensors.items()
            for key, array in arrays.items()
        }

    train_for(range(2))
    own = copy.deepcopy(state.state_dict())
    saved = [None] * dist.get_world_size()
    dist.all_gather_object(saved, own)
    train_for(range(2, 4))
    state.load_state_dict(saved)
    before, after = residuals(own), residuals(state.state_dict())
    assert before.keys() == after.keys() and any(array.any() for array in before.values())
    assert all(torch.equal(array, after[place]) for place, array in before.items())
    state.close()


@on_workers(2)
def test_large_values():
    average_large_values(hierarchical=True)


def average_large_values(hierarchical):
    """Large uncompressed tensors are averaged, and a NaN in them is reported."""
    tensors = {
        "large": torch.zeros(300_000),
        "small": torch.zeros(10),
        "double": torch.zeros(150_000, dtype=torch.float64),
    }
    parameters = {name: torch.nn.Parameter(values) for name, values in tensors.items()}
    state = bps.CompressionState(parameters.items(), {"hierarchical": hierarchical})
    assert state.compression_stats()["total"]["ratio"] is None  # before anything was sent
    for step in range(3):
        torch.manual_seed(10 * step + dist.get_rank())
        tensors = {name: torch.randn_like(values) for name, values in tensors.items()}
        expected = {name: values.clone() for name, values in tensors.items()}
        state.average(tensors).wait()
        for name, values in tensors.items():
            assert_alike(values)
            dist.all_reduce(expected[name])
            assert torch.allclose(values, expected[name] / dist.get_world_size(), atol=1e-6), name
    pushed = state.compression_stats()["tensors"]["large"]["pushed_bytes"]
    machines = state.exchange.machines if hierarchical else None
    values_bytes = 300_000 * 4 / (machines.local_size if machines else 1)
    assert 0 <= pushed - values_bytes < 72, pushed  # messages have headers
    tensors["large"][-1] = float("nan")
    raised(RuntimeError, "parameter large has a NaN", state.average(tensors).wait)
    state.close()


class CountingTransport:
    """A transport on Gloo's groups that counts the bytes it sends."""

    tags = 2**31

    def __init__(self):
        self._gloo, self.sent_bytes = gloo.Gloo(), 0

    def prepare(self):
        self._gloo.prepare()

    def new_group(self, ranks, timeout, everybody):
        return self._gloo.new_group(ranks, timeout, everybody)

    def messages(self, group, tag, rooms):
        return CountedMessages(self, self._gloo.messages(group, tag, rooms))


class CountedMessages:
    """The messages of `CountingTransport`."""

    def __init__(self, transport, messages):
        self._transport, self._messages = transport, messages
        self.expect, self.wait = messages.expect, messages.wait

    def send(self, data):
        self._transport.sent_bytes += sum(array.nbytes for array in data.values())
        self._messages.send(data)


@on_workers(2)
def test_another_transport_carries_all_payloads():
    expected = trained(ONEBIT)
    ours, groups.TRANSPORT = groups.TRANSPORT, CountingTransport()
    try:
        assert torch.equal(trained(ONEBIT), expected)
        assert groups.TRANSPORT.sent_bytes > flat(Net()).numel() / 8
    finally:
        groups.TRANSPORT = ours


@on_workers(2)
def test_single_tensors():
    size, rank = bps.size(), bps.rank()
    ranks = torch.arange(4.0) + rank
    assert torch.equal(bps.push_pull(ranks), torch.arange(4.0) + (size - 1) / 2)
    assert torch.equal(bps.push_pull(ranks, average=False), torch.arange(4.0) * size + 1)
    assert bps.push_pull(torch.tensor([rank]), average=False).item() == 1
    handle = bps.push_pull_async_inplace(ranks, average=False)
    assert torch.equal(bps.synchronize(handle), ranks) and bps.poll(handle)
    bps.declare("x", byteps_compressor_type="topk", byteps_compressor_k="2")
    x = torch.tensor([0.0, 5.0, 1.0, -7.0])
    assert torch.equal(bps.push_pull(x, name="x"), torch.tensor([0.0, 5.0, 0.0, -7.0]))
    raised(ValueError, "must have 4 elements", lambda: bps.push_pull(torch.ones(3), name="x"))
    raised(ValueError, "is declared already", lambda: bps.declare("x", compressor="onebit"))
    assert bps.broadcast_object({"of": rank}, root_rank=1) == {"of": 1}
    net = Net()
    with torch.no_grad():
        net.first.weight += rank
    bps.broadcast_parameters(net.state_dict(), root_rank=1)
    assert_alike(flat(net))
    optimizer = sgd(net, lr=0.1 + rank)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.1
    raised(ValueError, "root_rank must be in", lambda: bps.broadcast_object(1, root_rank=9))


@on_workers(2)
def test_wrong_settings():
    net = Net()
    named, state = list(net.named_parameters()), bps.CompressionState
    raised(ValueError, "did you mean 'scaling'", lambda: state(named, {**TOPK, "scalin": 1}))
    raised(ValueError, "'first.bias'", lambda: state(named, TOPK, overrides={"first.bia": None}))
    raised(
        ValueError,
        "'auto' must know all gradients",
        lambda: bps.declare("alone", compressor="auto"),
    )
    raised(ValueError, "needs the optimizer", lambda: bps.declare("alone", **DITHERING))
    raised(ValueError, "twice", lambda: state([*named, named[0]], TOPK))
    raised(ValueError, "needs the optimizer", lambda: state(named, TOPK, on_nonfinite="skip"))
    raised(ValueError, "needs the optimizer", lambda: state(named, DITHERING))
    raised(ValueError, "pass it to CompressionState(", lambda: state(named, ONEBIT))
    own = {"*.weight": ONEBIT}
    raised(ValueError, "pass it to CompressionState(", lambda: state(named, TOPK, overrides=own))
    os.environ["BYTEPS_MIN_COMPRESS_BYTES"] = "1024000"
    with logged() as lines:
        state(named, TOPK).close()
    del os.environ["BYTEPS_MIN_COMPRESS_BYTES"]
    largest = "the largest tensor has 32400 bytes, and BYTEPS_MIN_COMPRESS_BYTES is 1024000"
    assert len(lines) == 1 and lines[0].endswith(f"but nothing is compressed: {largest}"), lines
    elsewhere = {"first.bias": torch.zeros(90, device="meta")}
    moved = "is on meta, but was on cpu when"
    raised(ValueError, moved, lambda: state(named, TOPK).average(elsewhere))
    cast = {"first.bias": torch.zeros(90, dtype=torch.float64)}
    as_before = "'first.bias' is float64, but was float32 when"
    raised(ValueError, as_before, lambda: state(named, TOPK).average(cast))
    groups = [{"params": [named[0][1]], "momentum": 0.5}, {"params": [p for _, p in named[1:]]}]
    differing = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    raised(ValueError, "the same momentum", lambda: state(named, ONEBIT, differing))
    state(named, {**ONEBIT, "momentum": None}, differing)
    missing = named[1:]
    raised(ValueError, "are missing", lambda: bps.DistributedOptimizer(sgd(net), missing, TOPK))
    params = TOPK if dist.get_rank() == 0 else {**TOPK, "k": 0.5}
    raised(RuntimeError, "do not fit together", lambda: state(named, params))
    optimizer = sgd(net)
    state(named, ONEBIT, optimizer, overrides={"*.bias": None})
    assert {group["momentum"] for group in optimizer.param_groups} == {0.9}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        state(named, {"compressor": "onebit", "k": 0.1})
    assert "'k' is not for onebit" in str(warned[0].message)


@on_workers(2)
def test_chosen_automatically():
    """All workers make the same choice, keep it, and train as if the choice had been given."""
    with link_of(1e6):
        net, optimizer, ddp, state = wrapped(AUTO)
    given = {name: params.given() or None for name, params in state.params.items()}
    assert {(params or {}).get("compressor") for params in given.values()} == {"topk", None}
    train(net, optimizer, ddp, range(4))
    halfway = [copy.deepcopy(one.state_dict()) for one in (net, optimizer, state)]
    weights = train(net, optimizer, ddp, range(4, 8))
    assert_alike(weights)
    same = wrapped(next(filter(None, given.values())), overrides=given)
    assert torch.equal(train(*same[:3], range(8)), weights)
    with link_of(1e15):
        fast = wrapped(AUTO)
        resumed = wrapped(AUTO)
    assert all(params.compressor is None for params in fast[3].params.values())
    other_momentum = {**halfway[2], "momentum": None}
    raised(ValueError, "momentum", lambda: fast[3].load_state_dict(other_momentum))
    assert all(
        params.compressor is None for params in fast[3].gradients.compression.params.values()
    )
    for one, states in zip((*resumed[:2], resumed[3]), halfway):
        one.load_state_dict(states)
    assert torch.equal(train(*resumed[:3], range(4, 8)), weights)
    train(*fast[:3], range(1))
    raised(ValueError, "compressor of parameter", lambda: fast[3].load_state_dict(halfway[2]))
    for one in (state, same[3], fast[3], resumed[3]):
        one.close()


@on_workers(2)
def test_measured_links_choose():
    """The choice rests on the real link's speed."""
    net, optimizer, ddp, state = wrapped(AUTO, overrides={"first.*": TOPK})
    assert state.params["first.weight"].compressor.name == "topk"
    assert all(params.accuracy is None for params in state.params.values())
    assert_alike(train(net, optimizer, ddp, range(3)))
    state.close()


def the_bits_of_the_cpu(folder):
    """GPU kernels, CPU kernels for GPU tensors, and CPU kernels give the same payloads."""
    several = [
        *SETTINGS,
        {"compressor": "bytegrad"},
        {"fp16": True},
        {**TOPK, "exchange": "gather"},
    ]
    expected = [trained(params) for params in several]
    for of_emulator in (None, folder):
        emulated.start(of_emulator)
        for params, weights in zip(several, expected):
            assert torch.equal(trained(params), weights), params
    for params in ({**ONEBIT, "momentum": None}, TOPK):
        state = bps.CompressionState(Net().named_parameters(), params)
        assert any(isinstance(chunk.coder, GpuCoder) for chunk in state.lane.chunks)
        state.close()


def payloads_stay_on_gpus():
    """With GLUON_GC_PAYLOADS=nccl, on an emulated GPU."""
    by_host = DITHERING, {"compressor": "topk", "k": 0.05, "exchange": "gather"}
    for params in (ONEBIT, TOPK, {"compressor": "blockwise", "ef": "vanilla"}, *by_host):
        net, optimizer, ddp, state = wrapped(params)
        train(net, optimizer, ddp, range(3))
        chunks = [chunk for chunk in state.lane.chunks if chunk.coder is not None]
        stay = {chunk.on_gpu for chunk in chunks}
        assert stay == {params not in by_host}, params
        assert params in by_host or all(
            isinstance(chunk.aggregator, GpuCoder)
            for chunk in chunks
            if chunk.owner == dist.get_rank()
        )
        assert_alike(flat(net))
        pushed = state.compression_stats()["total"]["pushed_bytes"]
        payload_bytes = sum(chunk.num_bytes for chunk in chunks)
        assert params in by_host or payload_bytes < pushed < payload_bytes + 4000, params
        state.close()
    named = list(Net().named_parameters())
    os.environ["GLUON_GC_PAYLOADS"] = ("nccl", "gloo")[dist.get_rank() % 2]
    said = "worker 1 has over_nccl false for tensor 'last.bias', but worker 0 has true"
    raised(RuntimeError, said, lambda: bps.CompressionState(named, TOPK))
    os.environ["GLUON_GC_PAYLOADS"] = "nccl"


@on_workers(2)
def test_a_pytorch_without_nccl_is_told():
    ranks = range(dist.get_world_size())
    raised(ConfigurationError, "but this PyTorch has no NCCL", lambda: nccl.new_group(ranks))


def for_ever():
    net, optimizer, ddp, _ = wrapped(ONEBIT)
    step = 0
    while True:
        train(net, optimizer, ddp, [step])
        step += 1
        if step == 5 and dist.get_rank() == 0:
            print("training", flush=True)


def test_workers_of_torchrun():
    scripts.run_torchrun(*scripts.body_of(test_lifetimes.test_closing_gives_momentum_back))


@pytest.mark.parametrize(
    "job, variables",
    [
        ("a_late_worker_is_named", {"GLUON_GC_STALL_SECONDS": "1"}),
        ("a_worker_that_does_not_come_is_given_up", {"GLUON_GC_TIMEOUT": "2"}),
        ("a_time_out_of_init_reaches_all_groups", {}),
        ("a_longer_time_out_of_the_script_is_kept", {"GLUON_GC_TIMEOUT": "1"}),
    ],
)
def test_workers_that_do_not_come_are_named_and_given_up(job, variables):
    run(getattr(test_lifetimes, job), 2, variables)


def test_a_checkpoint_goes_on_as_if_nothing_had_happened(tmp_path):
    run(saved, 2, folder=tmp_path)
    run(resumed, 2, folder=tmp_path)
    said = run(resumed_by_fewer, 1, folder=tmp_path)
    assert "the residuals of 2 workers are divided among 1" in said


def test_a_checkpoint_goes_on_with_other_chunks(tmp_path):
    run(saved, 2, {"BYTEPS_PARTITION_BYTES": 4000}, folder=tmp_path)
    for partition_bytes in (4096000, 2000):
        variables = {"BYTEPS_PARTITION_BYTES": partition_bytes}
        run(resumed_with_other_chunks, 2, variables, folder=tmp_path)


def test_two_machines_of_two_workers_each_train_alike(tmp_path):
    port = free_port()
    there, here = (
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"),
            *("--node-rank", str(node), "--nproc-per-node", "2"),
            *("--master-addr", "127.0.0.1", "--master-port", str(port)),
            *scripts.body_of(several_machines),
        ]
        for node in (1, 0)
    )
    with subprocess.Popen(there, env=scripts.environ()) as other:
        try:
            done = subprocess.run(
                here, env=scripts.environ(), timeout=100, capture_output=True, encoding="utf-8"
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert other.wait(30) == 0
        finally:
            other.kill()


def test_a_killed_worker_ends_all_and_is_named():
    with subprocess.Popen(
        scripts.command(*scripts.body_of(for_ever)),
        env=scripts.environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        start_new_session=True,
    ) as launcher:
        try:
            for line in launcher.stdout:
                if "training" in line:
                    break
            children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text()
            victim = max(map(int, children.split()))
            os.kill(victim, signal.SIGKILL)
            said = launcher.communicate(timeout=60)[0]
        finally:
            with suppress(ProcessLookupError):  # all have ended
                os.killpg(launcher.pid, signal.SIGKILL)
    assert launcher.returncode == 1
    assert re.search(rf"exitcode +: -9 \(pid: {victim}\)", said), said
