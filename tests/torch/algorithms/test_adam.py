"""Algorithms that need Adam."""

import gc
import itertools
import math
import warnings

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

import gluon_gc.torch as bps
from tests.algorithm_replay import (
    ZERO_ONE,
    OneBitAdamReplay,
    ZeroOneAdamReplay,
    plain_mean,
)
from tests.link import link_of
from tests.memory_table import ALGORITHMS, stated
from tests.torch.algorithms.test_algorithm import (
    ONEBIT,
    SHAPES,
    gradients_of,
    loaded,
    replayed_mean,
    saved,
    train,
)
from tests.torch.common import (
    TOPK,
    Net,
    assert_alike,
    flat,
    logged,
    loss_of,
    raised,
)
from tests.torch.workers import on_workers, run

FREEZE = {"name": "onebit_adam", "freeze_step": 5}
ADAM, ADAMW = torch.optim.Adam, torch.optim.AdamW


def distributed(net, algorithm=FREEZE, params=None, optimizer=ADAMW, inner=None, **more):
    inner = inner or optimizer(net.parameters(), lr=0.01, weight_decay=0.1)
    options = dict(compression_params=params, algorithm=algorithm, **more)
    return bps.DistributedOptimizer(inner, net.named_parameters(), **options)


# Numbers


def groups_of(parameters):
    """Return groups with different settings, one for each parameter."""
    settings = ({"betas": (0.9, 0.95), "weight_decay": 0.1}, {"betas": (0.8, 0.99), "lr": 0.02})
    return [{"params": [p], **own} for p, own in zip(parameters.values(), settings)]


def corrected(lr, v, c1, c2):
    root = torch.from_numpy(v).sqrt().numpy()  # it does not round as NumPy's does
    return lr / c1, root / np.float32(c2**0.5) + np.float32(1e-8)


def replay_of(kind, name, group, mean):
    """Return the replay of one parameter; PyTorch's own optimizer makes the warm-up."""
    x = {name: np.ones(SHAPES[name], np.float32)}
    parameter = torch.nn.Parameter(torch.from_numpy(x[name]))
    own = kind([{**group, "params": [parameter]}], lr=0.01)

    def warm_up(replay, means):
        own.param_groups[0]["lr"] = replay.lr
        parameter.grad = torch.from_numpy(means[name])
        own.step()
        replay.m[name][:] = own.state[parameter]["exp_avg"].numpy()
        replay.v[name][:] = own.state[parameter]["exp_avg_sq"].numpy()

    (settings,) = own.param_groups
    decay = {"decay" if kind is ADAMW else "coupled": settings["weight_decay"]}
    betas, lr = settings["betas"], settings["lr"]
    replay = OneBitAdamReplay(x, 5, warm_up, corrected, betas, lr, mean=mean, **decay)
    replay.parameter = parameter  # it shares its memory with x
    return replay


@on_workers(1, 2)
def test_onebit_adam_is_its_replay_bit_for_bit():
    """Gradients are multiples of 1/1024, so that the order of a sum over workers has no effect.

    Uncompressed momentum is not, so it needs at most two workers.
    """
    workers, rank = dist.get_world_size(), dist.get_rank()
    ways = (ONEBIT, TOPK) if workers > 2 else (None, ONEBIT, TOPK)
    for kind, params in itertools.product((ADAM, ADAMW), ways):
        parameters = {n: torch.nn.Parameter(torch.ones(shape)) for n, shape in SHAPES.items()}
        inner = kind(groups_of(parameters), lr=0.01)
        options = dict(compression_params=params, algorithm=FREEZE)
        optimizer = bps.DistributedOptimizer(inner, parameters.items(), **options)
        compressed = params and replayed_mean(params)

        def mean(kind, name, vectors, compressed=compressed):
            if kind == "momentum" and compressed:
                return compressed(kind, name, vectors)
            return plain_mean(kind, name, vectors)

        replays = [
            replay_of(kind, name, group, mean) for name, group in zip(SHAPES, groups_of(parameters))
        ]
        for step in range(14):
            for group, replay in zip(optimizer.param_groups, replays):
                group["lr"] *= 0.95
                replay.lr = group["lr"]
            given = [gradients_of(rank, step) for rank in range(workers)]
            for gradients in given:
                gradients.update((n, np.round(1024 * g) / 1024) for n, g in gradients.items())
                gradients["w"][3] *= step >= 5  # v stays 0 there if weight decay is decoupled
            for name, parameter in parameters.items():
                parameter.grad = torch.from_numpy(given[rank][name].copy())
            optimizer.step()
            for name, replay in zip(SHAPES, replays):
                replay.step([{name: gradients[name]} for gradients in given])
                state = optimizer.state[parameters[name]]
                for ours, expected in (
                    (parameters[name].detach(), replay.x[name]),
                    (state["exp_avg"], replay.m[name]),
                    (state["exp_avg_sq"], replay.v[name]),
                ):
                    np.testing.assert_array_equal(ours.numpy(), expected, str((step, name)))
                assert state["step"] == step + 1
        if kind is ADAMW:
            assert not state_of(optimizer, parameters["w"])[3].any()
        counts = optimizer.compression_state.compression_stats()["rounds"]
        assert counts == {"gradient": 5, "momentum": 9}
        optimizer.compression_state.close()


def state_of(optimizer, parameter):
    return optimizer.state_dict()["state"][optimizer.param_groups[0]["params"].index(parameter)][
        "exp_avg"
    ]


@on_workers(1, 2)
def test_zero_one_adam_is_its_replay_bit_for_bit():
    workers, rank = dist.get_world_size(), dist.get_rank()
    for kind, params in itertools.product((ADAM, ADAMW), (None, ONEBIT, TOPK)):
        parameters = {n: torch.nn.Parameter(torch.ones(shape)) for n, shape in SHAPES.items()}
        inner = kind(parameters.values(), lr=0.01, weight_decay=0.1)
        options = dict(compression_params=params, algorithm=ZERO_ONE)
        optimizer = bps.DistributedOptimizer(inner, parameters.items(), **options)
        compressed = replayed_mean(params) if params else plain_mean

        def mean(kind, name, vectors, compressed=compressed):
            return (plain_mean if kind == "gradient" else compressed)(kind, name, vectors)

        values = [{n: np.ones(s, np.float32) for n, s in SHAPES.items()} for _ in range(workers)]
        decay = {"decay" if kind is ADAMW else "coupled": 0.1}
        betas = optimizer.param_groups[0]["betas"]
        replay = ZeroOneAdamReplay(values, corrected, betas, 0.01, mean=mean, **decay)
        for step in range(19):
            given = [gradients_of(rank, step) for rank in range(workers)]
            for gradients in given:
                gradients["w"][3] *= step >= 5  # v stays 0 there if weight decay is decoupled
            for name, parameter in parameters.items():
                parameter.grad = torch.from_numpy(given[rank][name].copy())
            optimizer.step()
            replay.step(given)
            for name, parameter in parameters.items():
                state = optimizer.state[parameter]
                for ours, expected in (
                    (parameter.detach(), replay.workers[rank][name]),
                    (state["exp_avg"], replay.m[rank][name]),
                    (state["exp_avg_sq"], replay.v[name]),
                ):
                    np.testing.assert_array_equal(ours.numpy(), expected, str((step, name)))
        counts = optimizer.compression_state.compression_stats()["rounds"]
        assert counts == {"gradient": 4, "sum": 6}
        optimizer.compression_state.close()


@on_workers(2)
def test_weights_that_a_script_changes_stay_changed_or_a_warning_comes():
    """The last averages of ZERO_ONE in these steps come in steps 9 and 13."""
    for algorithm, last in ((FREEZE, 8), (ZERO_ONE, 4), (ZERO_ONE, 9), (ZERO_ONE, 10)):
        net = Net()
        optimizer = distributed(net, algorithm, ONEBIT, optimizer=ADAM)
        with logged() as records:
            for step in range(1, 14):
                train(net, optimizer, [step])
                if step == last:
                    net.load_state_dict({k: 0 * v for k, v in net.state_dict().items()})
        lines = [line for line in records if "undoes changes of the parameters" in line]
        assert len(lines) == (last == 10), lines
        assert all("before step 11" in line for line in lines)
        assert (flat(net).norm() < 0.5 * flat(Net()).norm()) == (last != 10), (last, algorithm)
        assert_alike(flat(net))
        optimizer.compression_state.close()


@on_workers(1, 2)
def test_frozen_it_trains_and_workers_stay_equal():
    net = Net()
    first = float(loss_of(net, 0))
    optimizer = distributed(net, params=ONEBIT)
    assert_alike(train(net, optimizer, range(30)))
    assert float(loss_of(net, 0)) < first
    for values in optimizer.state.values():
        assert_alike(values["exp_avg"])
        assert set(values) == {"step", "exp_avg", "exp_avg_sq"}
    assert optimizer.state_dict()["state"].keys() == set(range(6))
    stats = optimizer.compression_state.compression_stats(reset=True)
    assert stats["rounds"] == {"gradient": 5, "momentum": 25}
    train(net, optimizer, range(30, 32))
    stats = optimizer.compression_state.compression_stats()
    assert stats["tensors"]["second.weight"]["ratio"] > 25 * 4 / 4
    optimizer.compression_state.close()


# Loops


@on_workers(1, 2)
def test_a_parameter_without_a_gradient_counts_as_zeros():
    weights = []
    for zeros in (False, True):
        net = Net()
        optimizer = distributed(net, params=TOPK, optimizer=ADAM)
        for step in range(9):
            optimizer.zero_grad()
            skips = (step + dist.get_rank()) % 3 == 0
            loss_of(net, step, short=skips).backward()
            if zeros and skips:
                net.second.weight.grad = torch.zeros_like(net.second.weight)
                net.second.bias.grad = torch.zeros_like(net.second.bias)
            optimizer.step()
        weights.append(flat(net))
        assert_alike(weights[-1])
        optimizer.compression_state.close()
    assert torch.equal(*weights)


@on_workers(1, 2)
def test_parameters_may_be_frozen_for_a_while():
    """A weight is frozen in the last two steps with averaged gradients and in the next three."""
    net = Net()
    optimizer = distributed(net, params=ONEBIT)
    train(net, optimizer, range(3))
    weight, state = net.second.weight, optimizer.state[net.second.weight]
    kept = [weight, state["exp_avg"], state["exp_avg_sq"]]
    before, other = [tensor.clone() for tensor in kept], net.first.weight.clone()
    weight.requires_grad_(False)
    assert_alike(train(net, optimizer, range(3, 8)))
    assert all(map(torch.equal, kept, before)) and not torch.equal(net.first.weight, other)
    weight.requires_grad_(True)
    assert_alike(train(net, optimizer, range(8, 10)))
    assert torch.equal(kept[2], before[2]) and not any(map(torch.equal, kept[:2], before))
    assert float(state["step"]) - 5 == 3  # updates of exp_avg_sq, for its bias correction
    optimizer.compression_state.close()


@on_workers(1, 2)
def test_all_workers_leave_out_the_step_of_one_workers_scaler():
    ways = ((FREEZE, ONEBIT, 2), (FREEZE, ONEBIT, 7), ("powersgd", None, 2))
    for algorithm, params, bad_step in ways:  # before and after the freeze
        net = Net()
        optimizer = distributed(net, algorithm, params)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        for step in range(9):
            before = flat(net)
            optimizer.zero_grad()
            bad = step == bad_step and dist.get_rank() == 0
            (scaler.scale(loss_of(net, step)) * (float("inf") if bad else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            assert torch.equal(flat(net), before) == (step == bad_step)
        assert_alike(flat(net))
        assert optimizer.compression_state.steps == 8
        assert optimizer.state[net.last.bias]["step"] == 8
        optimizer.compression_state.close()


@on_workers(1, 2)
def test_all_workers_skip_a_step_in_which_a_gradient_is_not_finite():
    for algorithm, bad_step in itertools.product((FREEZE, ZERO_ONE), (0, 2, 7)):
        net, good = Net(), Net()
        optimizer = distributed(net, algorithm, ONEBIT, on_nonfinite="skip")
        for step in range(9):
            before = flat(net)
            optimizer.zero_grad()
            loss_of(net, step).backward()
            if step == bad_step and dist.get_rank() == 0:
                net.second.weight.grad[3, 4] = math.nan
            with logged() as lines:
                optimizer.step()
            said = f"step {step + 1} is skipped: the gradient of parameter second.weight has a NaN"
            assert [said in line for line in lines] == [True] * (step == bad_step)
            assert torch.equal(flat(net), before) == (step == bad_step)
        assert optimizer.compression_state.steps == 8
        optimizer.compression_state.close()
        expected = distributed(good, algorithm, ONEBIT)
        train(good, expected, [step for step in range(9) if step != bad_step])
        assert torch.equal(flat(good), flat(net))
        expected.compression_state.close()


@on_workers(2)
def test_workers_with_and_without_a_scaler_are_told():
    net = Net()
    optimizer = distributed(net)
    scaler = torch.amp.GradScaler("cpu", enabled=dist.get_rank() == 0)
    loss_of(net, 0).backward()
    said = "worker 1 has GradScaler false, but worker 0 has true"
    raised(RuntimeError, said, lambda: scaled_step(scaler, optimizer))
    optimizer.compression_state.close()


def scaled_step(scaler, optimizer):
    scaler.scale(torch.zeros(()))
    scaler.step(optimizer)


# Checkpoints


@on_workers(1, 2)
def test_what_is_resumed_goes_on_bit_for_bit():
    """The checkpoint is from before the first step, the warm-up, the freeze, or after it.

    With zero_one_adam, steps 11 and 12 are between two averages.
    """
    onebit = {**FREEZE, "freeze_step": 0.5, "total_steps": 22}  # 11 steps
    ways = ((None, ADAM, onebit), (ONEBIT, ADAMW, onebit), (TOPK, ADAM, onebit))
    for params, kind, algorithm in (*ways, (ONEBIT, ADAMW, ZERO_ONE)):
        net = Net()
        optimizer = distributed(net, algorithm, params, kind)
        boxes = {}
        for step in range(18):
            if step in (0, 3, 10, 11, 12, 15):
                boxes[step] = saved(optimizer.compression_state)
            train(net, optimizer, [step])
        for begin, box in boxes.items():
            resumed = Net()
            torch.nn.init.zeros_(resumed.last.weight)
            other = distributed(resumed, algorithm, params, kind)
            other.compression_state.load_state_dict(loaded(box))
            assert torch.equal(train(resumed, other, range(begin, 18)), flat(net)), begin
            moments = [o.state_dict()["state"][0]["exp_avg"] for o in (optimizer, other)]
            assert torch.equal(*moments)
            other.compression_state.close()
        optimizer.compression_state.close()


@on_workers(2)
def test_after_a_change_of_options_steps_are_of_the_right_size():
    """Each step of Adam subtracts the learning rate, because all gradients are 1.

    A checkpoint of an earlier version lacks the numbers of updates of the variance.
    """
    zero_one = {**ZERO_ONE, "var_freeze_step": 99}
    ways = ((FREEZE, {**FREEZE, "freeze_step": 99}), (zero_one, {**ZERO_ONE, "var_freeze_step": 1}))
    for before, now in ways:
        net = Net()
        optimizer = distributed(net, before, inner=ADAM(net.parameters(), lr=0.01))
        step_with_ones(net, optimizer, 20)
        file = optimizer.compression_state.state_dict()
        optimizer.compression_state.close()
        earlier = {**file, "state": {**file["state"]}}
        del earlier["state"]["frozen_steps"], earlier["entries"]
        for each in (file, earlier):
            optimizer = distributed(net, now, inner=ADAM(net.parameters(), lr=0.01))
            optimizer.compression_state.load_state_dict(each)
            start = flat(net)
            step_with_ones(net, optimizer, 4)
            moved = start - flat(net)
            torch.testing.assert_close(moved, torch.full_like(moved, 0.04), rtol=1e-3, atol=0)
            optimizer.compression_state.close()


def step_with_ones(net, optimizer, steps):
    for _ in range(steps):
        for parameter in net.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()


# Memory


@on_workers(1, 2)
def test_the_memory_is_what_the_guide_states():
    for name, algorithm in ALGORITHMS.items():
        check_memory(algorithm, stated()[name])


def check_memory(algorithm, expected):
    """Between steps, there are no tensors besides the state and small messages."""
    parameter = torch.nn.Parameter(torch.ones(1_000_000))
    inner, before = ADAM([parameter], lr=0.01), tensor_bytes()
    options = dict(compression_params=ONEBIT, algorithm=algorithm)
    optimizer = bps.DistributedOptimizer(inner, [("w", parameter)], **options)
    for step in range(4):
        optimizer.zero_grad()
        (parameter * (step + dist.get_rank())).sum().backward()
        optimizer.step()
    moments_and_gradient = 12
    held = (tensor_bytes() - before) / parameter.numel() - moments_and_gradient
    saved = optimizer.compression_state.state_dict()
    arrays = saved["arrays"]["w"] if algorithm is None else residuals_of(saved)
    residuals = {"worker": 0.0, "aggregator": 0.0}
    for place, array in arrays.items():
        residuals[place.partition(".")[0]] += array.nbytes / parameter.numel()
    on_all_workers = torch.tensor(residuals["aggregator"])
    dist.all_reduce(on_all_workers)
    assert abs(on_all_workers.item() - expected.on_servers) < 0.01, on_all_workers
    messages = held + residuals["worker"] - expected.kept
    assert -0.01 < messages < 0.5, (algorithm, held, residuals)
    optimizer.compression_state.close()


def residuals_of(saved):
    return {
        place: array
        for tensors in saved["residuals"].values()
        for arrays in tensors.values()
        for place, array in arrays.items()
    }


def tensor_bytes():
    """Return the bytes of all PyTorch tensors. Residuals are NumPy arrays."""
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some objects of PyTorch are deprecated
        tensors = [each for each in gc.get_objects() if isinstance(each, torch.Tensor)]
    tensors = [each for each in tensors if not isinstance(each, DTensor)]  # it wraps another
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
    return sum(storage.nbytes() for storage in storages.values())


# Errors


@on_workers(1, 2)
def test_what_cannot_work_is_refused_by_name():
    net = Net()

    def refused(said, inner, **more):
        raised(ValueError, said, lambda: distributed(net, inner=inner, **more))

    parameters = list(net.parameters())
    said = "algorithm onebit_adam needs torch.optim.Adam or torch.optim.AdamW, got "
    refused(f"{said}SGD", torch.optim.SGD(parameters, lr=0.1))
    refused(f"{said}NAdam", torch.optim.NAdam(parameters))
    for key in ("amsgrad", "maximize", "fused", "capturable", "differentiable"):
        inner = ADAM([{"params": parameters[:2]}, {"params": parameters[2:], key: True}])
        refused(f"onebit_adam needs {key}=False of Adam, got True", inner)
    refused("needs eps > 0 of AdamW, got 0", ADAMW(parameters, eps=0.0))
    some = ADAM(parameters[2:])
    refused("needs all named_parameters in the optimizer, but parameter first.weight is not", some)
    refused("grad_scaler is for", ADAM(parameters), grad_scaler=torch.amp.GradScaler("cpu"))
    said = "on_nonfinite must be 'raise' or 'skip' with algorithm onebit_adam, got 'propagate'"
    refused(said, ADAM(parameters), on_nonfinite="propagate")
    embedding = torch.nn.Embedding(5, 3, sparse=True)
    optimizer = distributed(embedding, optimizer=ADAM)
    embedding(torch.tensor([1])).sum().backward()
    raised(ValueError, "the gradient of parameter weight is sparse", optimizer.step)
    optimizer.compression_state.close()
    for kind in (ADAM, ADAMW):
        inner = kind(parameters, foreach=True)
        optimizer = distributed(net, inner=inner)
        train(net, optimizer, range(7))
        optimizer.compression_state.close()


@on_workers(1, 2)
def test_settings_that_a_loaded_state_brings_are_refused_by_name():
    for step in (0, 2, 7):  # before the first step, in the warm-up and after it
        for key in ("amsgrad", "maximize", "fused", "capturable", "differentiable"):
            net, other = Net(), Net()
            optimizer = distributed(net, params=ONEBIT)
            train(net, optimizer, range(step))
            given = ADAMW(other.parameters(), lr=0.01)
            given.param_groups[0][key] = True
            optimizer.load_state_dict(given.state_dict())
            before = flat(net)
            loss_of(net, step).backward()
            raised(ValueError, f"onebit_adam needs {key}=False of AdamW, got True", optimizer.step)
            assert torch.equal(flat(net), before) and optimizer.compression_state.steps == step
            optimizer.compression_state.close()


@on_workers(2)
def test_workers_that_skip_and_raise_are_told():
    net = Net()
    optimizer = distributed(net, on_nonfinite="skip" if dist.get_rank() else "raise")
    said = 'worker 1 has on_nonfinite "skip", but worker 0 has "raise"'
    raised(RuntimeError, said, lambda: train(net, optimizer, [0]))
    optimizer.compression_state.close()


@on_workers(1, 2)
def test_compressed_gradients_of_adam_are_warned_of():
    """The warning names the better way, once, and only where it is due."""
    one, few = {"compressor": "onebit", "scaling": True, "ef": "vanilla"}, {**TOPK, "k": 0.001}
    for params, kind, algorithm, due in (
        (one, ADAM, None, 1),
        (few, ADAMW, None, 1),
        (TOPK, ADAM, None, 0),
        (one, torch.optim.SGD, None, 0),
        (one, ADAMW, FREEZE, 0),
    ):
        net = Net()
        with logged() as lines:
            optimizer = distributed(net, algorithm, params, inner=kind(net.parameters(), lr=0.1))
        assert len([line for line in lines if "onebit_adam" in line]) == due, (params, kind)
        optimizer.compression_state.close()


@on_workers(2)
def test_auto_chooses_for_adam_what_it_can_use():
    """It chooses by the optimizer; without one, as for SGD."""
    auto = {"compressor": "auto", "accuracy": "aggressive"}
    kinds = ((ADAM, "blockwise"), (ADAMW, "blockwise"), (torch.optim.SGD, "topk"))
    for kind, large in kinds:
        net = Net()
        with link_of(1e6):
            optimizer = distributed(net, None, auto, inner=kind(net.parameters(), lr=0.01))
        chosen = optimizer.compression_state.params
        assert {name_of(params) for params in chosen.values()} == {large, None}
        assert_alike(train(net, optimizer, range(3)))
        optimizer.compression_state.close()
    with link_of(1e6):
        state = bps.CompressionState(Net().named_parameters(), auto)
    assert {name_of(params) for params in state.params.values()} == {"topk", None}
    state.close()


def name_of(params):
    return params.compressor and params.compressor.name


def test_four_workers():
    run(test_onebit_adam_is_its_replay_bit_for_bit, 4)
