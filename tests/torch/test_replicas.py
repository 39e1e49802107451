"""compress_replicas: gradients that travel between the replicas of an HSDP mesh."""

import os
from functools import partial
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import gluon_gc.torch as bps
from tests import replay
from tests.torch.common import (
    SIGNS,
    TOPK,
    Net,
    assert_alike,
    logged,
    loss_of,
    raised,
    replicas_and_shards,
)
from tests.torch.workers import on_workers, run

SIGNS = {**SIGNS, "momentum": None}
RANDOMK = {"compressor": "randomk", "k": 0.2, "seed": 5, "ef": "vanilla"}
DITHERING = {"compressor": "dithering", "k": 4, "ef": "vanilla"}
COMPRESSORS = (
    SIGNS,
    TOPK,
    {**TOPK, "exchange": "gather"},
    RANDOMK,
    {**DITHERING, "seed": 3},
    {"compressor": "bytegrad", "ef": "vanilla"},
    {"compressor": "blockwise", "stochastic": True, "seed": 3, "ef": "vanilla"},
    {"compressor": "blocktopk", "k": 64, "ef": "vanilla"},
    {"compressor": "dgc", "k": 0.05, "seed": 3},
)
BFLOAT16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def sharded(params=None, replicas=2, net=None, options=None, single=False, **more):
    """Return a network, its optimizer, and the compression between its replicas.

    `single`: it is one FSDP module.
    """
    net, options = net or Net(), {"mesh": replicas_and_shards(replicas), **(options or {})}
    for layer in [] if single else net.children():
        fully_shard(layer, **options)
    fully_shard(net, **options)
    optimizer = torch.optim.SGD((p for p in net.parameters() if p.requires_grad), lr=0.1)
    if params is None:
        return net, optimizer, None
    return net, optimizer, bps.compress_replicas(net, params, **more)


def train(net, optimizer, steps, passes=1, after=lambda net: None):
    """Train, and return the exact parameters of all workers as one vector."""
    for step in steps:
        optimizer.zero_grad()
        for number in range(passes):
            loss_of(net, 10 * step + number).backward()
        after(net)
        optimizer.step()
    return weights(net)


def accumulated(net, optimizer, steps, switch):
    """Like `train` with two passes. The first pass exchanges less."""
    for step in steps:
        optimizer.zero_grad()
        getattr(net, switch)(False)
        loss_of(net, 10 * step).backward()
        getattr(net, switch)(True)
        loss_of(net, 10 * step + 1).backward()
        optimizer.step()
    return weights(net)


def weights(net):
    return torch.cat([p.detach().full_tensor().reshape(-1) for p in net.parameters()])


def groups_of(net):
    """Return fully_shard's records of the modules, in the order of backward."""
    modules = [net.last, net.second, net.first]
    return [module._get_fsdp_state()._fsdp_param_groups[0] for module in modules]


def recorded(unit, seen, gradients):
    before = gradients.clone()
    unit(gradients)
    seen.append((unit, before, gradients.clone()))


@on_workers(4)
def test_gradients_are_those_of_a_numpy_replay():
    for params in COMPRESSORS:
        net, optimizer, _ = sharded(params)
        replicas = net.first.weight.device_mesh.get_group(0)
        names = {p: (n, i) for i, (n, p) in enumerate(net.named_parameters())}
        replays, seen = {}, []
        for group in groups_of(net):
            record = partial(recorded, group._all_reduce_hook, seen)
            group._all_reduce_hook = record
        for step in range(3):
            seen.clear()
            train(net, optimizer, [step])
            assert len(seen) == 3
            for unit, before, after in seen:
                every = [torch.empty_like(before) for _ in range(2)]
                dist.all_gather(every, before, group=replicas)
                begin = 0
                for name, parameter in unit.parameters.items():
                    n, index = parameter.to_local().numel(), names[parameter][1]
                    own = unit.shards.params[name]
                    inputs = [t[begin : begin + n].numpy() / 2 for t in every]
                    found, expected = after[begin : begin + n].numpy(), sum(inputs)
                    if own.compressor is not None:  # dgc leaves vectors alone
                        if name not in replays:
                            replays[name] = replay.Exchange(2, own, n, index, np.float32)
                        expected = replays[name].step(inputs, 1.0, range(2))
                    assert np.array_equal(found, expected), (params, name, step)
                    begin += unit.shards.sizes[name]


@on_workers(4)
def test_uncompressed_gradients_are_those_of_fully_shard():
    """With clipping, accumulation, mixed precision, offloading, and a divide factor."""
    clip = partial(torch.nn.utils.clip_grad_norm_, max_norm=0.1)
    for options, work in (
        ({}, partial(train, after=lambda net: clip(net.parameters()))),
        ({}, partial(train, passes=2)),
        ({}, partial(accumulated, switch="set_requires_gradient_sync")),
        ({}, partial(accumulated, switch="set_requires_all_reduce")),
        ({"mp_policy": BFLOAT16}, train),
        ({"offload_policy": CPUOffloadPolicy(False)}, train),
        ({"factor": 2.0}, train),
    ):
        factor, found = options.pop("factor", None), []
        for params in (None, {}):
            net, optimizer, _ = sharded(params, options=options)
            for module in (net, *net.children()):
                if factor is not None:
                    module.set_gradient_divide_factor(factor)
            found.append(work(net, optimizer, range(3)))
            assert_alike(found[-1])
        assert torch.allclose(*found, atol=1e-6)


@on_workers(4)
def test_all_three_collectives_work_together():
    start = torch.cat([p.detach().reshape(-1) for p in Net().parameters()])
    blockwise = {"compressor": "blockwise"}
    for work in (train, partial(accumulated, switch="set_requires_all_reduce")):
        expected = work(*sharded()[:2], range(12))
        net, optimizer, _ = sharded()
        bps.compress_all_gather(net, blockwise)
        bps.compress_reduce_scatter(net, {**blockwise, "ef": "vanilla"})
        bps.compress_replicas(net, {**blockwise, "ef": "vanilla"})
        found = work(net, optimizer, range(12))
        assert_alike(found)
        assert (found - expected).norm() < 0.1 * (expected - start).norm()


class Linear(torch.nn.Module):
    """Its gradient is the input."""

    def __init__(self, n):
        super().__init__()
        self.a = torch.nn.Parameter(torch.zeros(n, 3))

    def forward(self, x):
        return (self.a * x).sum()


def linear(params, **more):
    net = Linear(8)
    fully_shard(net, mesh=replicas_and_shards())
    return (
        net,
        torch.optim.SGD(net.parameters(), lr=1.0),
        bps.compress_replicas(net, params, **more),
    )


def inputs(step):
    random = torch.Generator().manual_seed(10 * step + dist.get_rank())
    return torch.randn(8, 3, generator=random)


@on_workers(4)
def test_averages_that_are_not_applied_leave_no_trace():
    """Dropped ones, those of `not_applied`, and one that a GradScaler skips; in 2 passes a step."""
    for params in (SIGNS, {**TOPK, "k": 2}, RANDOMK):
        found = []
        for dropped in (False, True):
            scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
            net, optimizer, replicas = linear(params, grad_scaler=scaler)
            for step in range(6):
                if dropped:
                    net(inputs(20 + step)).backward()  # a GAN's other optimizer steps
                    optimizer.zero_grad()
                    with replicas.not_applied():
                        net(inputs(30 + step)).backward()
                if dropped and step == 3:
                    optimizer.zero_grad()
                    scaler.scale(net(inputs(0) * (torch.inf if dist.get_rank() else 1))).backward()
                    scaler.step(optimizer)
                    scaler.update(new_scale=4.0)
                optimizer.zero_grad()
                for number in range(2):
                    scaler.scale(net(inputs(10 * number + step))).backward()
                scaler.step(optimizer)
                scaler.update(new_scale=4.0)
            found.append(net.a.full_tensor().detach())
        assert torch.equal(*found), params


@on_workers(4)
def test_nothing_of_a_gradient_is_lost():
    """Also if an average is zero by chance, and if a scaler changes its scale."""
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
    for params in ({**TOPK, "k": 2}, RANDOMK):
        net, optimizer, _ = linear(params, grad_scaler=scaler)
        for step in range(80):  # the last ones send the residuals
            optimizer.zero_grad()
            scaler.scale(net(inputs(step) * (step < 6))).backward()
            scaler.step(optimizer)
            scaler.update(None if step < 6 else scaler.get_scale())
        expected = -sum(inputs(step) for step in range(6))
        dist.all_reduce(expected, op=dist.ReduceOp.AVG)
        weight = net.a.full_tensor().detach()
        assert (weight - expected).norm() < 1e-4 * expected.norm(), (params, weight, expected)
    net, optimizer, _ = linear({**TOPK, "k": 2})
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
    scaler.scale(net(inputs(0))).backward()
    scaler.step(optimizer)
    scaler.update()
    scaler.scale(net(inputs(0))).backward()
    raised(RuntimeError, "pass grad_scaler to compress_replicas", lambda: scaler.step(optimizer))


@on_workers(4)
def test_sums_that_wait_for_the_all_reduce_are_applied():
    """fully_shard adds them up in a buffer of its own. Nothing of them is lost."""
    net = Linear(8)
    fully_shard(net, mesh=replicas_and_shards())
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    bps.compress_reduce_scatter(net, {**TOPK, "k": 2})
    for step in range(40):  # the last ones send the residuals
        optimizer.zero_grad()
        for number in range(3):
            net.set_requires_all_reduce(number == 2)
            net(inputs(10 * number + step) * (step < 4)).backward()
        optimizer.step()
    expected = -sum(inputs(10 * number + step) for number in range(3) for step in range(4))
    dist.all_reduce(expected, op=dist.ReduceOp.AVG)
    weight = net.a.full_tensor().detach()
    assert (weight - expected).norm() < 1e-5 * expected.norm()


@on_workers(4)
def test_frozen_layers_and_unused_parameters():
    found = []
    for params in (None, {}):
        net = Net()
        net.first.requires_grad_(False)
        net, optimizer, _ = sharded(params, net=net, single=True)
        net.set_reduce_scatter_unused_params(True)
        train(net, optimizer, range(2))
        for step in range(2):
            loss_of(
                net, step, short=dist.get_rank() % 2 == 1
            ).backward()  # without the second layer
            optimizer.step()
        found.append(weights(net))
    assert torch.allclose(*found, atol=1e-6)
    net.first.requires_grad_(True)
    net.last.requires_grad_(False)
    said = "was frozen or unfrozen after compress_replicas: call it again, before the next step"
    raised(RuntimeError, said, lambda: loss_of(net, 0).backward())


# Checkpoints


def residuals_of(replicas, kind="residual"):
    """Return the residuals of a state_dict by parameter, summed over the replicas."""
    parameters = replicas.state_dict()["parameters"]
    return {n: p[kind].full_tensor().sum(0) for n, p in parameters.items() if kind in p}


def with_an_empty_shard():
    """Return a network whose second layer has one row, so one of two workers has no part of it."""
    net = Net()
    net.second, net.last = torch.nn.Linear(90, 1, bias=False), torch.nn.Linear(1, 5)
    return net


def saved(folder):
    """Saved while averages wait for an optimizer, which the checkpoint must not contain."""
    for name, params in (("signs", SIGNS), ("noise", DITHERING)):
        net = with_an_empty_shard()
        net, optimizer, replicas = sharded(params, net=net, overrides={"first.*": TOPK})
        train(net, optimizer, range(3))
        sums = [residuals_of(replicas, kind) for kind in ("residual", "owners")]
        loss_of(net, 99).backward()
        dcp.save({"net": net.state_dict(), "replicas": replicas}, checkpoint_id=folder / name)
        after = train(net, optimizer, range(3, 6))
        if dist.get_rank() == 0:
            torch.save((sums, after), folder / f"{name}.pt")


def loaded(folder, name, replicas, stepped=0, template=None):
    """Continue on a mesh, and return the network, its optimizer, and its replicas."""
    params = SIGNS if name == "signs" else DITHERING
    net, overrides = with_an_empty_shard(), {"first.*": TOPK}
    net, optimizer, compression = sharded(params, replicas, net, overrides=overrides)
    train(net, optimizer, range(stepped))
    state = compression.state_dict(template) if template else compression
    given = {"net": net.state_dict(), "replicas": state}
    dcp.load(given, checkpoint_id=folder / name)
    net.load_state_dict(given["net"])
    if template:
        compression.load_state_dict(state)
    return net, optimizer, compression


def resumed(folder):
    for name in ("signs", "noise"):
        for stepped in (0, 1):
            net, optimizer, _ = loaded(folder, name, 2, stepped)
            _, expected = torch.load(folder / f"{name}.pt", weights_only=True)
            assert torch.equal(train(net, optimizer, range(3, 6)), expected), (name, stepped)


def continued(folder, replicas):
    """The sums of residuals are those that were saved, and training goes on."""
    for name in ("signs", "noise"):
        template = None if replicas == 2 else 2
        with logged() as lines:
            net, optimizer, compression = loaded(folder, name, replicas, template=template)
        assert bool(template) == any("are divided among" in line for line in lines)
        sums, _ = torch.load(folder / f"{name}.pt", weights_only=True)
        for kind, expected in zip(("residual", "owners"), sums):
            found = residuals_of(compression, kind)
            assert found.keys() == expected.keys()
            for parameter, total in expected.items():
                assert torch.allclose(found[parameter], total, atol=1e-6), (kind, parameter)
        assert train(net, optimizer, range(3, 6)).isfinite().all()


def test_checkpoints_continue_on_any_mesh(tmp_path):
    run(saved, 4, folder=tmp_path)
    run(resumed, 4, folder=tmp_path)
    run(continued, 2, folder=tmp_path, replicas=2)
    run(continued, 4, folder=tmp_path, replicas=4)
    run(continued, 4, folder=tmp_path, replicas=1)


# Tensor parallelism, and errors


def tensor_parallel(shape, names):
    """Return a network whose second layer is divided over the last dimension of the mesh."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    net = Net()
    parallelize_module(
        net, mesh[names[-1]], {"first": ColwiseParallel(), "second": RowwiseParallel()}
    )
    rest = mesh[names[:-1]]
    for layer in net.children():
        fully_shard(layer, mesh=rest)
    fully_shard(net, mesh=rest)
    return net, torch.optim.SGD(net.parameters(), lr=0.1)


def train_pairs(net, optimizer, steps):
    """Train with the same data on the two workers that share layers."""
    for step in steps:
        optimizer.zero_grad()
        random = torch.Generator().manual_seed(10 * step + dist.get_rank() // 2)
        x, y = torch.randn(16, 20, generator=random), torch.arange(16) % 5
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return weights(net)


@on_workers(4)
def test_tensor_parallel_layers(tmp_path):
    two, three = ("data", "tensor"), ("replicas", "shards", "tensor")
    for shape, names, compress in (
        ((2, 2), two, bps.compress_reduce_scatter),
        ((2, 1, 2), three, bps.compress_replicas),
    ):
        plain = tensor_parallel(shape, names)
        start, expected = weights(plain[0]), train_pairs(*plain, range(6))
        noise = {"compressor": "dithering", "k": 64, "ef": "vanilla"}
        for params, allowed in (({}, 1e-6), (noise, 0.1)):
            net, optimizer = tensor_parallel(shape, names)
            compression = compress(net, params)
            found = train_pairs(net, optimizer, range(6))
            assert_alike(found)
            assert (found - expected).norm() < allowed * (expected - start).norm(), (names, params)
        folder = tmp_path / names[0]
        dcp.save({"net": net.state_dict(), "state": compression}, checkpoint_id=folder)
        expected = train_pairs(net, optimizer, range(6, 8))
        net, optimizer = tensor_parallel(shape, names)
        given = {"net": net.state_dict(), "state": compress(net, noise)}
        dcp.load(given, checkpoint_id=folder)
        net.load_state_dict(given["net"])
        assert torch.equal(train_pairs(net, optimizer, range(6, 8)), expected), names


@on_workers(4)
def test_wrong_arguments_are_refused_by_name():
    raised(ValueError, "no FSDPModule", lambda: bps.compress_replicas(Net(), SIGNS))
    said = "the mesh of compress_replicas must have two dimensions, replicas and shards"
    raised(ValueError, said, lambda: bps.compress_replicas(fully_shard(Net()), SIGNS))
    net, optimizer, replicas = sharded(SIGNS)
    for params, said in (
        ({**SIGNS, "momentum": "nesterov"}, "needs an optimizer with momentum"),
        ({**SIGNS, "ef": "corrected"}, "needs the optimizer, whose learning rate it follows"),
        ({"compressor": "auto"}, "for fully_shard"),
    ):
        raised(ValueError, said, partial(bps.compress_replicas, net, params))
    said = "on_nonfinite must be 'raise' or 'propagate', got 'skip'"
    raised(ValueError, said, partial(bps.compress_replicas, net, SIGNS, on_nonfinite="skip"))
    for zero in (0, 1.5, True):
        said = f"replicas must be a whole number > 0, got {zero}"
        raised(ValueError, said, partial(replicas.state_dict, zero))
    train(net, optimizer, range(2))
    state = replicas.state_dict()
    for other, said in (
        ({**state, "format": 9}, "format"),
        ({**state, "parameters": {}}, "set of parameters"),
        ({**state, "replicas": 4}, "residual of parameter"),
        (sharded(TOPK)[2].state_dict(), "compressor of parameter"),
        (net.state_dict(), "not a state_dict of compress_replicas"),
    ):
        raised(ValueError, said, partial(replicas.load_state_dict, other))
    for parameter in state["parameters"].values():
        parameter["residual"].to_local().fill_(1)
    large = {"BYTEPS_MIN_COMPRESS_BYTES": "1000000"}
    with mock.patch.dict(os.environ, large):
        said = "which is not compressed here: BYTEPS_MIN_COMPRESS_BYTES is too large"
        raised(ValueError, said, partial(sharded(SIGNS)[2].load_state_dict, state))
    for group in groups_of(net):
        group._all_reduce_hook = print
    said = "the model already has an all-reduce hook"
    raised(ValueError, said, partial(bps.compress_replicas, net, SIGNS))


@on_workers(4)
def test_replicas_out_of_step_are_told():
    second = dist.get_rank() > 1
    net, optimizer, _ = sharded({**TOPK, "k": 0.1} if second else TOPK)
    said = "has k 0.1 for last.weight, but worker"
    raised(RuntimeError, said, loss_of(net, 0).backward)
    net, optimizer, _ = sharded(SIGNS)
    bps.compress_replicas(net, SIGNS)  # again, which replaces the first call
    train(net, optimizer, range(2))
    loss_of(net, 2).backward()
    if second:
        optimizer.step()
    optimizer.zero_grad()
    raised(RuntimeError, "has applied other averages than other", loss_of(net, 3).backward)
    net, optimizer, _ = sharded(SIGNS)
    train(net, optimizer, range(2))
    if second:
        net.second.set_requires_all_reduce(False)
    raised(RuntimeError, "has parameters", loss_of(net, 3).backward)


@on_workers(4)
def test_nonfinite_gradients_are_told():
    net, optimizer, _ = sharded(SIGNS, single=True)
    loss = loss_of(net, 0) * torch.nan
    raised(RuntimeError, "has a NaN or an infinity in step 1", loss.backward)
