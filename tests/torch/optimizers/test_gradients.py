"""Gradients of unused layers, and gradients that a script reads or changes, in loops of users.

Each loop is compared with DistributedDataParallel, or with another loop that is known to be right.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gluon_gc.torch as bps
from tests.torch.common import (
    SETTINGS,
    TOPK,
    Net,
    arrays_of,
    assert_alike,
    flat,
    loss_of,
    raised,
    same,
    sgd,
    train,
    train_once,
    wrapped,
)
from tests.torch.workers import on_workers

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
def test_a_distributed_optimizer_and_ddp_may_not_average_the_same_gradients():
    for views in (False, True):
        net = Net()
        unused = DistributedDataParallel(net)
        optimizer = bps.DistributedOptimizer(sgd(net), compression_params=TOPK)
        train(net, optimizer, net, range(2))
        optimizer.compression_state.close()
        ddp = DistributedDataParallel(net, gradient_as_bucket_view=views)
        optimizer = bps.DistributedOptimizer(sgd(net), compression_params=TOPK)
        step = partial(train, net, optimizer, ddp, range(2))
        raised(RuntimeError, "DistributedDataParallel averages gradients of the", step)
        optimizer.compression_state.close()
        del ddp, unused, step
        optimizer = bps.DistributedOptimizer(sgd(net), compression_params=TOPK)
        train(net, optimizer, net, range(2))
        optimizer.compression_state.close()


@on_workers(2)
def test_arguments_that_are_mistaken_are_named():
    net = Net()
    for said, function in (
        ("got Parameter", lambda: bps.CompressionState(net.parameters(), TOPK)),
        ("got str", lambda: bps.CompressionState(net.state_dict(), TOPK)),
        ("got Parameter", lambda: bps.DistributedOptimizer(sgd(net), net.parameters())),
        ("'compression_params'?", lambda: bps.DistributedOptimizer(sgd(net), compresion_params={})),
        (
            "overrides must be",
            lambda: bps.CompressionState(net.named_parameters(), TOPK, overrides=["*.bias"]),
        ),
    ):
        raised(TypeError, said, function)


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
