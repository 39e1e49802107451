"""CrossBarrier compared with DistributedOptimizer."""

import copy
import functools
import io
import itertools
import pickle
import threading
from contextlib import contextmanager
from unittest import mock

import pytest
import torch
from torch.optim import SGD, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import StepLR

import gluon_gc.torch as bps
from gluon_gc.exchange.coding import HostCalls
from gluon_gc.torch.cross_barrier import CrossBarrier, Overlap, reordered
from tests.torch.common import (
    ONEBIT,
    TOPK,
    Net,
    assert_alike,
    flat,
    loss_of,
    raised,
    sgd,
    train_compiled,
)
from tests.torch.workers import on_workers

EF = {**ONEBIT, "momentum": None}
OPTIMIZERS = {
    "sgd": lambda groups: SGD(groups, lr=0.1),
    "momentum": lambda groups: SGD(groups, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "dampening": lambda groups: SGD(groups, lr=0.1, momentum=0.9, dampening=0.1, foreach=True),
    "adam": lambda groups: Adam(groups, lr=0.01, amsgrad=True, weight_decay=1e-2),
    "fused": lambda groups: Adam(groups, lr=torch.tensor(0.01), fused=True),
    "rmsprop": lambda groups: RMSprop(groups, lr=0.01, momentum=0.5, centered=True),
}

# About one layer.
small_buckets = mock.patch("gluon_gc.torch.optimizer.distributed._BUCKET_BYTES", 4000)


@contextmanager
def overlapping(share):
    """In the block, this share of the averages finishes in the order of backward."""
    before, Overlap.share = Overlap.share, lambda self: share
    try:
        yield
    finally:
        Overlap.share = before


def cross_barrier(net, optimizer, params=None):
    return CrossBarrier(net, optimizer, net.named_parameters(), params)


def distributed(net, optimizer, params=None, passes=1):
    return bps.DistributedOptimizer(optimizer, net.named_parameters(), params, passes)


def late(optimizer):
    """Return the parameters whose updates are not yet applied."""
    return set(optimizer._averager._updates)


def groups_of(net):
    others = [*net.second.parameters(), *net.last.parameters()]
    return [{"params": list(net.first.parameters()), "lr": 0.02}, {"params": others}]


def trained_with(make, kind, params, passes=1, steps=7, schedules_first=False):
    """Return the weights and losses of a loop with all kinds of code between two steps."""
    net = Net()
    optimizer = OPTIMIZERS[kind](groups_of(net))
    if schedules_first:
        scheduler = StepLR(optimizer, 2, 0.5)
    if make is CrossBarrier:
        more = {"backward_passes_per_step": passes, "num_steps": steps}
        optimizer = CrossBarrier(net, optimizer, net.named_parameters(), params, **more)
    else:
        optimizer = distributed(net, optimizer, params, passes)
    if not schedules_first:
        scheduler = StepLR(optimizer, 2, 0.5)
    losses = []
    for step in range(steps):
        (optimizer if step % 2 else net).zero_grad()
        for one in range(passes):
            loss_of(net, step * passes + one, short=step == 3).backward()
        optimizer.step()
        scheduler.step()
        optimizer.param_groups[1]["weight_decay"] = 1e-3 * step
        if make is CrossBarrier:
            assert bool(late(optimizer)) == (0 < step < steps - 1), step
            assert all(p.grad is None for p in late(optimizer))
        if step % 3 == 2:  # evaluation
            net.eval()
            with torch.inference_mode(step == 2):
                losses.append(loss_of(net, step).item())
            net.train()
    assert_alike(flat(net))
    optimizer.compression_state.close()
    return flat(net), losses


@on_workers(2)
@small_buckets
def test_cross_barrier_gives_the_same_bits():
    with overlapping(0.5):
        for kind, params in (
            *((kind, None) for kind in OPTIMIZERS),
            *itertools.product(("momentum", "adam", "rmsprop"), (bps.Compression.fp16, EF)),
        ):
            expected = trained_with(distributed, kind, params)
            crossed = trained_with(CrossBarrier, kind, params)
            assert torch.equal(expected[0], crossed[0]), (kind, params)
            assert expected[1] == crossed[1], (kind, params)
        for kind, more in (
            ("momentum", {"passes": 2}),
            ("momentum", {"schedules_first": True}),
            ("adam", {"passes": 2, "schedules_first": True}),
        ):
            expected = trained_with(distributed, kind, TOPK, **more)
            crossed = trained_with(CrossBarrier, kind, TOPK, **more)
            assert torch.equal(expected[0], crossed[0]) and expected[1] == crossed[1], (kind, more)
        expected = trained_with(distributed, "momentum", ONEBIT)  # compression applies momentum
        assert torch.equal(expected[0], trained_with(CrossBarrier, "momentum", ONEBIT)[0])


@on_workers(2)
@small_buckets
def test_a_forward_waits_for_its_own_parameters():
    for share in (1.0, 0.0):
        with overlapping(share):
            net = Net()
            optimizer, seen = cross_barrier(net, sgd(net)), []
            note = functools.partial(_note, optimizer, seen)
            net.first.register_forward_hook(note)
            for step in range(7):
                loss_of(net, step).backward()
                optimizer.step()
                seen.clear()
                loss_of(net, 0)  # a forward pass without a backward pass
                (waiting,) = seen
                first = {net.first.weight, net.first.bias}
                assert not waiting & first and len(waiting) == (4 if step else 0)
                assert not late(optimizer)
            order = optimizer._averager._buckets
            assert order[0][0] is (net.last.bias if share else net.first.bias), share
            optimizer.compression_state.close()


def _note(optimizer, seen, *hooked):
    seen.append(late(optimizer))


@on_workers(2)
def test_zero_grad_does_not_wait_for_averages():
    net, goes_on, aggregate = Net(), threading.Event(), HostCalls.aggregate
    optimizer = cross_barrier(net, sgd(net))

    def aggregated(*arguments):
        assert goes_on.wait(60)
        aggregate(*arguments)

    with mock.patch.object(HostCalls, "aggregate", aggregated):
        for step in range(3):
            optimizer.zero_grad()
            assert bool(late(optimizer)) == (step == 2)
            goes_on.set()
            loss = loss_of(net, step)
            if step == 1:
                goes_on.clear()
            loss.backward()
            optimizer.step()
            if step == 0:
                optimizer.finish()
        optimizer.finish()
    assert_alike(flat(net))


@on_workers(2)
@small_buckets
def test_whoever_reads_parameters_waits():
    def stepped():
        net = Net()
        optimizer = cross_barrier(net, sgd(net), TOPK)
        for step in range(3):
            loss_of(net, step).backward()
            optimizer.step()
        assert late(optimizer)
        return net, optimizer

    net = Net()
    optimizer = distributed(net, sgd(net), TOPK)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(net, step).backward()
        optimizer.step()
    expected, state = flat(net), optimizer.state_dict()
    saved = optimizer.compression_state.state_dict()
    optimizer.compression_state.close()

    def weights(named):
        return torch.cat([tensor.detach().reshape(-1) for _, tensor in named])

    def written(net):
        torch.save(net, box := io.BytesIO())
        box.seek(0)
        return torch.load(box, weights_only=False)

    def pickled(net):
        return pickle.loads(pickle.dumps(net))

    readers = {
        "state_dict": lambda net, optimizer: weights(net.state_dict().items()),
        "parameters": lambda net, optimizer: torch.cat([p.flatten() for p in net.parameters()]),
        "deepcopy": lambda net, optimizer: weights(copy.deepcopy(net).named_parameters()),
        "pickle": lambda net, optimizer: weights(
            pickle.loads(pickle.dumps(net)).state_dict().items()
        ),
        "save": lambda net, optimizer: weights(written(net).named_parameters()),
        "within": lambda net, optimizer: weights(torch.nn.Sequential(net).state_dict().items()),
        "to": lambda net, optimizer: flat(net.to(torch.float32)),
        "finish": lambda net, optimizer: (optimizer.finish(), flat(net))[1],
        "optimizer": lambda net, optimizer: (optimizer.state_dict(), flat(net))[1],
        "pickled optimizer": lambda net, optimizer: (pickle.dumps(optimizer), flat(net))[1],
        "compression": lambda net, optimizer: (optimizer.compression_state, flat(net))[1],
    }
    for name, read in readers.items():
        net, optimizer = stepped()
        assert torch.equal(read(net, optimizer), expected), name
        assert not late(optimizer)
        if name in ("deepcopy", "save"):
            copied = {"deepcopy": copy.deepcopy, "save": written}[name](net)
            assert type(copied) is Net and copied(torch.zeros(1, 20)).shape == (1, 5)
        for own, other in zip(optimizer.state_dict()["state"].values(), state["state"].values()):
            assert torch.equal(own["momentum_buffer"], other["momentum_buffer"])
        optimizer.compression_state.close()
    for name, arguments in (("state_dict", ()), ("set_epoch", (0,)), ("load_state_dict", [saved])):
        net, optimizer = stepped()
        kept = optimizer._averager.state  # the compression_state that a script kept
        getattr(kept, name)(*arguments)
        assert not late(optimizer), name
        kept.close()
    net, optimizer = stepped()
    net.load_state_dict(Net().state_dict())
    assert torch.equal(flat(net), flat(Net()))
    optimizer.load_state_dict(optimizer.state_dict())
    loss_of(net, 3).backward()
    optimizer.step()
    optimizer.zero_grad()
    net.zero_grad()
    assert late(optimizer) and isinstance(net, Net)
    bps.broadcast_parameters(net.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    assert_alike(flat(net))
    optimizer.compression_state.close()


class Attending(torch.nn.Module):
    """A model whose attention uses parameters of a module that it does not call.

    Two layers share parameters, and `outside` belongs to no module that is called.
    """

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(20, 8)
        self.attention = torch.nn.MultiheadAttention(8, 2)
        self.tied = torch.nn.Linear(8, 8)
        self.again = torch.nn.Linear(8, 8)
        self.again.weight = self.tied.weight
        self.normed = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(8, 8))
        self.list = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(8))])
        self.last = torch.nn.Linear(8, 5)

    def forward(self, x):
        return self.last(self.encode(x) * self.list[0])

    def encode(self, x):
        x = self.first(x)
        x = self.attention(x, x, x, need_weights=False)[0]
        return self.normed(self.again(self.tied(x)))


class ByMethods(Attending):
    """A model whose forward is never called."""

    def forward(self, x):
        raise AssertionError

    def logits(self, x):
        return self.last(self.encode(x) * self.list[0])


@on_workers(2)
@small_buckets
def test_modules_that_use_parameters_of_others():
    for kind in (Attending, ByMethods):
        results = []
        for make in (distributed, cross_barrier):
            net = kind()
            optimizer = make(net, SGD(net.parameters(), lr=0.1, momentum=0.9))
            call = net.logits if kind is ByMethods else net
            for step in range(6):
                optimizer.zero_grad()
                loss_of(call, step).backward()
                optimizer.step()
            assert (make is cross_barrier) == hasattr(optimizer, "finish")
            results.append(flat(net))
            optimizer.compression_state.close()
        assert torch.equal(*results)
    net = Net()
    optimizer = cross_barrier(net, sgd(net))
    compiled = torch.compile(net, backend="eager")
    twin = Net()
    expected = distributed(twin, sgd(twin))
    for step in range(4):
        for model, one in ((compiled, optimizer), (twin, expected)):
            one.zero_grad()
            loss_of(model, step).backward()
            one.step()
    assert torch.equal(flat(net), flat(twin))
    net = Net()
    train_compiled(net, cross_barrier(net, sgd(net)), net, range(4))
    assert torch.equal(flat(net), flat(twin))


@on_workers(2)
@small_buckets
def test_stale_parameters_are_an_error():
    """The first step calls a layer; a later step uses its weight without calling it."""
    net = Net()
    optimizer = cross_barrier(net, sgd(net))
    for step in range(2):
        optimizer.zero_grad()
        loss_of(net, step).backward()
        optimizer.step()
    optimizer.zero_grad()
    hidden = net.first(torch.ones(1, 20)) @ net.second.weight.T
    said = "parameter second.weight was used before its update was applied"
    raised(RuntimeError, said, lambda: hidden.sum().backward())
    optimizer.zero_grad()
    loss_of(net, 3).backward()
    optimizer.step()
    assert_alike(flat(net))


@on_workers(2)
@small_buckets
def test_gradients_may_be_changed_once_they_are_averages():
    results = []
    for make in (distributed, cross_barrier):
        for scales in (False, True):
            net = Net()
            optimizer = make(net, sgd(net), TOPK)
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0, enabled=scales)
            for step in range(4):
                optimizer.zero_grad()
                scaler.scale(loss_of(net, step)).backward()
                if step % 2:
                    optimizer.synchronize()
                    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                    with optimizer.skip_synchronize():
                        optimizer.step()
                else:
                    scaler.step(optimizer)
                    scaler.update(2.0)
            assert_alike(flat(net))
            results.append(flat(net))
            optimizer.compression_state.close()
    assert torch.equal(results[0], results[2]) and torch.equal(results[1], results[3])
    net = Net()
    optimizer = cross_barrier(net, sgd(net))
    loss_of(net, 0).backward()
    optimizer.step()
    loss_of(net, 1).backward()
    net.first.weight.grad.mul_(2)
    raised(RuntimeError, "first.weight was changed before it was averaged", optimizer.step)


@on_workers(2)
@small_buckets
def test_an_error_of_an_exchange_is_raised_by_forward():
    net = Net()
    optimizer = cross_barrier(net, sgd(net))
    for step in range(3):
        optimizer.zero_grad()
        factor = float("nan") if step == 1 and bps.rank() == 0 else 1.0
        if step == 2:
            said = "has a NaN or an infinity in step 2"
            raised(RuntimeError, said, lambda: loss_of(net, 2))
            break
        (loss_of(net, step) * factor).backward()
        optimizer.step()
    assert_alike(flat_of_finite(net))


def flat_of_finite(net):
    """Check that no parameter was updated with a non-finite gradient; returns the parameters."""
    weights = torch.cat([p.detach().flatten() for p in net.first.parameters()])
    assert weights.isfinite().all()
    return weights


@on_workers(2)
@small_buckets
def test_arguments_of_cross_barrier_are_checked():
    net = Net()

    class Mine(SGD):
        pass

    for kind in (AdamW, torch.optim.LBFGS, Mine):
        said = f"CrossBarrier is for the optimizers SGD, Adam and RMSprop, got {kind.__name__}"
        raised(ValueError, said, lambda k=kind: CrossBarrier(net, k(net.parameters(), lr=0.1)))
    raised(TypeError, "model must be a Module, got list", lambda: CrossBarrier([], sgd(net)))
    for wrong in (0, 1.5, True):
        said = "num_steps must be a whole number > 0"
        raised(ValueError, said, lambda w=wrong: CrossBarrier(net, sgd(net), num_steps=w))
    optimizer = CrossBarrier(net, sgd(net))
    raised(ValueError, "is a DistributedOptimizer already", lambda: CrossBarrier(net, optimizer))
    optimizer.compression_state.close()


@pytest.mark.parametrize(
    "share, expected", [(1.0, "dcba"), (0.6, "dcab"), (0.5, "dcab"), (0.1, "dabc"), (0.0, "abcd")]
)
def test_averages_that_backward_does_not_hide_come_in_the_order_of_forward(share, expected):
    assert "".join(reordered("dcba", [4, 4, 2, 2], share)) == expected
