"""Which averages an optimizer has applied, in loops of strangers.

The loss is linear, and zero gradients at the end empty the residuals. So the weights must be minus
the sum of the gradients that the optimizer has applied.
"""

import contextlib
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gluon_gc.torch as bps
from tests.torch.common import logged
from tests.torch.workers import on_workers

TOPK = {"compressor": "topk", "k": 0.25, "ef": "vanilla"}
RANDOMK = {"compressor": "randomk", "k": 1, "ef": "vanilla", "seed": 1}
STEPS, DRAINING = 12, 36
LEFT_OUT = (1, 4, 7)  # steps


class Linear(torch.nn.Module):
    """Parameters by name, whose gradients are what forward gets."""

    def __init__(self, **sizes):
        super().__init__()
        for name, size in sizes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(size)))

    def forward(self, **gradients):
        return sum((getattr(self, name) * values).sum() for name, values in gradients.items())


class Drained:
    """The gradients of the steps, and what the weights must be in the end."""

    def __init__(self, size=40):
        self.size, self.expected = size, torch.zeros(size)

    def gradient(self, step, worker=None):
        """Return the gradient of a worker, by default of this one."""
        if step >= STEPS:
            return torch.zeros(self.size)
        worker = dist.get_rank() if worker is None else worker
        return torch.randn(self.size, generator=torch.Generator().manual_seed(2 * step + worker))

    def apply(self, step):
        self.expected -= (self.gradient(step, 0) + self.gradient(step, 1)) / 2

    def check(self, weights, *about):
        error = (weights.detach() - self.expected).norm() / self.expected.norm()
        assert error < 1e-5, (float(error), *about)


def hooked(model, params, optimizer, **more):
    ddp = DistributedDataParallel(model)
    state = bps.CompressionState(model.named_parameters(), params, optimizer, **more)
    ddp.register_comm_hook(state, bps.compression_hook)
    return ddp, state


def distributed(model, params, optimizer, **more):
    bps.DistributedOptimizer(optimizer, model.named_parameters(), params, **more)
    return model, optimizer.compression_state


def sgd(*models, kind=torch.optim.SGD):
    return kind([p for model in models for p in model.parameters()], lr=1.0)


@on_workers(2)
def test_a_skipped_step_of_a_model_with_an_unused_layer():
    """The averages come in `step`, after the hooks of all optimizers."""
    for clips in (False, True):
        model, drained = Linear(a=40, unused=8), Drained()
        optimizer = sgd(model)
        _, state = distributed(model, TOPK, optimizer, on_nonfinite="skip")
        for step in range(DRAINING):
            gradient = drained.gradient(step)
            if step in LEFT_OUT and dist.get_rank() == 0:
                gradient[3] = float("inf")
            optimizer.zero_grad()
            model(a=gradient).backward()
            if step == 6 and clips:
                optimizer.synchronize()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
            optimizer.step()
            if step not in LEFT_OUT:
                drained.apply(step)
            if step == 6:
                state.load_state_dict(state.state_dict())
        drained.check(model.a, clips)
        state.close()


@on_workers(2)
def test_a_dropped_batch_before_a_gradient_without_an_exchange():
    model, drained = Linear(a=40), Drained()
    optimizer = sgd(model)
    ddp, state = hooked(model, TOPK, optimizer)
    for step in range(DRAINING):
        optimizer.zero_grad()
        ddp(a=drained.gradient(step)).backward()
        if step in LEFT_OUT:
            optimizer.zero_grad()
            model(a=torch.ones(40)).backward()  # a penalty, the same on all workers
            drained.expected -= 1
        else:
            drained.apply(step)
        optimizer.step()
    drained.check(model.a)
    state.close()


@on_workers(2)
def test_a_trunk_of_two_losses_one_of_which_is_dropped():
    model, drained = Linear(a=40), Drained()
    optimizer = sgd(model)
    first, second = hooked(model, TOPK, optimizer), hooked(model, TOPK, optimizer)
    for step in range(DRAINING):
        optimizer.zero_grad()
        first[0](a=drained.gradient(step + 1)).backward()
        optimizer.zero_grad()
        second[0](a=drained.gradient(step)).backward()
        optimizer.step()
        drained.apply(step)
    drained.check(model.a)
    first[1].close()
    second[1].close()


class ReturnsEarly(torch.optim.SGD):
    """Resets gradients instead of a step, as optimizers with their own loss scaling do."""

    leaves_out = False

    def step(self, closure=None):
        return self.zero_grad() if self.leaves_out else super().step(closure)


@contextlib.contextmanager
def resetting(optimizer, kind):
    """Let a hook before the step set gradients to None or to zero."""

    def hook(optimizer, args, kwargs):
        if kind != "optimizer":
            optimizer.zero_grad(set_to_none=kind == "none")

    handle = optimizer.register_step_pre_hook(hook)
    yield
    handle.remove()


@on_workers(2)
def test_a_step_that_a_hook_or_the_optimizer_leaves_out():
    for kind in ("none", "zeros", "optimizer"):
        model, drained = Linear(a=40), Drained()
        optimizer = sgd(model, kind=ReturnsEarly)
        ddp, state = hooked(model, TOPK, optimizer)
        for step in range(DRAINING):
            optimizer.leaves_out = step in LEFT_OUT and kind == "optimizer"
            optimizer.zero_grad()
            ddp(a=drained.gradient(step)).backward()
            with resetting(optimizer, kind) if step in LEFT_OUT else contextlib.nullcontext():
                optimizer.step()
            if step not in LEFT_OUT:
                drained.apply(step)
        drained.check(model.a, kind)
        state.close()


class ResetsAfterwards(torch.optim.SGD):
    """Resets gradients after each step."""

    def step(self, closure=None):
        super().step(closure)
        self.zero_grad()


@on_workers(2)
def test_a_step_that_resets_gradients_itself_is_applied():
    model, drained = Linear(a=40), Drained()
    optimizer = sgd(model, kind=ResetsAfterwards)
    ddp, state = hooked(model, TOPK, optimizer)
    for step in range(DRAINING):
        ddp(a=drained.gradient(step)).backward()
        optimizer.step()
        drained.apply(step)
    drained.check(model.a)
    state.close()


@on_workers(2)
def test_two_states_of_one_optimizer_skip_the_same_steps():
    for overflowing in ("a", "b"):
        models = {"a": Linear(a=40), "b": Linear(b=40)}
        drained = {"a": Drained(), "b": Drained()}
        optimizer = sgd(*models.values())
        pairs = {n: hooked(m, TOPK, optimizer, on_nonfinite="skip") for n, m in models.items()}
        for step in range(DRAINING):
            gradients = {name: one.gradient(step) for name, one in drained.items()}
            if step in LEFT_OUT and dist.get_rank() == 0:
                gradients[overflowing][2] = float("inf")
            optimizer.zero_grad()
            sum(ddp(**{name: gradients[name]}) for name, (ddp, _) in pairs.items()).backward()
            optimizer.step()
            if step not in LEFT_OUT:
                for one in drained.values():
                    one.apply(step)
        for name, (_, state) in pairs.items():
            drained[name].check(getattr(models[name], name), overflowing)
            state.close()


@on_workers(2)
def test_an_average_that_is_zero_by_chance_is_applied():
    """randomk sends one element of eight, and only one is not zero."""
    gradient = torch.eye(8)[3]

    def is_trained(passes, clips, synchronizes):
        model = Linear(a=8)
        optimizer = sgd(model)
        ddp, state = hooked(model, RANDOMK, optimizer)
        for step in range(150):
            optimizer.zero_grad()
            for number in range(passes):
                last = number == passes - 1
                with contextlib.nullcontext() if last or synchronizes else ddp.no_sync():
                    ddp(a=gradient if step < 20 else 0 * gradient).backward()
            if clips:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
            optimizer.step()
        assert torch.equal(model.a.detach(), -20 * passes * gradient), (model.a, passes, clips)
        state.close()

    is_trained(1, clips=False, synchronizes=True)
    is_trained(1, clips=True, synchronizes=True)
    is_trained(2, clips=False, synchronizes=False)
    is_trained(2, clips=False, synchronizes=True)


@on_workers(2)
def test_averages_that_float16_rounds_to_zero_are_applied():
    """The least float16 is 6e-8. Residuals add up to it, unless their exchanges are taken back."""

    def train(compressor, shards, passes):
        model = Linear(a=32, tiny=32)
        optimizer, params = sgd(model), {**TOPK, "compressor": compressor, "value_bits": 16}
        if shards:
            fully_shard(model)
            bps.compress_reduce_scatter(model, params)
            optimizer, forward = sgd(model), model
        else:
            forward, state = hooked(model, params, optimizer)
        for _ in range(80 // passes):
            optimizer.zero_grad()
            for _ in range(passes):
                forward(a=torch.ones(32), tiny=torch.full((32,), 1e-8)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
            optimizer.step()
        weights = model.tiny.full_tensor() if shards else model.tiny
        error = (weights.detach() + 80e-8).abs().max()
        assert error < 4e-7, (weights, compressor, shards, passes)
        if not shards:
            state.close()

    with logged() as lines:
        for passes in (1, 2):
            train("topk", shards=False, passes=passes)
            train("blocktopk", shards=False, passes=passes)
            train("topk", shards=True, passes=passes)
    assert not lines, lines


@on_workers(2)
def test_sums_of_shards_that_are_zero_by_chance_are_applied():
    gradient = torch.eye(16)[3] + torch.eye(16)[9]  # one element in each worker's shard
    for passes in (1, 2):
        model = Linear(a=16)
        fully_shard(model)
        bps.compress_reduce_scatter(model, RANDOMK)
        optimizer = sgd(model)
        for step in range(150):
            optimizer.zero_grad()
            for _ in range(passes):
                model(a=gradient if step < 20 else 0 * gradient).backward()
            optimizer.step()
        assert torch.equal(model.a.full_tensor().detach(), -20 * passes * gradient), passes


@on_workers(2)
def test_an_error_in_a_closure_lets_its_step_apply_nothing():
    model, drained = Linear(a=40), Drained()
    optimizer = sgd(model)
    ddp, state = hooked(model, TOPK, optimizer)

    def closure(step, fails):
        optimizer.zero_grad()
        if fails == "before":
            raise KeyError(fails)
        loss = ddp(a=drained.gradient(step))
        loss.backward()
        if fails == "after":
            raise KeyError(fails)
        return loss

    for step in range(DRAINING):
        for fails in ("before", "after") if step in LEFT_OUT else ():
            with contextlib.suppress(KeyError):
                optimizer.step(partial(closure, step, fails))
        optimizer.step(partial(closure, step, ""))
        drained.apply(step)
    drained.check(model.a)
    state.close()
