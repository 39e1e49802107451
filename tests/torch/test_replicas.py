"""compress_replicas: gradients that travel between the replicas of an HSDP mesh."""

import functools

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

import gluon_gc.torch as bps
from gluon_gc.compression import parse
from tests import replay
from tests.torch.common import SIGNS, TOPK, Net, assert_alike, logged, loss_of, raised
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
)
BFLOAT16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def mesh_of(replicas):
    shape = (replicas, dist.get_world_size() // replicas)
    return init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards"))


def sharded(params=None, replicas=2, net=None, options=None, **more):
    """Return a network, its optimizer, and the compression between its replicas."""
    net, options = net or Net(), {"mesh": mesh_of(replicas), **(options or {})}
    for layer in net.children():
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


def weights(net):
    return torch.cat([p.detach().full_tensor().reshape(-1) for p in net.parameters()])


def groups_of(net):
    """Return fully_shard's records of the modules, in the order of backward."""
    modules = [net.last, net.second, net.first]
    return [module._get_fsdp_state()._fsdp_param_groups[0] for module in modules]


@on_workers(4)
def test_gradients_are_those_of_a_numpy_replay():
    for params in COMPRESSORS:
        net, optimizer, _ = sharded(params)
        replicas = net.first.weight.device_mesh.get_group(0)
        names = {p: (n, i) for i, (n, p) in enumerate(net.named_parameters())}
        replays, seen = {}, []
        for group in groups_of(net):
            unit = group._all_reduce_hook

            def hook(gradients, unit=unit):
                before = gradients.clone()
                unit(gradients)
                seen.append((unit, before, gradients.clone()))

            group._all_reduce_hook = hook
        for step in range(4):
            seen.clear()
            train(net, optimizer, [step])
            assert len(seen) == 3
            for unit, before, after in seen:
                every = [torch.empty_like(before) for _ in range(2)]
                dist.all_gather(every, before, group=replicas)
                begin = 0
                for name, parameter in unit.parameters.items():
                    n, index = parameter.to_local().numel(), names[parameter][1]
                    if name not in replays:
                        own = parse(params)
                        replays[name] = replay.Exchange(2, own, n, index, np.float32)
                    inputs = [t[begin : begin + n].numpy() / 2 for t in every]
                    expected = replays[name].step(inputs, 1.0, range(2))
                    found = after[begin : begin + n].numpy()
                    assert np.array_equal(found, expected), (params, name, step)
                    begin += unit.shards.sizes[name]


@on_workers(4)
def test_uncompressed_gradients_are_those_of_fully_shard():
    """With clipping, both ways of accumulation, mixed precision, offloading, and a divide factor."""

    def clipped(net):
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)

    def accumulated(net, switch):
        for step in range(3):
            optimizer.zero_grad()
            switch(net)(False)
            loss_of(net, 2 * step).backward()
            switch(net)(True)
            loss_of(net, 2 * step + 1).backward()
            optimizer.step()
        return weights(net)

    for options, work in (
        ({}, lambda net: train(net, optimizer, range(3))),
        ({}, lambda net: train(net, optimizer, range(3), after=clipped)),
        ({}, lambda net: train(net, optimizer, range(3), passes=2)),
        ({}, lambda net: accumulated(net, lambda net: net.set_requires_gradient_sync)),
        ({}, lambda net: accumulated(net, lambda net: net.set_requires_all_reduce)),
        ({"mp_policy": BFLOAT16}, lambda net: train(net, optimizer, range(3))),
        ({"offload_policy": CPUOffloadPolicy(False)}, lambda net: train(net, optimizer, range(3))),
        ({"factor": 2.0}, lambda net: train(net, optimizer, range(3))),
    ):
        factor, found = options.pop("factor", None), []
        for params in (None, {}):
            net, optimizer, _ = sharded(params, options=options)
            for module in (net, *net.children()):
                if factor is not None:
                    module.set_gradient_divide_factor(factor)
            found.append(work(net))
            assert_alike(found[-1])
        assert torch.allclose(*found, atol=1e-6)
