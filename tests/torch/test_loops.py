"""Training loops as users write them.

Each loop is compared with DistributedDataParallel, or with another loop that is known to be right.
"""

import contextlib
import copy
import functools
import gc
import io
import os
import pickle
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gluon_gc.torch as bps
from tests.torch.common import (
    DGC,
    ONEBIT,
    SETTINGS,
    TOPK,
    Net,
    assert_alike,
    data,
    flat,
    logged,
    loss_of,
    raised,
    sgd,
    train,
    trained,
    wrapped,
)
from tests.torch.workers import on_workers


def arrays_of(state, layer):
    """Return copies of all states of a layer's parameters."""
    arrays = copy.deepcopy(state.state_dict()["arrays"])
    return {name: states for name, states in arrays.items() if name.startswith(layer)}


def same(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(one[name][key], other[name][key]) for name in one for key in one[name]
    )


# States whose hook was not registered


@on_workers(2)
def test_a_state_without_its_hook_is_an_error_in_the_first_step():
    for knows_optimizer in (True, False):
        net = Net()
        optimizer = sgd(net)
        ddp = DistributedDataParallel(net)
        given = optimizer if knows_optimizer else None
        state = bps.CompressionState(net.named_parameters(), TOPK, given)
        before = flat(net)
        optimizer.step()  # no gradient was computed
        loss_of(ddp, 0).backward()
        said = "ddp.register_comm_hook(state, bps.compression_hook)"
        raised(RuntimeError, said, optimizer.step)
        assert torch.equal(flat(net), before)
        ddp.register_comm_hook(state, bps.compression_hook)
        train(net, optimizer, ddp, range(2))
        assert state.steps == 2
        state.close()


@on_workers(2)
def test_steps_without_an_exchange_are_allowed_if_they_are_meant():
    net, optimizer, ddp, state = wrapped(TOPK)
    for p in net.parameters():  # as torch.distributed.checkpoint does, to create the states
        p.grad = torch.zeros_like(p)
    optimizer.step()
    optimizer.zero_grad()
    with ddp.no_sync():
        train(net, optimizer, ddp, range(2))
    assert state.steps == 0
    bps.broadcast_parameters(net.state_dict())  # each worker has made steps of its own
    bps.broadcast_optimizer_state(optimizer)
    train(net, optimizer, ddp, range(2))
    assert state.steps == 2
    state.close()
    loss_of(net, 0).backward()
    optimizer.step()  # the state is closed
    bps.broadcast_parameters(net.state_dict())
    averaging = bps.DistributedOptimizer(sgd(net), net.named_parameters(), TOPK)
    averaging.set_backward_passes_per_step(2)
    loss_of(net, 0).backward()
    with averaging.skip_synchronize():
        averaging.step()
    averaging.compression_state.close()


# Layers that not all workers use in every step


def uses(step, rank):
    """Return whether a worker uses the second layer: all, none, worker 0, all, ..."""
    return (True, False, rank == 0, True)[step % 4]


@on_workers(2)
def test_unused_layers_under_ddp():
    for params in SETTINGS:
        net, optimizer, ddp, state = wrapped(params, {"find_unused_parameters": True})
        _train_with_unused(net, optimizer, state, ddp)
        state.close()


@on_workers(2)
def test_unused_layers_with_the_distributed_optimizer():
    for params in SETTINGS:
        net = Net()
        optimizer = bps.DistributedOptimizer(sgd(net), net.named_parameters(), params)
        state = optimizer.compression_state
        _train_with_unused(net, optimizer, state, net)
        state.close()
        expected, under_ddp = flat(net), wrapped(params, {"find_unused_parameters": True})
        _train_with_unused(*under_ddp[:2], under_ddp[3], under_ddp[2])
        under_ddp[3].close()
        assert torch.equal(flat(under_ddp[0]), expected), params


def _train_with_unused(net, optimizer, state, model):
    for step in range(8):
        before = arrays_of(state, "second"), net.second.weight.detach().clone()
        optimizer.zero_grad()
        short = not uses(step, dist.get_rank())
        loss_of(model, step, short=short).backward()
        optimizer.step()
        assert_alike(flat(net))
        unused = step % 4 == 1
        assert torch.equal(net.second.weight, before[1]) == unused, step
        if before[0]["second.weight"]:
            assert same(arrays_of(state, "second"), before[0]) == unused, step


@on_workers(2)
def test_a_gradient_that_nobody_has_keeps_its_learning_rate():
    def last_average_of_b(rates, without_b=None):
        parameters = {name: torch.nn.Parameter(torch.zeros(50)) for name in "ab"}
        optimizer = torch.optim.SGD(parameters.values(), lr=1.0)
        state = bps.CompressionState(parameters.items(), {**TOPK, "ef": "corrected"}, optimizer)
        generator = torch.Generator().manual_seed(bps.rank())
        for step, rate in enumerate(rates):
            optimizer.param_groups[0]["lr"] = rate
            absent = ["b"] if step == without_b else []
            of_b = torch.zeros(50) if absent else torch.randn(50, generator=generator)
            averages = {"a": torch.ones(50), "b": of_b}
            assert state.average(averages, absent=absent).wait() == set(absent)
            for name, parameter in parameters.items():
                parameter.grad = None if name in absent else averages[name].clone()
            optimizer.step()
        state.close()
        return averages["b"]

    expected = last_average_of_b([0.5, 0.125])
    assert torch.equal(last_average_of_b([0.5, 0.25, 0.125], without_b=1), expected)


@on_workers(2)
def test_unused_layers_are_stepped_as_ddp_steps_them():
    """If no worker uses a layer in a step, its momentum and weight decay are not applied either."""
    nets = []
    for hook in (False, True):
        net = Net()
        optimizer = sgd(net)
        ddp = DistributedDataParallel(net, find_unused_parameters=True)
        if hook:
            state = bps.CompressionState(net.named_parameters(), {}, optimizer)
            ddp.register_comm_hook(state, bps.compression_hook)
        nets.append(net)
        for step in range(8):
            optimizer.zero_grad()
            loss_of(ddp, step, short=not uses(step, dist.get_rank())).backward()
            optimizer.step()
    expected, own = map(flat, nets)
    assert torch.allclose(own, expected, atol=1e-6)
    state.close()


# Gradients that are read or changed between backward and step


def scaled(optimizer_of, clips=False, unused=False):
    """Train with a GradScaler as in PyTorch's documentation."""
    net = Net()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = optimizer_of(net, scaler)
    for step in range(5):
        optimizer.zero_grad()
        scaler.scale(loss_of(net, step, short=unused)).backward()
        if clips:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
    assert_alike(flat(net))
    return flat(net)


@on_workers(2)
def test_a_scaler_unscales_averages():
    for unused in (False, True):
        for clips in (False, True):
            net = Net()
            optimizer = sgd(net)
            for step in range(5):
                optimizer.zero_grad()
                loss_of(net, step, short=unused).backward()
                for parameter in net.parameters():
                    if parameter.grad is not None:
                        dist.all_reduce(parameter.grad)
                        parameter.grad /= dist.get_world_size()
                if clips:
                    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
                optimizer.step()
            for has_scaler in (True, False):
                if unused and clips and not has_scaler:
                    continue  # an error, see the next job

                def distributed(net, scaler, has_scaler=has_scaler):
                    more = {"grad_scaler": scaler} if has_scaler else {}
                    return bps.DistributedOptimizer(sgd(net), net.named_parameters(), {}, **more)

                weights = scaled(distributed, clips, unused)
                assert torch.allclose(weights, flat(net), atol=1e-6), (unused, clips, has_scaler)


@on_workers(2)
def test_gradients_that_are_changed_before_they_are_averaged_are_refused():
    net = Net()
    optimizer = bps.DistributedOptimizer(sgd(net), net.named_parameters(), {})
    train_once(net, optimizer)
    for change in (
        lambda p: p.grad.mul_(2),
        lambda p: setattr(p, "grad", None),
        lambda p: setattr(p, "grad", p.grad.clone()),
    ):
        optimizer.zero_grad()
        loss_of(net, 0, short=True).backward()  # the second layer has no gradient yet
        change(net.last.weight)
        raised(RuntimeError, "gradient of parameter last.weight was changed", optimizer.step)
    optimizer.zero_grad()
    loss_of(net, 0, short=True).backward()
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    optimizer.step()
    assert_alike(flat(net))
    hook = net.last.weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    hooked = list(net.last.weight._post_accumulate_grad_hooks.items())
    net.last.weight._post_accumulate_grad_hooks.clear()
    net.last.weight._post_accumulate_grad_hooks.update(reversed(hooked))  # run it before our hook
    optimizer.zero_grad()
    said = "a hook has set the gradient of parameter last.weight to None"
    raised(RuntimeError, said, lambda: loss_of(net, 0).backward())
    hook.remove()


def train_once(net, optimizer, step=0):
    optimizer.zero_grad()
    loss_of(net, step).backward()
    optimizer.step()


# Gradients that are dropped


def sharded(params):
    from torch.distributed.fsdp import fully_shard

    net = Net()
    for layer in net.children():
        fully_shard(layer)
    fully_shard(net)
    params = {**params, "momentum": None}
    return net, torch.optim.SGD(net.parameters(), lr=0.1), bps.compress_reduce_scatter(net, params)


def hooked(params):
    net, optimizer, ddp, state = wrapped(params)
    return ddp, optimizer, state


def distributed(params):
    net = Net()
    optimizer = bps.DistributedOptimizer(sgd(net), net.named_parameters(), params)
    return net, optimizer, optimizer.compression_state


@on_workers(2)
def test_dropped_gradients_leave_no_trace():
    """As in a GAN: backward of G also makes gradients of D, which are dropped before D's step."""
    for make in (hooked, distributed, sharded):
        for params in (ONEBIT, TOPK, DGC, {**TOPK, "momentum": "nesterov"}, {}):
            if make is sharded and params is DGC:
                continue  # dgc has its own momentum
            for set_to_none in (True, False):
                weights = []
                for drops in (False, True):
                    model, optimizer, state = make(params)
                    for step in range(4):
                        if drops:
                            (-5 * loss_of(model, 50 + step)).backward()
                            optimizer.zero_grad(set_to_none)
                        loss_of(model, step).backward()
                        optimizer.step()
                        optimizer.zero_grad(set_to_none)
                    weights.append([full(p) for p in model.parameters()])
                    getattr(state, "close", lambda: None)()
                assert all(map(torch.equal, *weights)), (make, params, set_to_none)


def full(parameter):
    whole = getattr(parameter, "full_tensor", lambda: parameter)()
    return whole.detach().clone()


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


def _finish_a_drop(state):
    """Do what the next backward does first."""
    state.gradients.undo.begin()


@on_workers(2)
def test_skipped_steps_do_not_move_momentum():
    """One layer overflows. The compressor sends all elements, so weights are those of DDP."""
    lossless = {"compressor": "topk", "k": 10**6, "momentum": "nesterov"}

    def trained_with(params, scales):
        net = Net()
        optimizer = sgd(net)
        ddp = DistributedDataParallel(net)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=scales)
        handling = {"grad_scaler": scaler} if scales else {"on_nonfinite": "skip"}
        if params is not None:
            state = bps.CompressionState(net.named_parameters(), params, optimizer, **handling)
            ddp.register_comm_hook(state, bps.compression_hook)
        for step in range(8):
            optimizer.zero_grad()
            overflow = float("inf") if step in (3, 4, 6) and dist.get_rank() else 0.0
            loss = loss_of(ddp, step) + overflow * net.last.bias.sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        if params is not None:
            state.close()
        return flat(net)

    plain = trained_with(None, True)
    with logged():
        for scales in (True, False):
            assert torch.allclose(trained_with(lossless, scales), plain, atol=1e-6), scales


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
def test_gradients_that_are_added_before_they_are_dropped_leave_no_trace():
    """As in the tutorials' GAN: nobody resets D's used gradients before backward of G."""
    for make in (hooked, sharded):
        weights = []
        for drops in (False, True):
            model, optimizer, state = make(TOPK)
            for step in range(4):
                if drops:
                    (-5 * loss_of(model, 50 + step)).backward()
                optimizer.zero_grad()
                loss_of(model, step).backward()
                optimizer.step()
            weights.append([full(p) for p in model.parameters()])
            getattr(state, "close", lambda: None)()
        assert all(map(torch.equal, *weights)), make


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


class TwoHeads(torch.nn.Module):
    """A head for each of two losses."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.trunk = torch.nn.Linear(20, 30)
        self.heads = torch.nn.ModuleList(torch.nn.Linear(30, 5) for _ in range(2))

    def forward(self, x, head):
        return self.heads[head](self.trunk(x).relu())


@on_workers(2)
def test_losses_of_several_heads_have_a_backward_each():
    """Pass 1 uses other layers than pass 2, also on one of the workers only."""
    rank, blockwise = dist.get_rank(), {"compressor": "blockwise", "bits": 2, "ef": "vanilla"}
    for heads in ((0, 1), (rank, 1 - rank), (rank, 0)):
        for view in (False, True):
            exact = heads_averaged(None, heads, 1, view)
            lossless = heads_averaged({}, heads, 1, view)
            for name, gradient in exact.items():
                assert torch.allclose(lossless[name], gradient, atol=1e-6), (heads, view, name)
            with logged() as lines:
                few, many = (heads_averaged(blockwise, heads, count, view) for count in (6, 36))
            assert not lines, lines
            for name, gradient in exact.items():
                before, after = (float((g[name] - gradient).norm()) for g in (few, many))
                assert after < 0.75 * before or after < 1e-6, (heads, view, name, before, after)


def heads_averaged(params, heads, count, view):
    """Return the mean of `count` steps' gradients, with a learning rate of 0."""
    net = TwoHeads()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    options = {"find_unused_parameters": True, "gradient_as_bucket_view": view}
    ddp = DistributedDataParallel(net, bucket_cap_mb=0.001, **options)
    state = None
    if params is not None:
        state = bps.CompressionState(net.named_parameters(), params, optimizer)
        ddp.register_comm_hook(state, bps.compression_hook)
    total = {name: torch.zeros_like(parameter) for name, parameter in net.named_parameters()}
    for _ in range(count):
        optimizer.zero_grad()
        for number, head in enumerate(heads):
            x, y = data(number)
            torch.nn.functional.cross_entropy(ddp(x, head), y).backward()
        for name, parameter in net.named_parameters():
            if parameter.grad is not None:
                total[name] += parameter.grad
        optimizer.step()
    if state is not None:
        state.close()
    return {name: gradients / count for name, gradients in total.items()}


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


# Workers that are not in the same step


SIGNS = {"compressor": "onebit", "scaling": True, "ef": "vanilla"}


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


# Tied weights


class Tied(torch.nn.Module):
    """An encoder and a decoder that share their weight."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.middle = torch.nn.Linear(20, 40), torch.nn.Linear(40, 40)
        self.decoder = torch.nn.Linear(40, 20, bias=False)
        self.decoder.weight = torch.nn.Parameter(self.encoder.weight.detach().T.contiguous())
        self.encoder.register_parameter("weight", self.decoder.weight)

    def forward(self, x):
        x = torch.nn.functional.linear(x, self.encoder.weight.T, self.encoder.bias).tanh()
        return self.decoder(self.middle(x).tanh())


@on_workers(2)
def test_a_tied_weight_under_two_names_is_one_parameter():
    both = [name for name, _ in Tied().named_parameters(remove_duplicate=False)]
    names = {"both": both}
    for kind, left_out in (("once", "decoder.weight"), ("second", "encoder.weight")):
        names[kind] = [name for name in both if name != left_out]
    adam = functools.partial(torch.optim.AdamW, lr=0.01)
    nesterov = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    for algorithm, params, optimizer_of in (
        (None, {}, adam),
        (None, {**SIGNS, "momentum": "nesterov"}, nesterov),
        ({"name": "local_steps", "every": 3}, SIGNS, adam),
        ({"name": "powersgd", "rank": 2}, {}, adam),
        ({"name": "onebit_adam", "freeze_step": 3}, SIGNS, adam),
        ({"name": "zero_one_adam", "var_freeze_step": 3}, SIGNS, adam),
    ):

        def made(kind, a=algorithm, p=params, of=optimizer_of):
            net = Tied()
            named = [(name, net.get_parameter(name)) for name in names[kind]]
            optimizer = bps.DistributedOptimizer(
                of(net.parameters()), named, compression_params=p, algorithm=a
            )
            return net, optimizer

        def trained_from(net, optimizer, steps):
            for step in steps:
                optimizer.zero_grad()
                net(data(step)[0]).pow(2).sum().backward()
                optimizer.step()
            return flat(net)

        weights, saved = {}, {}
        for kind in ("once", "both", "second"):
            net, optimizer = made(kind)
            trained_from(net, optimizer, range(4))
            saved[kind] = copy.deepcopy(
                (net.state_dict(), optimizer.state_dict(), optimizer.compression_state.state_dict())
            )
            weights[kind] = trained_from(net, optimizer, range(4, 7))
            optimizer.compression_state.close()
        assert torch.equal(weights["once"], weights["both"]), algorithm
        for kind, other in (("once", "both"), ("both", "once"), ("both", "second")):
            net, optimizer = made(other)
            net.load_state_dict(saved[kind][0])
            optimizer.load_state_dict(saved[kind][1])
            state = optimizer.compression_state
            state.load_state_dict(saved[kind][2])
            if other != "second":  # another order, so that other workers own the chunks
                assert torch.equal(trained_from(net, optimizer, range(4, 7)), weights[kind]), kind
            elif algorithm is None:
                there, here = (s["arrays"] for s in (saved[kind][2], state.state_dict()))
                assert there["encoder.weight"].keys() == here["decoder.weight"].keys()
                for key, array in there["encoder.weight"].items():
                    assert torch.equal(array, here["decoder.weight"][key]), key
            optimizer.compression_state.close()


# Kinds of tensors


ALGORITHMS = (
    None,
    {"name": "local_steps", "every": 2},
    {"name": "powersgd", "rank": 2},
    {"name": "onebit_adam", "freeze_step": 2},
    {"name": "zero_one_adam", "var_freeze_step": 2},
)


class Odd(torch.nn.Module):
    """A scalar parameter, like CLIP's logit_scale, and empty ones."""

    def __init__(self, scalar):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(20, 5)
        shape = () if scalar else (1,)
        self.scale = torch.nn.Parameter(torch.full(shape, 0.5))
        self.none = torch.nn.ParameterList(torch.empty(s) for s in ((0,), (0, 3), (2, 0, 4)))

    def forward(self, x):
        return self.linear(x) * self.scale.exp() + sum(p.sum() for p in self.none)


@on_workers(2)
def test_scalar_and_empty_parameters():
    for algorithm in ALGORITHMS:
        weights = []
        for scalar in (True, False):
            net = Odd(scalar)
            optimizer = bps.DistributedOptimizer(
                torch.optim.AdamW(net.parameters(), lr=0.01),
                net.named_parameters(),
                compression_params={} if algorithm == ALGORITHMS[2] else SIGNS,
                algorithm=algorithm,
            )
            for step in range(6):
                optimizer.zero_grad()
                loss_of(net, step).backward()
                optimizer.step()
                if step == 3:
                    state = optimizer.compression_state
                    state.load_state_dict(copy.deepcopy(state.state_dict()))
            weights.append(flat(net))
            optimizer.compression_state.close()
        assert torch.equal(*weights), algorithm


@on_workers(2)
def test_another_default_device_changes_nothing():
    """The default device of the tensors that a script makes, not of its model."""
    automatic = {"compressor": "auto"}
    settings = [(params, None) for params in (SIGNS, TOPK, automatic, {})]
    settings += [({}, algorithm) for algorithm in ALGORITHMS[1:]]
    for params, algorithm in settings:
        weights = []
        for device in ("cpu", "meta"):
            net = Net()
            inner = torch.optim.Adam(net.parameters(), lr=0.01)
            if algorithm is None:
                inner = torch.optim.SGD(net.parameters(), lr=0.1)
            batches = [data(step) for step in range(4)]
            torch.set_default_device(device)
            try:
                optimizer = bps.DistributedOptimizer(
                    inner, net.named_parameters(), compression_params=params, algorithm=algorithm
                )
                for x, y in batches:
                    optimizer.zero_grad()
                    torch.nn.functional.cross_entropy(net(x), y).backward()
                    optimizer.step()
                optimizer.compression_state.state_dict()
                optimizer.compression_state.close()
            finally:
                torch.set_default_device(None)
            weights.append(flat(net))
        if params is not automatic:
            assert torch.equal(*weights), (params, algorithm)


@on_workers(2)
def test_states_that_are_dropped_leave_no_threads():
    """The workers' garbage collectors find them at different times."""
    local_steps = {"name": "local_steps", "every": 2}

    def fold(kind):
        torch.manual_seed(0)
        net = model = torch.nn.Linear(20, 5)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        if kind == "hook":
            model = DistributedDataParallel(net)
            state = bps.CompressionState(net.named_parameters(), SIGNS, optimizer)
            model.register_comm_hook(state, bps.compression_hook)
        else:
            algorithm = local_steps if kind == "local_steps" else None
            optimizer = bps.DistributedOptimizer(
                optimizer, net.named_parameters(), SIGNS, algorithm=algorithm
            )
        train(net, optimizer, model, range(2))
        assert_alike(flat(net))

    for kind in ("hook", "optimizer", "local_steps"):
        seen = []
        for number in range(4):
            fold(kind)
            if number % 2 == dist.get_rank() or number == 3:
                gc.collect()
            seen.append((threading.active_count(), len(os.listdir("/proc/self/fd"))))
        fold(kind)
        gc.collect()
        threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
        assert threads <= seen[0][0] and files <= max(each[1] for each in seen), (kind, seen)


class Complex(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.real = torch.nn.Parameter(torch.randn(30))
        self.complex = torch.nn.Parameter(torch.randn(40, 20, dtype=torch.complex64))
        turned = torch.randn(6, 4, dtype=torch.complex64).t()
        self.turned = torch.nn.Parameter(turned)

    def forward(self, x):
        return (self.complex * x).abs().sum() * self.real.sum() + (self.turned * 1j).real.sum()


@on_workers(2)
def test_complex_parameters():
    def run(model, optimizer, step=lambda: None):
        for i in range(3):
            generator = torch.Generator().manual_seed(10 * i + dist.get_rank())
            optimizer.zero_grad()
            x = torch.randn(40, 20, dtype=torch.complex64, generator=generator)
            model(x).backward()
            optimizer.step()

    def values(net):
        return torch.cat([torch.view_as_real(p + 0j).reshape(-1) for p in net.parameters()])

    net = Complex()
    run(DistributedDataParallel(net), torch.optim.SGD(net.parameters(), 0.001))
    expected = values(net)
    for params in ({}, {"compressor": "bytegrad"}, {**ONEBIT, "momentum": None}):
        net = Complex()
        optimizer = torch.optim.SGD(net.parameters(), 0.001)
        ddp = DistributedDataParallel(net)
        state = bps.CompressionState(net.named_parameters(), params)
        ddp.register_comm_hook(state, bps.compression_hook)
        run(ddp, optimizer)
        other = Complex()
        inner = torch.optim.SGD(other.parameters(), 0.001)
        run(other, bps.DistributedOptimizer(inner, other.named_parameters(), params))
        assert torch.equal(values(net), values(other))
        assert_alike(values(net))
        if "ef" not in params:
            assert torch.allclose(values(net), expected, rtol=0.05, atol=1e-3)
        state.close()


@on_workers(2)
def test_complex_parameters_fully_sharded():
    from torch.distributed.fsdp import fully_shard

    def gradient(params):
        net = Complex()
        del net.turned, net.real  # fully_shard needs contiguous parameters of one dtype
        net.forward = lambda x: ((net.complex * x).abs() + (net.complex * x).imag).sum()
        fully_shard(net)
        if params is not None:
            bps.compress_reduce_scatter(net, params)
        generator = torch.Generator().manual_seed(dist.get_rank())
        net(torch.randn(40, 20, dtype=torch.complex64, generator=generator)).backward()
        return net.complex.grad.full_tensor()

    expected = gradient(None)
    assert expected.imag.abs().max() > 0.1
    for params in ({}, {"compressor": "bytegrad"}):
        assert torch.allclose(gradient(params), expected, rtol=0.1, atol=0.05), params


class Embedded(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(100, 8, sparse=True)
        self.unused = torch.nn.Embedding(10, 8, sparse=True)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, ids, also=False):
        x = self.embedding(ids) + (self.unused(ids % 10) if also else 0)
        return self.head(x).pow(2).sum()


@on_workers(2)
def test_sparse_gradients():
    def run(model, optimizer, sometimes=False):
        for step in range(4):
            generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
            optimizer.zero_grad()
            ids = torch.randint(100, (5,), generator=generator)
            also = not sometimes or (step in (0, 2) and dist.get_rank() == step // 2)
            model(ids, also=also).backward()
            optimizer.step()

    class Averaging(torch.optim.SGD):
        """Averages gradients correctly; PyTorch 2.13's DDP divides sparse ones twice."""

        def step(self):
            for parameter in self.param_groups[0]["params"]:
                dense = parameter.grad.to_dense()
                dist.all_reduce(dense)
                parameter.grad = dense / dist.get_world_size()
            super().step()

    momentum = {"lr": 0.01, "momentum": 0.9, "nesterov": True}
    net = Embedded()
    run(net, Averaging(net.parameters(), **momentum))
    expected = flat(net)
    for params in ({}, ONEBIT):
        results = []
        for hook in (True, False):
            net = Embedded()
            optimizer = torch.optim.SGD(net.parameters(), **momentum)
            if hook:
                model = DistributedDataParallel(net)
                state = bps.CompressionState(net.named_parameters(), params, optimizer)
                model.register_comm_hook(state, bps.compression_hook)
            else:
                model = net
                optimizer = bps.DistributedOptimizer(optimizer, net.named_parameters(), params)
                state = optimizer.compression_state
            run(model, optimizer)
            assert_alike(flat(net))
            pushed = state.compression_stats()["tensors"]["embedding.weight"]["pushed_bytes"]
            assert 0 < pushed <= 5 * (8 + 8 * 4)
            results.append(flat(net))
            state.close()
        assert torch.allclose(*results, atol=1e-6)
        if not params:
            assert torch.allclose(results[0], expected, atol=1e-5)
    net = Embedded()
    inner = torch.optim.SGD(net.parameters(), **momentum)
    optimizer = bps.DistributedOptimizer(inner, net.named_parameters(), ONEBIT)
    before = net.unused.weight.detach().clone()
    run(net, optimizer, sometimes=True)  # in step 2, worker 1 has its first gradient for the layer
    assert_alike(flat(net))
    assert not torch.equal(net.unused.weight, before)
    optimizer.compression_state.close()


@on_workers(2)
def test_residuals_are_of_the_same_elements_in_every_memory_format():
    def residual(memory_format, hook):
        torch.manual_seed(0)
        net = torch.nn.Conv2d(4, 8, 3).to(memory_format=memory_format)
        params = {"compressor": "topk", "k": 0.01, "ef": "vanilla"}
        model = net
        if hook:
            model = DistributedDataParallel(net)
            state = bps.CompressionState(net.named_parameters(), params)
            model.register_comm_hook(state, bps.compression_hook)
        else:
            inner = torch.optim.SGD(net.parameters(), lr=0.0)
            optimizer = bps.DistributedOptimizer(inner, net.named_parameters(), params)
            state = optimizer.compression_state
        torch.manual_seed(dist.get_rank())
        model(torch.randn(2, 4, 8, 8)).pow(2).sum().backward()
        arrays = state.state_dict()["arrays"]["weight"]
        gradient = net.weight.grad.clone()
        state.close()
        return arrays["worker.residual.0"], gradient

    expected, gradient = residual(torch.contiguous_format, True)
    assert_alike(gradient)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        for hook in (True, False):
            own, averaged = residual(memory_format, hook)
            assert torch.allclose(own, expected, rtol=1e-4, atol=1e-4)
            assert torch.allclose(averaged, gradient, rtol=1e-4, atol=1e-4)


@on_workers(2)
def test_numbers_of_every_kind():
    rank, push_pull = dist.get_rank(), bps.push_pull
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        most = torch.iinfo(dtype).max
        full = torch.tensor([most, most - rank, 0], dtype=dtype)
        expected = torch.tensor([most, most - 1, 0], dtype=dtype)
        sparse = torch.sparse_coo_tensor([[0, 1, 2]], full, (4,), check_invariants=False)
        said = "the sum of tensor 'full' over all workers must be in"
        for x in (full, sparse):
            assert torch.equal(push_pull(x).to_dense()[:3], expected)
            raised(OverflowError, said, lambda x=x: push_pull(x, average=False, name="full"))
        assert push_pull(torch.tensor(3, dtype=dtype), average=False).item() == 6
        values = torch.tensor([3, most // 2, 2], dtype=dtype)
        places = torch.tensor([[0, 2 + rank, 0], [1, 1, 0]])
        sparse = torch.sparse_coo_tensor(places, values, (4, 2), check_invariants=False)
        total = push_pull(sparse, average=False).to_dense()
        assert total[:, 1].tolist() == [6, 0, most // 2, most // 2] and total[0, 0].item() == 4
    values = torch.tensor([2**63 + 1 - 2 * rank, 1 - rank], dtype=torch.uint64)
    assert push_pull(values).tolist() == [2**63, 0]
    assert push_pull(torch.tensor([2**62 - 1]), average=False).item() == 2**63 - 2
    assert push_pull(torch.tensor([40000.0], dtype=torch.float16)).item() == 40000
    for dtype in (torch.complex64, torch.complex128):
        values = torch.tensor([1 + 2j, rank * 1j], dtype=dtype)
        assert torch.equal(push_pull(values), torch.tensor([1 + 2j, 0.5j], dtype=dtype))
        expected = torch.tensor([1 - 2j, -0.5j], dtype=dtype)
        assert torch.equal(push_pull(values.conj()), expected)
        assert torch.equal(bps.push_pull_inplace(values.conj()), expected)
    places = torch.tensor([[0, 2 + rank]])
    values = torch.sparse_coo_tensor(places, torch.ones(2), (5,), check_invariants=False)
    expected = torch.tensor([1.0, 0.0, 0.5, 0.5, 0.0])
    assert torch.equal(push_pull(values).to_dense(), expected)
    assert torch.equal(push_pull(values, average=False).to_dense(), 2 * expected)
    assert torch.equal(push_pull(torch.full((2, 3), float(rank)).t()), torch.full((3, 2), 0.5))
    assert push_pull(torch.zeros(0)).shape == (0,)
    raised(
        TypeError, "tensor 'b' has dtype bool", lambda: push_pull(torch.tensor([True]), name="b")
    )
    compressed_rows = torch.eye(3).to_sparse_csr()
    raised(TypeError, "tensor has layout torch.sparse_csr", lambda: push_pull(compressed_rows))
    expanded = torch.full((1, 3), float(rank)).expand(2, 3)
    raised(RuntimeError, "tensor is expanded", lambda: bps.push_pull_inplace(expanded))
    assert torch.equal(push_pull(expanded), torch.full((2, 3), 0.5))
    raised(
        TypeError, "tensor 'n' must be a torch.Tensor, got 3.0", lambda: push_pull(3.0, name="n")
    )
    bps.declare("compressed", compressor="topk", k=2)
    declared = push_pull(torch.tensor([0j, 3 + 1j, 1j]), name="compressed")
    assert torch.equal(declared, torch.tensor([0j, 3 + 1j, 0j])), declared
    for kind in (torch.bool, torch.bfloat16, torch.complex64, torch.int8):
        values = torch.full((2, 2), rank, dtype=kind)
        bps.broadcast_parameters({"a": values, "b": None}, root_rank=1)
        assert torch.equal(values, torch.ones(2, 2, dtype=kind))


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


@on_workers(2)
def test_closing_gives_momentum_back():
    net = Net()
    optimizer = sgd(net)
    ddp = DistributedDataParallel(net)
    given = {"momentum": 0.9, "nesterov": True}
    for _ in range(2):  # a second state works like the first
        state = bps.CompressionState(net.named_parameters(), ONEBIT, optimizer)
        (group,) = optimizer.param_groups
        assert {key: group[key] for key in given} == given
        (saved,) = optimizer.state_dict()["param_groups"]
        assert {key: saved[key] for key in given} == given
        with logged() as lines:
            optimizer.load_state_dict(optimizer.state_dict())
        assert optimizer.param_groups[0]["momentum"] == 0.9 and not lines
        state.close()
        (group,) = optimizer.param_groups
        assert {key: group[key] for key in given} == given
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_state_dict_post_hooks
    raised(RuntimeError, "is closed", lambda: state.average({}))
    fresh = sgd(net, momentum=0.0, nesterov=False)
    fresh.load_state_dict(optimizer.state_dict())  # before a state exists
    bps.CompressionState(net.named_parameters(), ONEBIT, fresh).close()
    del ddp


@on_workers(2)
def test_whole_numbers_of_numpy():
    import numpy as np

    net = Net()
    state = bps.CompressionState(net.named_parameters(), DGC)
    state.set_epoch(np.int64(3))
    raised(TypeError, "epoch must be a whole number", lambda: state.set_epoch(3.0))
    raised(TypeError, "epoch must be a whole number", lambda: state.set_epoch(True))
    state.close()
    optimizer = bps.DistributedOptimizer(sgd(net), net.named_parameters(), TOPK, np.int32(2))
    optimizer.set_backward_passes_per_step(np.int64(1))
    for wrong in (0, 1.5, True, "2"):
        raised(
            ValueError,
            "backward_passes_per_step must be a whole number > 0",
            lambda w=wrong: optimizer.set_backward_passes_per_step(w),
        )
    optimizer.compression_state.close()


@on_workers(2)
def test_whoever_waits_is_told_of_an_error_at_the_end():
    """Values cannot be written back to an expanded view."""
    state = bps.CompressionState({"w": torch.nn.Parameter(torch.zeros(3))}.items(), {})
    values = torch.zeros(1, dtype=torch.float16).expand(3)
    raised(RuntimeError, "", lambda: state.average({"w": values}).wait())
    state.close()
    bps.declare("expanded", compressor="topk", k=1)
    said = "tensor 'expanded' is expanded"
    raised(RuntimeError, said, lambda: bps.push_pull_inplace(values, name="expanded"))


@on_workers(2)
def test_everything_is_averaged_once():
    """step() after synchronize(), without skip_synchronize(), does not average again."""
    results = []
    for synchronizes in (False, True):
        net = Net()
        optimizer = bps.DistributedOptimizer(sgd(net), net.named_parameters(), ONEBIT)
        for step in range(3):
            optimizer.zero_grad()
            loss_of(net, step).backward()
            if synchronizes:
                optimizer.synchronize()
                optimizer.synchronize()
            optimizer.step()
        results.append(flat(net))
        assert optimizer.compression_state.steps == 3
        optimizer.compression_state.close()
    assert torch.equal(*results)
    assert torch.equal(results[0], trained(ONEBIT, steps=3))


# Rounds of init and shutdown


@on_workers(2)
def test_rounds_of_init_and_shutdown_leave_nothing():
    bps.shutdown()
    counts = []
    for number in range(4):
        bps.init(timeout=timedelta(seconds=50 + number))
        net, optimizer, ddp, state = wrapped(ONEBIT)
        train(net, optimizer, ddp, range(2))
        bps.push_pull(torch.ones(3))
        other = Net()
        distributed = bps.DistributedOptimizer(sgd(other), other.named_parameters(), TOPK)
        train_once(other, distributed)
        if number % 2:
            state.close()
        del net, optimizer, ddp, state, other, distributed
        bps.shutdown()
        folders = ("/proc/self/fd", "/proc/self/task")
        counts.append([len(os.listdir(folder)) for folder in folders])
    assert counts[1:] == counts[:-1], counts
    bps.init()


def a_time_out_of_init_reaches_all_groups():
    """Worker 1 does not take part, and worker 0 gets an error."""
    bps.shutdown()
    bps.init(timeout=timedelta(seconds=2))
    a_worker_that_does_not_come_is_given_up()


def a_longer_time_out_of_the_script_is_kept():
    """Needs GLUON_GC_TIMEOUT=1. Worker 1 is late, and later it does not come."""
    store, rank, size = dist.distributed_c10d._get_default_store(), bps.rank(), bps.size()
    bps.shutdown()
    raised(ValueError, "timeout must be above 0, got -1.0 s", lambda: bps.init(timeout=-1))
    store = dist.PrefixStore("of the script", store)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=30)
    )
    bps.init()
    net, optimizer, ddp, state = wrapped(ONEBIT)
    if rank == 1:
        time.sleep(2.5)
    train(net, optimizer, ddp, range(2))
    if rank == 1:
        time.sleep(1.5)
    assert bps.push_pull(torch.ones(1)) == 1
    bps.shutdown()
    bps.init(timeout=1)
    bps.push_pull(torch.ones(1))
    if rank == 0:
        said = "worker 0 waits until all workers call push_pull, but worker 1 did not come: "
        raised(RuntimeError, said, lambda: bps.push_pull(torch.ones(1)))
    else:
        time.sleep(4)
    os._exit(0)


# Missing workers


def a_late_worker_is_named():
    """Needs GLUON_GC_STALL_SECONDS=1."""
    net, optimizer, ddp, state = wrapped(ONEBIT)
    train(net, optimizer, ddp, range(2))  # DDP's buckets are final afterwards
    with logged() as lines:
        if dist.get_rank() == 1:
            time.sleep(3)
        train(net, optimizer, ddp, [2])
    waits = any(line.startswith("worker 0 waits for worker 1, for ") for line in lines)
    assert waits == (dist.get_rank() == 0), lines
    with logged() as lines:
        if dist.get_rank() == 1:
            time.sleep(3)
        state.load_state_dict(state.state_dict())
    said = "worker 0 waits until all workers call load_state_dict"
    assert any(said in line for line in lines) == (dist.get_rank() == 0), lines
    state.close()


def a_worker_that_does_not_come_is_given_up():
    """Needs GLUON_GC_TIMEOUT=2. Worker 1 does not take part, and worker 0 gets an error."""
    net, optimizer, ddp, _ = wrapped(ONEBIT)
    train(net, optimizer, ddp, range(2))  # DDP's buckets are final afterwards
    if dist.get_rank() == 1:
        time.sleep(6)
    else:
        said = "gradients could not be exchanged: another worker may have ended, or made a "
        said += "different call: worker 0 waits for worker 1: "
        raised(RuntimeError, said, lambda: train(net, optimizer, ddp, [2]))
    os._exit(0)
