"""Training loops with schedules, scalers and unusual optimizers.

Each loop is compared with DistributedDataParallel. Compression sends all elements there, so that
the weights must be equal but for rounding.
"""

import copy
import functools
import itertools
from collections import OrderedDict, defaultdict

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

import gluon_gc.torch as bps
from gluon_gc.torch.cross_barrier import CrossBarrier
from tests.torch.common import Net, assert_alike, flat, loss_of, raised, sgd
from tests.torch.workers import on_workers

LOSSLESS = {"compressor": "topk", "k": 10**6, "momentum": "nesterov"}
DGC = {
    "compressor": "dgc",
    "k": 1 - 1e-7,
    "momentum_masking": False,
    "sample_ratio": 1.0,
    "seed": 3,
}
STEPS = 6
CYCLE = dict(max_lr=0.5, total_steps=STEPS + 2, base_momentum=0.5, max_momentum=0.95)


class Run:
    """A network, its optimizer, and the model that averages; `compress` may be called later."""

    def __init__(self, make_optimizer=sgd):
        self.net = Net()
        self.optimizer, self.model, self.state = make_optimizer(self.net), self.net, None

    def with_hook(self, params=None, **more):
        self.model = DistributedDataParallel(self.net, **more.pop("ddp", {}))
        if params is not None:
            named = self.net.named_parameters()
            self.state = bps.CompressionState(named, params, self.optimizer, **more)
            self.model.register_comm_hook(self.state, bps.compression_hook)
        return self

    def with_optimizer(self, params, **more):
        named = self.net.named_parameters()
        self.optimizer = bps.DistributedOptimizer(
            self.optimizer, named, compression_params=params, **more
        )
        self.state = self.optimizer.compression_state
        return self

    def across_barriers(self, params):
        named = self.net.named_parameters()
        self.optimizer = CrossBarrier(self.net, self.optimizer, named, params, num_steps=STEPS)
        self.state = self.optimizer._averager.state
        return self

    def steps(self, numbers, scheduler=None):
        for step in numbers:
            self.optimizer.zero_grad()
            loss_of(self.model, step).backward()
            self.optimizer.step()
            if scheduler:
                scheduler.step()

    def train(self, scheduler_of=None):
        """Train, close the state, and return the weights."""
        self.steps(range(STEPS), scheduler_of and scheduler_of(self.optimizer))
        return self.weights()

    def weights(self):
        weights = flat(self.net)
        if self.state is not None:
            self.state.close()
        return weights

    def load(self, saved):
        model, optimizer = copy.deepcopy(saved)
        self.net.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        return self


def assert_close(own, expected, atol=1e-6):
    assert torch.allclose(own, expected, atol=atol), (own - expected).abs().max()


# Momentum that changes


@on_workers(2)
def test_momentum_follows_a_schedule():
    cycle = functools.partial(OneCycleLR, **CYCLE)
    for nesterov in (True, False):
        make = functools.partial(sgd, nesterov=nesterov)
        expected = Run(make).with_hook().train(cycle)
        ignored = Run(make).with_hook().train(functools.partial(cycle, cycle_momentum=False))
        assert (expected - ignored).abs().max() > 0.03
        dgc = Run(make).with_hook(DGC).train(cycle)  # in the optimizer's form of momentum
        assert_close(dgc, expected, 3e-3)
        if nesterov:
            for overrides in (None, {"*.bias": None}, {"second.*": None, "*.bias": None}):
                assert_close(
                    Run(make).with_hook(LOSSLESS, overrides=overrides).train(cycle), expected
                )
            assert_close(Run(make).with_optimizer(LOSSLESS).train(cycle), expected)
            assert_close(Run(make).across_barriers(LOSSLESS).train(cycle), expected)


class _Relative(LambdaLR):
    """A warm-up that raises the momentum that the optimizer has."""

    def step(self):
        super().step()
        for group in self.optimizer.param_groups:
            group["momentum"] = min(group["momentum"] + 0.1, 0.95)


@on_workers(2)
def test_momentum_follows_a_script_that_reads_its_own_value():
    make = functools.partial(sgd, momentum=0.5)
    warm_up = functools.partial(_Relative, lr_lambda=lambda epoch: 1.0)
    expected = Run(make).with_hook().train(warm_up)
    assert_close(Run(make).with_hook(LOSSLESS).train(warm_up), expected)


@on_workers(2)
def test_momentum_that_cannot_be_followed_is_refused():
    run = Run().with_hook(LOSSLESS)

    def step_with(momentum):
        run.optimizer.zero_grad()
        loss_of(run.model, 0).backward()
        (group,) = run.optimizer.param_groups
        group["momentum"] = momentum
        run.optimizer.step()

    step_with(0.9)
    raised(ValueError, "was changed from 0.9 to 0.8 between", lambda: step_with(0.8))
    step_with(0.8)
    raised(ValueError, "must stay above 0 while", lambda: step_with(0.0))
    run.state.close()


@on_workers(2)
def test_a_checkpoint_continues_a_schedule_of_momentum():
    for params in (LOSSLESS, DGC):
        run = Run().with_hook(params, overrides={"*.bias": None})
        schedule = OneCycleLR(run.optimizer, **CYCLE)
        run.steps(range(3), schedule)
        saved = copy.deepcopy((run.net.state_dict(), run.optimizer.state_dict()))
        state, position = copy.deepcopy((run.state.state_dict(), schedule.state_dict()))
        run.steps(range(3, STEPS), schedule)
        again = Run().with_hook(params, overrides={"*.bias": None})
        schedule = OneCycleLR(again.optimizer, **CYCLE)
        again.load(saved).state.load_state_dict(state)
        schedule.load_state_dict(position)
        again.steps(range(3, STEPS), schedule)
        assert torch.equal(again.weights(), run.weights())


@on_workers(2)
def test_momentum_of_a_plain_checkpoint_is_taken_over():
    for nesterov in (True, False):
        make = functools.partial(sgd, nesterov=nesterov)
        params, atol = (LOSSLESS, 1e-6) if nesterov else (DGC, 3e-3)
        first = Run(make).with_hook()
        first.train()
        saved = copy.deepcopy((first.net.state_dict(), first.optimizer.state_dict()))
        expected = first.train()
        without = Run(make).with_hook(params).load((saved[0], make(first.net).state_dict()))
        assert (expected - without.train()).abs().max() > 0.02
        for overrides in (None, {"*.bias": None}):
            before = Run(make).load(saved).with_hook(params, overrides=overrides)
            after = Run(make).with_hook(params, overrides=overrides).load(saved)
            assert_close(before.train(), expected, atol)
            assert_close(after.train(), expected, atol)
            own = Run(make).load(saved).with_optimizer(params, overrides=overrides)
            assert_close(own.train(), expected, atol)
            later = Run(make).with_hook(params, overrides=overrides)
            later.steps(range(3))
            assert_close(later.load(saved).train(), expected, atol)
    first = Run().with_hook()
    first.train()
    half = Run().with_hook(LOSSLESS)
    if bps.rank() == 0:
        half.load((first.net.state_dict(), first.optimizer.state_dict()))
    raised(RuntimeError, "with momentum in the optimizer's state", half.train)
    half.state.close()


# Several optimizers


def _two_optimizers(net):
    """Return an optimizer of the first two layers, and one of the last layer."""
    first = [*net.first.parameters(), *net.second.parameters()]
    options = dict(lr=0.1, momentum=0.9, nesterov=True)
    return torch.optim.SGD(first, **options), torch.optim.SGD(net.last.parameters(), **options)


@on_workers(2)
def test_another_optimizer_must_not_step_what_has_momentum_or_is_skipped():
    said = "parameter last.weight is stepped by another optimizer than that of its"
    for params, more in ((LOSSLESS, {}), (DGC, {}), ({}, {"on_nonfinite": "skip"})):
        run = Run(lambda net: _two_optimizers(net)[0]).with_hook(params, **more)
        _, other = _two_optimizers(run.net)
        other.step()  # without gradients
        before = flat(run.net.last)
        loss_of(run.model, 0).backward()
        run.optimizer.step()
        raised(RuntimeError, said, other.step)
        assert torch.equal(flat(run.net.last), before)
        run.optimizer.add_param_group({"params": run.net.last.parameters()})
        run.steps(range(1, 3))
        again = sgd(run.net)
        loss_of(run.model, 3).backward()
        raised(RuntimeError, "is stepped by another optimizer", again.step)
        run.state.close()
        again.step()


@on_workers(2)
def test_another_optimizer_may_step_what_has_no_momentum():
    results = []
    for params in (None, LOSSLESS):
        run = Run(lambda net: _two_optimizers(net)[0])
        run.with_hook(params, **({} if params is None else {"overrides": {"last.*": None}}))
        _, other = _two_optimizers(run.net)
        for step in range(STEPS):
            run.net.zero_grad()
            loss_of(run.model, step).backward()
            run.optimizer.step()
            other.step()
        results.append(run.weights())
    assert_close(*results)


# Scaled losses


def _scaled(run, scaler, overflows=()):
    """Train. In some steps, one layer of worker 1 overflows."""
    for step in range(STEPS):
        run.optimizer.zero_grad()
        loss = loss_of(run.model, step)
        if step in overflows and bps.rank() == 1:
            loss = loss + float("inf") * run.net.last.bias.sum()
        scaler.scale(loss).backward()
        scaler.step(run.optimizer)
        scaler.update()
    return run.weights()


@on_workers(2)
def test_fused_optimizers_with_a_scaler():
    def run_of(fused):
        return Run(functools.partial(sgd, fused=fused, weight_decay=0.1))

    scaler = functools.partial(torch.amp.GradScaler, "cpu", init_scale=1024.0)
    for overflows in ((), (STEPS - 1,)):
        for overrides in (None, {"*": None, "second.weight": LOSSLESS}):
            expected = _scaled(run_of(True).with_hook(), scaler(), overflows)
            for way in ("with_hook", "with_optimizer"):
                given, run = scaler(), run_of(True)
                more = {"overrides": overrides, "grad_scaler": given}
                getattr(run, way)(LOSSLESS, **more)
                assert_close(_scaled(run, given, overflows), expected)
                assert way == "with_optimizer" or run.optimizer._step_supports_amp_scaling


@on_workers(2)
def test_skipped_steps_move_no_momentum():
    """A scaler skips them, or on_nonfinite does."""
    overflows = (1, 2, 4)
    for fused, has_scaler in itertools.product((False, True), repeat=2):
        make = functools.partial(sgd, fused=fused, weight_decay=0.1)
        scaler = functools.partial(torch.amp.GradScaler, "cpu", init_scale=1024.0)
        expected = _scaled(Run(make).with_hook(), scaler(), overflows)
        given = scaler(enabled=has_scaler)
        more = {"grad_scaler": given} if has_scaler else {"on_nonfinite": "skip"}
        run = Run(make).with_hook(LOSSLESS, overrides={"*.bias": None}, **more)
        assert_close(_scaled(run, given, overflows), expected)


class Linear(torch.nn.Module):
    """Its weights are minus the sum of all gradients that were used, if the learning rate is 1."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(16, 8))

    def forward(self, x):
        return (self.weight * x).sum()


def _drained_error(run_of, growth_interval, passes):
    """Return the relative error after zero gradients have emptied the residuals."""
    net, steps, drain = Linear(), 12, 60
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=growth_interval)
    model = run_of(net, {"grad_scaler": scaler} if passes else {})
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    generator, expected = torch.Generator().manual_seed(0), torch.zeros(16, 8)
    for step in range(steps + drain):
        x = torch.randn(bps.size(), 16, 8, generator=generator) * (step < steps)
        expected -= x.mean(0)
        optimizer.zero_grad()
        scaler.scale(model(x[bps.rank()])).backward()
        scaler.step(optimizer)
        scaler.update()
        if step == steps:
            scaler.set_growth_interval(10**6)
    weight = net.weight.detach()
    weight = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
    return ((weight - expected).norm() / expected.norm()).item()


@on_workers(2)
def test_residuals_are_in_units_of_the_loss():
    feedback = {"compressor": "topk", "k": 0.1, "ef": "vanilla"}

    def sharded(net, scaler):
        from torch.distributed.fsdp import fully_shard

        fully_shard(net)
        bps.compress_reduce_scatter(net, feedback, **scaler)
        return net

    def hooked(net, scaler):
        ddp = DistributedDataParallel(net)
        state = bps.CompressionState(net.named_parameters(), feedback, **scaler)
        ddp.register_comm_hook(state, bps.compression_hook)
        return ddp

    for run_of, function in (
        (sharded, "compress_reduce_scatter"),
        (hooked, "CompressionState or DistributedOptimizer"),
    ):
        assert _drained_error(run_of, 4, passes=True) < 1e-6
        assert _drained_error(run_of, 10**6, passes=False) < 1e-6
        said = "has changed from 64.0 to 128.0, but residuals and momentum are in units of the "
        said += f"old one: pass grad_scaler to {function}"
        raised(RuntimeError, said, lambda r=run_of: _drained_error(r, 4, passes=False))


@on_workers(2)
def test_a_disabled_scaler_leaves_nonfinite_gradients_to_compression():
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for way in ("with_hook", "with_optimizer"):
        run = Run()
        getattr(run, way)(LOSSLESS, grad_scaler=scaler)
        said = "has a NaN or an infinity in step 1"
        raised(RuntimeError, said, lambda run=run: _scaled(run, scaler, [0]))
        run.state.close()
        run = Run()
        getattr(run, way)(LOSSLESS, grad_scaler=scaler, on_nonfinite="skip")
        assert _scaled(run, scaler, [2]).isfinite().all()
    from torch.distributed.fsdp import fully_shard

    net = Linear()
    fully_shard(net)
    bps.compress_reduce_scatter(net, {"compressor": "bytegrad"}, grad_scaler=scaler)
    loss = net(torch.full((16, 8), float("nan")))
    raised(RuntimeError, "has a NaN or an infinity in step 1", scaler.scale(loss).backward)
    inner = Run()
    inner.with_optimizer({}, algorithm="local_steps", grad_scaler=scaler)
    inner.train()


# Optimizers whose step calls no hooks


Plain = functools.partial(torch.optim.SGD, lr=0.1)


class Own(torch.optim.Optimizer):
    """Steps with its own rule, and does not call Optimizer.__init__."""

    def __init__(self, parameters):
        self.param_groups = [{"params": list(parameters), "lr": 0.1}]
        self.state, self.defaults = defaultdict(dict), {}

    def step(self, closure=None):
        loss = closure and closure()
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter.data.add_(parameter.grad, alpha=-0.1)
        return loss


class Lookahead(torch.optim.Optimizer):
    """Like timm's: a base optimizer, whose parameter groups it shares."""

    def __init__(self, parameters):
        self._optimizer_step_pre_hooks = OrderedDict()
        self._optimizer_step_post_hooks = OrderedDict()
        self._base_optimizer = torch.optim.SGD(parameters, lr=0.1)
        self.param_groups = self._base_optimizer.param_groups
        self.state, self.defaults = defaultdict(dict), {}

    def step(self, closure=None):
        return self._base_optimizer.step(closure)


class LateGroups(torch.optim.Optimizer):
    """Like lookahead_pytorch's: its parameter groups are a property."""

    def __init__(self, parameters):
        self.optimizer = torch.optim.SGD(parameters, lr=0.1)
        self.state, self.defaults = defaultdict(dict), {}

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def step(self, closure=None):
        return self.optimizer.step(closure)


class Sam(torch.optim.Optimizer):
    """Sharpness-aware minimisation without the perturbation: scripts call `second_step`."""

    def __init__(self, parameters):
        super().__init__(parameters, dict(lr=0.1))
        self.base_optimizer = torch.optim.SGD(self.param_groups, lr=0.1)
        self.param_groups = self.base_optimizer.param_groups

    def second_step(self):
        self.base_optimizer.step()


def _made(kind):
    def make(net):
        optimizer = kind(net.parameters())
        if kind is Own:  # a scheduler replaces its `step`, before the hooks come or afterwards
            LambdaLR(optimizer, lambda epoch: 1.0)
        return optimizer

    return make


@on_workers(2)
def test_steps_that_call_no_hooks_are_skipped():
    for kind in (Plain, Own, Lookahead, LateGroups, Sam):
        for with_closure in (False, True):
            run = Run(_made(kind)).with_hook({}, on_nonfinite="skip")
            step = getattr(run.optimizer, "second_step", run.optimizer.step)
            for number in range(4):
                factor = float("nan") if number == 2 and bps.rank() else 1.0
                run.optimizer.zero_grad()

                def closure(run=run, number=number, factor=factor):
                    loss = loss_of(run.model, number) * factor
                    loss.backward()
                    return loss

                if with_closure and kind is not Sam:
                    step(closure)
                else:
                    closure()
                    step()
            weights = run.weights()
            assert weights.isfinite().all()
            if kind is Plain:
                expected = weights
            assert_close(weights, expected)
            assert not run.optimizer._optimizer_step_pre_hooks


@on_workers(2)
def test_steps_that_call_no_hooks_are_averaged():
    for kind in (Own, Lookahead, LateGroups, Sam):
        run = Run(_made(kind)).with_optimizer({})
        scheduler = LambdaLR(run.optimizer, lambda epoch: 1.0)
        step = getattr(run.optimizer, "second_step", run.optimizer.step)
        for number in range(3):
            run.optimizer.zero_grad()
            loss_of(run.net, number, short=bool(bps.rank())).backward()
            step()
            scheduler.step()
        assert_alike(run.weights())


@on_workers(2)
def test_optimizers_may_broadcast_what_they_have_stepped():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def make(net):
        return ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.1)

    expected = Run(make).with_hook().train()
    lossless = {**LOSSLESS, "momentum": None}
    assert_close(Run(make).with_hook(lossless).train(), expected)
    assert_close(Run(make).with_optimizer(lossless).train(), expected)


class OwnRate(torch.optim.SGD):
    """Computes the learning rate itself if lr is None, as transformers' Adafactor does."""

    def __init__(self, parameters, rate=0.1):
        super().__init__(parameters, lr=rate)
        self.rate, self.param_groups[0]["lr"] = rate, None

    def step(self, closure=None):
        self.param_groups[0]["lr"] = self.rate
        super().step(closure)
        self.param_groups[0]["lr"] = None


@on_workers(2)
def test_an_optimizer_may_have_no_learning_rate():
    def make(net):
        return OwnRate(net.parameters())

    expected = Run(make).with_hook().train()
    lossless = {**LOSSLESS, "momentum": None}
    for params in (lossless, {}):
        assert_close(Run(make).with_hook(params).train(), expected)
        assert_close(Run(make).with_optimizer(params).train(), expected)
    said = "'corrected' follows the learning rate, but a group of the optimizer has lr=None"
    raised(ValueError, said, lambda: Run(make).with_hook({**lossless, "ef": "corrected"}))


@on_workers(2)
def test_what_is_no_optimizer_is_refused():
    class Wrapper:
        def __init__(self, optimizer):
            self.optimizer, self.param_groups = optimizer, optimizer.param_groups

    net = Net()
    wrapper, named = Wrapper(sgd(net)), list(net.named_parameters())
    said = "must be a torch.optim.Optimizer, got Wrapper"
    raised(TypeError, said, lambda: bps.CompressionState(named, {}, wrapper))
    raised(TypeError, said, lambda: bps.DistributedOptimizer(wrapper, named))
