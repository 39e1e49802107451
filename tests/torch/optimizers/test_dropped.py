"""Gradients that are dropped, skipped or added to before an optimizer applies them."""

import copy
import functools
import itertools
import sys
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gluon_gc.torch as bps
from tests.torch.common import (
    DGC,
    ONEBIT,
    TOPK,
    Net,
    distributed,
    flat,
    full,
    hooked,
    logged,
    loss_of,
    raised,
    same,
    sgd,
    sharded,
    train,
    wrapped,
)
from tests.torch.workers import on_workers


@on_workers(2)
def test_dropped_gradients_leave_no_trace():
    """As in a GAN: backward of G also makes gradients of D, which are dropped before D's step.

    In the tutorials' GAN ("late"), nobody resets D's used gradients before backward of G.
    """
    makes = (hooked, distributed, sharded)
    every_params = (ONEBIT, TOPK, DGC, {**TOPK, "momentum": "nesterov"}, {})
    ways = list(itertools.product(makes, every_params, [True]))
    ways += itertools.product(makes, [ONEBIT, {}], [False])
    ways += itertools.product((hooked, sharded), [TOPK], ["late"])
    for make, params, set_to_none in ways:
        if make is sharded and params is DGC:
            continue  # dgc has its own momentum
        late, weights = set_to_none == "late", []
        for drops in (False, True):
            model, optimizer, state = make(params)
            for step in range(4):
                if drops:
                    (-5 * loss_of(model, 50 + step)).backward()
                if drops or late:
                    optimizer.zero_grad(bool(set_to_none))
                loss_of(model, step).backward()
                optimizer.step()
                if not late:
                    optimizer.zero_grad(set_to_none)
            weights.append([full(p) for p in model.parameters()])
            getattr(state, "close", lambda: None)()
        assert all(map(torch.equal, *weights)), (make, params, set_to_none)


@on_workers(2)
def test_the_first_drop_is_told_and_every_drop_is_taken_back():
    for make in (hooked, distributed):
        model, optimizer, state = make(ONEBIT)
        for step in range(2):
            loss_of(model, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        kept = copy.deepcopy(state.state_dict()["arrays"])
        with logged() as lines:
            loss_of(model, 50).backward()
            optimizer.zero_grad()
            _finish_a_drop(state)
        assert any("so the exchange is taken back" in line for line in lines), lines
        assert same(kept, state.state_dict()["arrays"])
        with logged() as lines:
            for _ in range(2):
                loss_of(model, 51).backward()
                optimizer.zero_grad()
            _finish_a_drop(state)
        assert not lines, lines
        assert same(kept, state.state_dict()["arrays"])
        assert state.steps == 2
        state.close()


@on_workers(2)
def test_a_skipped_batch_that_was_averaged_in_part_leaves_no_trace():
    """It does not use a layer, so backward exchanges the others only, and the batch is skipped."""

    class Linear(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.skipped = torch.nn.Parameter(torch.zeros(500))
            self.used = torch.nn.Parameter(torch.zeros(500))

        def forward(self, x, whole=True):
            return (self.used * x).sum() + ((self.skipped * x).sum() if whole else 0)

    def drained(zero, then):
        net, total = Linear(), 0
        optimizer = bps.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), lr=1.0),
            net.named_parameters(),
            compression_params=TOPK,
        )
        state = optimizer.compression_state
        zero_grad = optimizer.zero_grad if zero == "optimizer" else net.zero_grad
        for step in range(40):
            inputs = [torch.full((500,), step + 1.0 + rank) * (step < 5) for rank in range(2)]
            zero_grad()
            net(inputs[dist.get_rank()]).backward()
            optimizer.step()
            total = total + sum(inputs) / 2
            if step in (1, 3):
                saved = copy.deepcopy((net.state_dict(), state.state_dict()))
                zero_grad()
                net(torch.full((500,), 50.0 + dist.get_rank()), whole=False).backward()
                if then == "save":
                    assert same(saved[1]["arrays"], state.state_dict()["arrays"])
                elif then == "load":
                    net.load_state_dict(saved[0])
                    state.load_state_dict(saved[1])
        assert state.steps == 40
        state.close()
        for parameter in net.parameters():
            torch.testing.assert_close(parameter.detach(), -total)

    with one_bucket_for_each():
        for way in itertools.product(("optimizer", "model"), ("go on", "save", "load")):
            drained(*way)


class Parts(torch.nn.Module):
    """Parameters whose gradients are the inputs. Those without an input have no gradient."""

    def __init__(self, number, size):
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.zeros(size) for _ in range(number))

    def forward(self, *inputs):
        return sum((part * x).sum() for part, x in zip(self.parts, inputs))


one_bucket_for_each = functools.partial(
    mock.patch.object, sys.modules["gluon_gc.torch.optimizer.distributed"], "_BUCKET_BYTES", 1
)


@on_workers(2)
def test_a_gradient_that_is_replaced_between_two_passes_is_an_error_or_skips_the_batch():
    ways = {
        "clamped": lambda gradient: gradient.clamp(-100, 100),
        "none": lambda gradient: None,
        "zeros": torch.zeros_like,
    }
    for way, replaced in ways.items():
        net, total = Parts(2, 500), torch.zeros(500)
        first, second = net.parts
        optimizer = bps.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), lr=1.0),
            [("second", second), ("first", first)],
            compression_params=TOPK,
        )
        with one_bucket_for_each():
            for step in range(40):
                x = torch.full((500,), step + 1.0 + dist.get_rank()) * (step < 5)
                optimizer.zero_grad()
                (first * x).sum().backward()
                if step == 3:
                    optimizer.compression_state.gradients.pending.wait()
                    first.grad = replaced(first.grad)
                    if way == "clamped":
                        said = "first was changed before it was averaged"
                        raised(RuntimeError, said, (second * x).sum().backward)
                        break
                    (first * x).sum().backward()
                total += (step + 1.5) * (step < 5)
                (second * x).sum().backward()
                optimizer.step()
            else:
                for parameter in net.parts:
                    torch.testing.assert_close(parameter.detach(), -total)
        optimizer.compression_state.close()


@on_workers(2)
def test_training_goes_on_after_a_nan_whose_error_is_caught():
    """The other buckets of the batch are under way when the next one begins."""

    def drained(make, whole):
        net, total = Parts(4, 300_000), [torch.zeros(300_000) for _ in range(4)]
        optimizer, model = torch.optim.SGD(net.parameters(), lr=1.0), net
        options = {"compressor": "topk", "k": 0.3, "ef": "vanilla"}
        if make is distributed:
            bps.DistributedOptimizer(optimizer, net.named_parameters(), options)
            state = optimizer.compression_state
        else:
            model = DistributedDataParallel(net, bucket_cap_mb=1)
            state = bps.CompressionState(net.named_parameters(), options, optimizer)
            model.register_comm_hook(state, bps.compression_hook)
        for step in range(22):
            random = torch.Generator().manual_seed(step)
            inputs = torch.randn(2, 4, 300_000, generator=random) * (step < 10)
            optimizer.zero_grad()
            if step in (2, 4, 5):
                saved = copy.deepcopy(state.state_dict()["arrays"])
                bad = inputs[dist.get_rank()].clone()
                bad[3, 7] = float("nan")
                said = "parameter parts.3 has a NaN or an infinity"
                if whole:
                    raised(RuntimeError, said, lambda bad=bad: model(*bad).backward())
                else:  # backward does not wait for the exchange of some parameters
                    ((net.parts[3] * bad[3]).sum() + (net.parts[2] * bad[2]).sum()).backward()
                    raised(RuntimeError, said, optimizer.zero_grad)
                optimizer.zero_grad()
                assert same(saved, state.state_dict()["arrays"])
            optimizer.zero_grad()
            model(*inputs[dist.get_rank()]).backward()
            optimizer.step()
            for part, x in zip(total, inputs.mean(0)):
                part += x
        state.close()
        for parameter, exact in zip(net.parts, total):
            torch.testing.assert_close(parameter.detach(), -exact, rtol=0, atol=1e-5)

    with one_bucket_for_each():
        for make, whole in ((distributed, True), (distributed, False), (hooked, True)):
            drained(make, whole)


def _finish_a_drop(state):
    """Do what the next backward does first."""
    state.gradients.undo.begin()


@on_workers(2)
def test_an_optimizer_that_steps_twice_with_a_closure_needs_a_context():
    """SAM: the first averages serve to find a point, and only the averages there are applied."""

    class Sam(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {})
            self.base = torch.optim.SGD(self.param_groups, lr=1.0)

        def step(self, closure):
            parameters = [p for group in self.param_groups for p in group["params"]]
            moved = [0.05 * p.grad for p in parameters]
            with torch.no_grad():
                torch._foreach_add_(parameters, moved)
            with torch.enable_grad():
                closure()
            with torch.no_grad():
                torch._foreach_sub_(parameters, moved)
            self.base.step()

    class Linear(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(1000))

        def forward(self, x):
            return (self.w * x).sum()

    def train_by_sam(make):
        net = model = Linear()
        optimizer = Sam(net.parameters())
        if make is distributed:
            bps.DistributedOptimizer(optimizer, net.named_parameters(), compression_params=TOPK)
            state = optimizer
        else:
            model = DistributedDataParallel(net)
            state = bps.CompressionState(net.named_parameters(), TOPK, optimizer)
            model.register_comm_hook(state, bps.compression_hook)
        random, exact = torch.Generator().manual_seed(0), torch.zeros(1000)

        def compute(x):
            optimizer.zero_grad()
            model(x).backward()

        for step in range(90):  # the gradients of the last steps are zeros, which drains residuals
            inputs = torch.randn(dist.get_world_size(), 1000, generator=random) * (step < 10)
            exact += inputs.mean(0)
            closure = functools.partial(compute, inputs[dist.get_rank()])
            with state.not_applied():
                closure()
            optimizer.step(closure)
        assert torch.allclose(net.w.detach(), -exact, atol=1e-5), make
        compute(torch.ones(1000))
        raised(RuntimeError, "with state.not_applied()", lambda: optimizer.step(closure))
        getattr(state, "compression_state", state).close()

    for make in (hooked, distributed):
        train_by_sam(make)


@on_workers(2)
def test_a_checkpoint_leaves_out_gradients_that_nobody_used():
    for make in (hooked, sharded):

        def iterate(model, optimizer, steps):
            for step in steps:
                optimizer.zero_grad()
                loss_of(model, step).backward()
                optimizer.step()
                optimizer.zero_grad()
                loss_of(model, 50 + step).backward()

        for first in (0, 1, 3):  # before the first step, after the first drop, and later
            model, optimizer, state = make(TOPK)
            iterate(model, optimizer, range(first))
            weights = [local(p).clone() for p in parameters(model)]
            saved = copy.deepcopy((state.state_dict(), optimizer.state_dict()))
            iterate(model, optimizer, range(first, 6))
            other, optimizer, resumed = make(TOPK)
            for parameter, values in zip(parameters(other), weights):
                local(parameter).copy_(values)
            resumed.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
            iterate(other, optimizer, range(first, 6))
            for mine, theirs in zip(parameters(model), parameters(other)):
                assert torch.equal(local(mine), local(theirs)), (make, first)
            for each in (state, resumed):
                getattr(each, "close", lambda: None)()


def parameters(model):
    return [parameter.detach() for parameter in model.parameters()]


def local(parameter):
    return getattr(parameter, "to_local", lambda: parameter)()


@on_workers(2)
def test_averages_that_backward_adds_to_are_one_step():
    """Two synchronised backward passes a step. Error feedback makes up for both."""
    without_momentum = {**ONEBIT, "momentum": None}
    for make in (hooked, sharded, with_an_empty_shard):
        for params in (without_momentum, TOPK):
            model, optimizer, state = make(params)
            for group in optimizer.param_groups:
                group["lr"] = 0.0
            errors, total = {}, 0.0
            exact = torch.cat([gradient.reshape(-1) for gradient in gradients_of_two(model, make)])
            with logged() as lines:
                for step in range(1, 41):
                    optimizer.zero_grad()
                    for number in range(2):
                        loss_of(model, number).backward()
                    total += torch.cat([full(p.grad).reshape(-1) for p in model.parameters()])
                    optimizer.step()
                    errors[step] = float((total / step - exact).norm())
            assert errors[40] < 0.6 * errors[8], (make, params, errors)
            assert not lines, lines
            if make is hooked:
                assert state.steps == 40
            getattr(state, "close", lambda: None)()


@on_workers(2)
def test_gradients_of_autograd_grad_change_nothing():
    """A norm is logged between a backward that is dropped and zero_grad."""
    weights = []
    for logs in (False, True):
        net, optimizer, ddp, state = wrapped(TOPK)
        for step in range(4):
            loss_of(ddp, 50 + step).backward()
            if logs:
                torch.autograd.grad(loss_of(net, step), list(net.parameters()))
            optimizer.zero_grad()
            loss_of(ddp, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        weights.append(flat(net))
        state.close()
    assert torch.equal(*weights)


@on_workers(2)
def test_two_optimizers_may_be_given_all_names():
    def trained_by(own_names):
        net = Net()
        layers = [net.first, net.second], [net.last]
        optimizers = []
        for parts in layers:
            parameters = [p for part in parts for p in part.parameters()]
            names = [(n, p) for n, p in net.named_parameters() if any(p is q for q in parameters)]
            optimizers.append(
                bps.DistributedOptimizer(
                    torch.optim.SGD(parameters, lr=0.1),
                    names if own_names else net.named_parameters(),
                    compression_params=TOPK,
                )
            )
        for step in range(4):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss_of(net, step).backward()
            for optimizer in optimizers:
                optimizer.step()
        for optimizer in optimizers:
            optimizer.compression_state.close()
        return flat(net)

    assert torch.equal(trained_by(True), trained_by(False))


@on_workers(2)
def test_a_second_state_must_not_take_the_momentum_again():
    for params in (ONEBIT, DGC):
        net, optimizer, ddp, state = wrapped(params)
        train(net, optimizer, ddp, range(2))
        named = list(net.named_parameters())
        again = functools.partial(bps.CompressionState, named, params, optimizer)
        raised(ValueError, "call its close() first, or, if both", again)
        state.close()
        state = again()
        assert state.momentum.mu == 0.9
        state.close()


@on_workers(2)
def test_a_gradient_is_averaged_by_one_distributed_optimizer():
    def state_under_ddp(net):
        state = bps.CompressionState(net.named_parameters(), TOPK)
        DistributedDataParallel(net).register_comm_hook(state, bps.compression_hook)
        return state

    def state_of_optimizer(net):
        inner = torch.optim.SGD(net.parameters(), lr=0.1)
        return bps.DistributedOptimizer(inner, net.named_parameters(), TOPK).compression_state

    said = "averages the gradient of parameter first.weight: call close() of the earlier state"
    for earlier, later in (
        (state_of_optimizer, state_of_optimizer),
        (state_of_optimizer, state_under_ddp),
        (state_under_ddp, state_of_optimizer),
    ):
        net = Net()
        state = earlier(net)
        raised(ValueError, said, lambda later=later, net=net: later(net))
        state.close()
        later(net)  # which is dropped without close()
        state_of_optimizer(net).close()


def with_an_empty_shard(params):
    """A model whose second layer has one row, so one of the workers has no part of it."""
    from torch.distributed.fsdp import fully_shard

    net = Net()
    net.second = torch.nn.Linear(90, 1, bias=False)
    net.last = torch.nn.Linear(1, 5)
    with torch.no_grad():
        net.second.weight.fill_(0.1)
    fully_shard(net.second)
    fully_shard(net)
    return net, torch.optim.SGD(net.parameters()), bps.compress_reduce_scatter(net, params)


def gradients_of_two(model, make):
    """Return the averages that two backward passes give without compression."""
    uncompressed, optimizer, state = make({})
    for number in range(2):
        loss_of(uncompressed, number).backward()
    gradients = [full(parameter.grad) for parameter in uncompressed.parameters()]
    getattr(state, "close", lambda: None)()
    return gradients


@on_workers(2)
def test_momentum_refuses_a_second_average_in_a_step():
    net, optimizer, ddp, state = wrapped(ONEBIT)
    loss_of(ddp, 0).backward()
    second = loss_of(ddp, 1)
    raised(RuntimeError, "were averaged twice before the optimizer's step", second.backward)
    state.close()


@on_workers(2)
def test_a_step_that_fails_is_started_anew():
    """As in a notebook: backward fails, or the user skips a step."""

    class Fails(torch.autograd.Function):
        on = False

        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            if Fails.on:
                raise ValueError("backward failed")
            return gradient

    results = []
    for fails in (False, True):
        torch.manual_seed(0)
        a, b = torch.nn.Linear(20, 8), torch.nn.Linear(8, 5)
        both = torch.nn.ModuleList([a, b])
        optimizer = bps.DistributedOptimizer(sgd(both), both.named_parameters(), ONEBIT)

        def model(x, a=a, b=b):
            return b(Fails.apply(a(x)))

        for step in range(4):
            optimizer.zero_grad()
            if fails and step == 0:
                Fails.on = True
                raised(ValueError, "backward failed", lambda: loss_of(model, 50).backward())
                Fails.on = False
                optimizer.zero_grad()
                loss_of(model, 50).backward()  # the user skips this step
                both.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
        results.append(flat(both))
        optimizer.compression_state.close()
    assert torch.equal(*results)
