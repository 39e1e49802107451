"""Differences between workers are found, and the error names them."""

import contextlib
import copy
import functools
import io
import pickle
import time
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gluon_gc.torch as bps
from gluon_gc.exchange.coding import HostCalls
from tests.torch.common import (
    ONEBIT,
    SIGNS,
    TOPK,
    Net,
    assert_alike,
    flat,
    loss_of,
    raised,
    same,
    sgd,
    sharded,
    train,
    train_once,
    wrapped,
)
from tests.torch.workers import on_workers

# Workers that are not in the same step


class Layers(torch.nn.Module):
    """Layer i has the gradient 10^i in every step. Backward may fail on one worker, at layer 1."""

    def __init__(self, size):
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.zeros(size, 1100) for _ in range(4))

    def forward(self, fails):
        parts = [10.0**i * weight.sum() for i, weight in enumerate(self.weights)]
        if fails:
            parts[1].register_hook(out_of_memory)
        return sum(parts)


def out_of_memory(gradient):
    raise MemoryError


def plain_sgd(net):
    return torch.optim.SGD(net.parameters(), lr=1.0)


@on_workers(2)
def test_an_error_that_one_worker_catches_is_noticed_by_all():
    """As with fairseq's loop, which drops the batch of a worker that is out of memory."""
    rank, said = dist.get_rank(), "worker 1 is in another step than other workers"
    for params in ({}, SIGNS, TOPK):
        net = Layers(1100)  # each weight is a bucket of its own
        optimizer = bps.DistributedOptimizer(plain_sgd(net), net.named_parameters(), params)

        def step(fails=False, net=net, optimizer=optimizer):
            optimizer.zero_grad()
            net(fails).backward()
            optimizer.step()

        step()
        began = time.monotonic()
        if rank == 0:
            raised(MemoryError, "", lambda: step(fails=True))  # noqa: B023
        for _ in range(2):  # later steps are refused too
            raised(RuntimeError, said, step)
        assert time.monotonic() - began < 20
        if params == {}:
            kept = [float(weight.detach()[0, 0]) for weight in net.weights]
            assert kept == [-1.0, -10.0, -100.0, -1000.0], kept
        optimizer.compression_state.close()


@on_workers(3)
def test_an_error_of_one_workers_compression_is_told_to_all():
    """After uncompressed tensors of the same step, which the engine sums meanwhile."""
    rank = dist.get_rank()
    said = ": MemoryError: no room" if rank == 1 else " on worker 1, whose error says why"
    for failing in ("compress", "aggregate", "decompress"):
        net = Layers(1100)
        optimizer = bps.DistributedOptimizer(
            plain_sgd(net),
            net.named_parameters(),
            SIGNS,
            overrides={"weights.2": None, "weights.3": None},
        )

        def step(net=net, optimizer=optimizer):
            optimizer.zero_grad()
            net(False).backward()
            optimizer.step()

        step()
        with contextlib.ExitStack() as stack:
            if rank == 1:
                error = MemoryError("no room")
                stack.enter_context(mock.patch.object(HostCalls, failing, side_effect=error))
            elif failing == "decompress":  # the sums may have arrived already
                with contextlib.suppress(RuntimeError):
                    step()
            for _ in range(2):  # later steps are refused too
                raised(RuntimeError, f"an exchange has failed{said}", step)  # noqa: B023
        optimizer.compression_state.close()


@on_workers(2)
def test_transfers_of_other_tensors_are_refused():
    """The step is the same. The workers exchange its gradients in different orders."""
    said = "worker 1 exchanges other tensors than other workers"
    order = ("ab", "ba")[dist.get_rank()]
    for params, size in (({}, 300_000), ({}, 10), (SIGNS, 30_000), (TOPK, 30_000), (None, 10)):
        parameters = {name: torch.nn.Parameter(torch.zeros(size)) for name in "ab"}
        state = bps.CompressionState(parameters.items(), params)
        futures = []
        for name in order:
            begins, gradient = not futures, torch.ones(size)
            if params is None:
                futures.append(state.average_sparse(name, gradient.to_sparse(), begins))
            else:
                futures.append(state.average({name: gradient}, begins))
        for future in futures:
            raised(RuntimeError, said, future.wait)
        state.close()


@on_workers(2)
def test_other_learning_rates_are_noticed_without_compression():
    net = Layers(200)
    optimizer = bps.DistributedOptimizer(plain_sgd(net), net.named_parameters())
    for step in range(2):
        optimizer.zero_grad()
        if step == 1:
            optimizer.param_groups[0]["lr"] = 0.1 * (1 + dist.get_rank())
            said = "the learning rates of worker 1 differ from those of other workers"
            raised(RuntimeError, said, lambda: net(False).backward())
        else:
            net(False).backward()
            optimizer.step()
    optimizer.compression_state.close()


# Parameters that appear later


@on_workers(2)
def test_parameters_that_are_not_averaged_are_refused():
    net = Net()
    net.second.weight.requires_grad_(False)
    optimizer, ddp = sgd(net), DistributedDataParallel(net)
    state = bps.CompressionState(net.named_parameters(), {}, optimizer)
    ddp.register_comm_hook(state, bps.compression_hook)
    train(net, optimizer, ddp, range(1))
    net.second.weight.requires_grad_(True)
    said = "parameter second.weight needed no gradient"
    raised(RuntimeError, said, lambda: loss_of(ddp, 1).backward())
    assert not state.gradients.has_computed  # the next step has nothing of this one
    state.close()
    net = Net()
    optimizer = torch.optim.SGD(net.first.parameters(), lr=0.1)
    optimizer = bps.DistributedOptimizer(optimizer, net.first.named_parameters(), {})
    optimizer.add_param_group({"params": net.second.parameters()})
    said = "a parameter of shape (90, 90) in the optimizer's group 1 is not averaged"
    raised(RuntimeError, said, lambda: train_once(net, optimizer))
    optimizer.compression_state.close()


# What workers must share


@on_workers(2)
def test_workers_that_would_drift_apart_are_refused():
    rank = dist.get_rank()

    def hook(optimizer_of, **more):
        net = Net()
        optimizer = optimizer_of(net.parameters())
        ddp = DistributedDataParallel(net)
        state = bps.CompressionState(net.named_parameters(), TOPK, optimizer, **more)
        ddp.register_comm_hook(state, bps.compression_hook)
        return net, optimizer, ddp

    def distributed(optimizer_of, **more):
        net = Net()
        inner = optimizer_of(net.parameters())
        optimizer = bps.DistributedOptimizer(inner, net.named_parameters(), TOPK, **more)
        return net, optimizer, net

    sgd, adam = torch.optim.SGD, torch.optim.Adam
    for make in (hook, distributed):
        for said, optimizer_of in (
            (
                "worker 1 has lr 0.2 for the optimizer's group 0, but worker 0 has 0.1",
                lambda p: sgd(p, lr=0.1 * (1 + rank)),
            ),
            ('has optimizer "Adam", but', lambda p: adam(p) if rank else sgd(p, lr=0.001)),
            ("has weight_decay 0.5 for", lambda p: sgd(p, lr=0.1, weight_decay=rank / 2)),
            ("has betas [0.8, 0.9] for", lambda p: adam(p, betas=(0.9 - rank / 10, 0.9))),
        ):
            net, optimizer, model = make(optimizer_of)
            raised(RuntimeError, said, lambda n=net, o=optimizer, m=model: train(n, o, m, [0]))
        said = 'has on_nonfinite "skip" for the gradient of parameter last.bias, but worker 0'
        more = {"on_nonfinite": "skip" if rank else "raise"}
        raised(RuntimeError, said, lambda: make(lambda p: sgd(p, lr=0.1), **more))  # noqa: B023
        net, optimizer, model = make(lambda p: sgd(p, lr=0.1))
        train(net, optimizer, model, range(2))
        optimizer.param_groups[0]["lr"] = 0.1 * (1 + rank)
        said = "the learning rates of worker 1 differ from those of other workers"
        raised(RuntimeError, said, lambda: train(net, optimizer, model, [3]))  # noqa: B023
    net, optimizer, model = hook(lambda p: sgd(p, lr=0.1))
    train(net, optimizer, model, range(2))
    for step in (2, 3):
        optimizer.zero_grad()
        if step == 3:
            said = "worker 1 has applied other averages than other workers"
            raised(RuntimeError, said, lambda: loss_of(model, 3).backward())
        else:
            loss_of(model, step).backward()
            if rank == 0:
                optimizer.step()


@on_workers(2)
def test_single_tensors_that_differ_are_refused():
    rank, push_pull = dist.get_rank(), bps.push_pull
    for said, call in (
        ('has name "b" for push_pull', lambda: push_pull(torch.ones(3), name="ab"[rank])),
        ("has average false for", lambda: push_pull(torch.ones(3), average=rank == 0, name="a")),
        ("has shape [4] for push_pull", lambda: push_pull(torch.ones(3 + rank), name="a")),
        ("has dtype ", lambda: push_pull(torch.ones(3, dtype=[None, torch.int8][rank]))),
    ):
        raised(RuntimeError, said, call)
    assert torch.equal(push_pull(torch.ones(3), name="a"), torch.ones(3))
    before = torch.nn.Linear(4, 4 + rank)
    kept = copy.deepcopy(before.state_dict())
    said = "worker 1 has shape [5, 4] for parameter weight, but worker 0 has [4, 4]"
    raised(RuntimeError, said, lambda: bps.broadcast_parameters(before.state_dict()))
    assert all(torch.equal(kept[name], value) for name, value in before.state_dict().items())
    for net, said in (
        (torch.nn.Linear(4, 4, dtype=[None, torch.float64][rank]), 'has dtype "torch.float64" for'),
        (torch.nn.ParameterDict({"ab"[rank]: torch.nn.Parameter(torch.ones(3))}), 'has name "b"'),
        (torch.nn.Linear(4, 4, bias=rank == 0), "has parameter bias, which worker 1 does not have"),
    ):
        raised(RuntimeError, said, lambda n=net: bps.broadcast_parameters(n.state_dict()))
    net = Net()
    others = [torch.optim.SGD(net.parameters(), lr=0.1), torch.optim.Adam(net.parameters())]
    raised(RuntimeError, 'has class "Adam"', lambda: bps.broadcast_optimizer_state(others[rank]))


@on_workers(2)
def test_checkpoints_that_differ_are_refused_by_all():
    net, optimizer, ddp, state = wrapped(ONEBIT)
    train(net, optimizer, ddp, range(2))
    early = state.state_dict()
    train(net, optimizer, ddp, range(2, 4))
    late, rank = state.state_dict(), dist.get_rank()
    files = [None, None]
    dist.all_gather_object(files, early)
    before = copy.deepcopy(state.state_dict()["arrays"])
    own = "the rank is 0 there, but 1 here"
    other = 'worker 1 has state_dict "that it refuses" for load_state_dict'
    kind, said = ((RuntimeError, other), (ValueError, own))[rank]
    raised(kind, said, lambda: state.load_state_dict(files[0]))
    said = "worker 1 has steps 4 for the state_dict, but worker 0 has 2"
    raised(RuntimeError, said, lambda: state.load_state_dict([early, late][rank]))
    wrong = {**early, "format": 99} if rank == 0 else early
    raised((ValueError, RuntimeError)[rank], "", lambda: state.load_state_dict(wrong))
    assert same(before, state.state_dict()["arrays"])
    state.load_state_dict(early)
    state.close()
    _, _, compression = sharded(TOPK)
    kind, said = ((ValueError, "not a state_dict"), (RuntimeError, "that it refuses"))[rank]
    wrong = {} if rank == 0 else compression.state_dict()
    raised(kind, said, lambda: compression.load_state_dict(wrong))


# Copies, and the state after close()


class Noisy(torch.optim.SGD):
    """Adds other noise to the weights on each worker, as Langevin dynamics does."""

    def step(self, closure=None):
        super().step(closure)
        random = torch.Generator().manual_seed(dist.get_rank())
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.add_(0.01 * torch.randn(parameter.shape, generator=random))


@on_workers(2)
def test_weights_that_drift_apart_are_told():
    def train_until_told(distributes, params):
        model = net = Net()
        optimizer = Noisy(net.parameters(), lr=0.1)
        if distributes:
            bps.DistributedOptimizer(optimizer, net.named_parameters(), params)
            state = optimizer.compression_state
        else:
            model = DistributedDataParallel(net)
            state = bps.CompressionState(net.named_parameters(), params, optimizer)
            model.register_comm_hook(state, bps.compression_hook)
        with contextlib.closing(state):
            for step in range(4):
                optimizer.zero_grad()
                loss_of(model, step).backward()
                optimizer.step()

    for distributes in (False, True):
        for params in (TOPK, {}):
            said = "differ between worker 1 and other workers"
            raised(RuntimeError, said, functools.partial(train_until_told, distributes, params))


@on_workers(2)
def test_parameters_outside_of_ddp_are_told():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    inner = DistributedDataParallel(net.second)
    state = bps.CompressionState(net.named_parameters(), TOPK, optimizer)
    inner.register_comm_hook(state, bps.compression_hook)

    def model(x):
        return net.last(inner(net.first(x).relu()).relu())

    said = "differ between worker 1 and other workers. Its gradient was never averaged: wrap"
    raised(RuntimeError, said, lambda: train(net, optimizer, model, range(4)))
    state.close()


@on_workers(2)
def test_memory_between_weights_may_differ():
    memory = torch.full((90, 40), float(dist.get_rank()))
    for model_of in (lambda net: net, DistributedDataParallel):
        net = Net()
        weight = memory[:, ::2]
        weight.copy_(net.first.weight.detach())
        net.first.weight = torch.nn.Parameter(weight)
        model, optimizer = model_of(net), torch.optim.SGD(net.parameters(), lr=0.1)
        if model is net:
            bps.DistributedOptimizer(optimizer, net.named_parameters(), TOPK)
            state = optimizer.compression_state
        else:
            state = bps.CompressionState(net.named_parameters(), TOPK, optimizer)
            model.register_comm_hook(state, bps.compression_hook)
        assert_alike(train(net, optimizer, model, range(10)))
        state.close()


@on_workers(2)
def test_copies_say_what_they_are():
    net, optimizer, ddp, state = wrapped(ONEBIT)
    train(net, optimizer, ddp, range(2))
    saved = state.state_dict()
    averaged = torch.optim.swa_utils.AveragedModel(ddp)
    assert torch.equal(flat(averaged.module), flat(net))
    box = io.BytesIO()
    torch.save(ddp, box)
    box.seek(0)
    again = torch.load(box, weights_only=False)
    assert torch.equal(flat(again), flat(net))
    for copied in (copy.deepcopy(state), pickle.loads(pickle.dumps(state))):
        assert same(copied.state_dict()["arrays"], saved["arrays"]) and copied.steps == 2
        said = "this is a copy of a CompressionState"
        raised(RuntimeError, said, lambda m=copied: m.average({}))
        model = DistributedDataParallel(Net())
        model.register_comm_hook(copied, bps.compression_hook)
        raised(RuntimeError, said, lambda m=model: loss_of(m, 0).backward())
    train(net, optimizer, ddp, [2])  # the original is still usable
    other = wrapped(ONEBIT)
    other[3].load_state_dict(copied.state_dict())
    other[3].close()
    state.close()
    net = Net()
    optimizer = bps.DistributedOptimizer(sgd(net), net.named_parameters(), ONEBIT)
    train_once(net, optimizer)
    for copied in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert isinstance(copied, torch.optim.SGD) and copied.param_groups[0]["momentum"] == 0.9
        raised(RuntimeError, "this is a copy of a DistributedOptimizer", copied.step)
        names = [(f"p{i}", p) for i, p in enumerate(copied.param_groups[0]["params"])]
        pickle.dumps(copied)
        again = bps.DistributedOptimizer(copied, names, ONEBIT)
        again.step()
        again.compression_state.close()
    raised(
        ValueError, "already", lambda: bps.DistributedOptimizer(optimizer, net.named_parameters())
    )
    optimizer.compression_state.close()
