"""powersgd."""

import itertools
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import gluon_gc.torch as bps
from gluon_gc.algorithms import parse, powersgd
from gluon_gc.algorithms.powersgd import random_row
from gluon_gc.auto.algorithm import Decision
from gluon_gc.torch.algorithms.rounds import PyTorch
from tests.algorithm_replay import PowerSGDReplay
from tests.link import link_of
from tests.torch.algorithms.test_algorithm import ONEBIT, loaded, saved, train
from tests.torch.common import (
    Net,
    assert_alike,
    flat,
    logged,
    loss_of,
    other_parameters_are_told,
    raised,
    sgd,
)
from tests.torch.workers import on_workers, run

SHAPES = {"conv": (16, 8, 3, 3), "embedding": (60, 9), "bias": (7,), "tiny": (3, 3)}
STEPS = 9


def distributed(net, rank=2, params=None, inner=None, **more):
    options = dict(compression_params=params, algorithm={"name": "powersgd", "rank": rank, **more})
    return bps.DistributedOptimizer(inner or sgd(net), net.named_parameters(), **options)


# Numbers


def gradients_of(rank, step):
    random = np.random.default_rng((rank, step))
    return {n: random.standard_normal(shape).astype(np.float32) for n, shape in SHAPES.items()}


def mean(kind, name, vectors):
    """Return the average of uncompressed vectors: shares, added in the order of the ranks."""
    return sum(vector * np.float32(1 / len(vectors)) for vector in vectors)


def by_rows(tensor):
    return tensor


def by_columns(tensor):
    """Return a matrix by columns, and a tensor of four dimensions in channels_last."""
    if tensor.ndim == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor.T.contiguous().T if tensor.ndim == 2 else tensor


@on_workers(1, 2)
def test_powersgd_is_its_replay_bit_for_bit():
    workers, undivided = dist.get_world_size(), powersgd._DIVIDED
    for rank, start, in_memory in itertools.product((1, 4), (0, 2), (by_rows, by_columns)):
        powersgd._DIVIDED = undivided if in_memory is by_rows else 0  # then there are two parts
        parameters = {
            n: torch.nn.Parameter(in_memory(torch.ones(shape))) for n, shape in SHAPES.items()
        }
        inner = torch.optim.SGD(parameters.values(), lr=1.0)
        algorithm = {"name": "powersgd", "rank": rank, "start": start}
        optimizer = bps.DistributedOptimizer(inner, parameters.items(), algorithm=algorithm)
        expected = {name: np.ones(shape, np.float32) for name, shape in SHAPES.items()}
        replay = PowerSGDReplay(SHAPES, workers, rank, start, mean)
        for step in range(STEPS):
            for name, gradient in gradients_of(dist.get_rank(), step).items():
                parameters[name].grad = in_memory(torch.from_numpy(gradient))
            optimizer.step()
            averages = replay.step([gradients_of(worker, step) for worker in range(workers)])
            for name, average in averages.items():
                expected[name] -= average
                ours = parameters[name].detach().numpy()
                np.testing.assert_array_equal(ours, expected[name], str((step, name)))
        counts = optimizer.compression_state.compression_stats()["rounds"]
        kinds = [kind for kind in counts if kind != "gradient"]
        parts = 2 if in_memory is by_columns and rank == 1 else 1  # of rank 4 there is one matrix
        assert len(kinds) == 2 * parts, counts
        factors = dict.fromkeys(kinds, STEPS - start)
        assert counts == ({"gradient": start} if start else {}) | factors
        optimizer.compression_state.close()
    powersgd._DIVIDED = undivided


class Columns(torch.nn.Module):
    """A network whose matrices all have another number of columns."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(1, 40, (1, 5), stride=(1, 5), bias=False)
        self.first = torch.nn.Linear(160, 90)
        self.last = torch.nn.Linear(90, 30)

    def forward(self, x):
        x = self.conv(x[:, None, None]).flatten(1)
        return self.last(self.first(x.relu()).tanh())


@on_workers(1, 2)
def test_the_losses_are_those_of_pytorchs_hook():
    """Both start from the same Q: our random numbers replace those that PyTorch draws."""
    for rank, (dtype, tolerance) in itertools.product(
        (1, 4), ((torch.float32, 1e-3), (torch.float64, 1e-9))
    ):
        losses = [
            losses_of(run, rank, dtype)
            for run in (distributed_data_parallel, distributed_optimizer)
        ]
        np.testing.assert_allclose(*losses, rtol=0, atol=tolerance)
        assert losses[0][-1] < losses[0][0] - 0.5, losses[0]
        if dtype is torch.float32:
            rounded = losses_of(distributed_optimizer, rank, dtype, {"fp16": True})
            assert abs(np.mean(rounded[-4:]) - np.mean(losses[0][-4:])) < 0.02, rounded


def losses_of(run, rank, dtype, params=None):
    """Return the mean loss of the workers in each step."""
    net = Columns().to(dtype)
    inner = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
    model, optimizer, close = run(net, inner, rank, params)
    losses = []
    for step in range(40):
        random = torch.Generator().manual_seed(100 * (step % 4) + dist.get_rank())
        x, y = torch.randn(16, 20, generator=random), torch.randint(5, (16,), generator=random)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x.to(dtype)), y)
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(float(total) / dist.get_world_size())
    assert_alike(flat(net))
    close()
    return losses


def distributed_optimizer(net, inner, rank, params):
    optimizer = distributed(net, rank, params, inner, start=2)
    return net, optimizer, optimizer.compression_state.close


def distributed_data_parallel(net, inner, rank, _):
    algorithm = parse({"name": "powersgd", "rank": rank})
    shapes = {name: tuple(parameter.shape) for name, parameter in net.named_parameters()}
    right = algorithm.rounds(shapes)["right_factor"]
    assert len(right) == 3 - (rank == 4)
    names = {columns: name for name, (_, columns) in right.items()}

    def randn(one, columns, count, **_):
        draws = [random_row(names[columns], 3, columns, column) for column in range(count)]
        return torch.from_numpy(np.stack(draws, axis=1))[None]

    powerSGD_hook.torch = SimpleNamespace(**{**vars(torch), "randn": randn})
    model = DistributedDataParallel(net, bucket_cap_mb=1000)
    state = powerSGD_hook.PowerSGDState(None, rank, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    def close():
        powerSGD_hook.torch = torch

    return model, inner, close


@on_workers(1, 2)
def test_on_a_gpu_the_products_are_pytorchs():
    weights = []
    for in_host_memory in (PyTorch.in_host_memory, lambda self, array: False):
        original, PyTorch.in_host_memory = PyTorch.in_host_memory, in_host_memory
        net = Net()
        optimizer = distributed(net)
        weights.append(train(net, optimizer, range(8)))
        PyTorch.in_host_memory = original
        assert_alike(weights[-1])
        optimizer.compression_state.close()
    assert torch.allclose(*weights, atol=1e-5)


@on_workers(1, 2)
def test_factors_travel_as_float16_if_asked():
    pushed = []
    for params in (None, {"fp16": True}):
        net = Net()
        first = float(loss_of(net, 0))
        optimizer = distributed(net, params=params)
        assert_alike(train(net, optimizer, range(30)))
        assert float(loss_of(net, 0)) < first
        stats = optimizer.compression_state.compression_stats()
        pushed.append(stats["total"].get("pushed_bytes", 0))
        optimizer.compression_state.close()
    assert pushed[1] == 0 or 1.8 < pushed[0] / pushed[1] < 2.1, pushed


# Loops


@on_workers(1, 2)
def test_frozen_parameters_stay_as_they_are():
    net = Net()
    optimizer = distributed(net, inner=torch.optim.AdamW(net.parameters(), lr=0.01))
    state = optimizer.compression_state
    train(net, optimizer, range(3))
    frozen = net.second.weight.requires_grad_(False)
    kept = [frozen, state.driver.state["total"]["second.weight"]]
    kept += [optimizer.state[frozen][key] for key in ("step", "exp_avg", "exp_avg_sq")]
    before, others = [tensor.clone() for tensor in kept], net.first.weight.clone()
    assert_alike(train(net, optimizer, range(3, 6)))
    assert all(map(torch.equal, kept, before)) and not torch.equal(net.first.weight, others)
    box = saved(state)
    frozen.requires_grad_(True)
    weights = train(net, optimizer, range(6, 9))
    assert_alike(weights)
    assert not any(map(torch.equal, kept, before))
    resumed = Net()
    other = distributed(resumed, inner=torch.optim.AdamW(resumed.parameters(), lr=0.01))
    other.compression_state.load_state_dict(loaded(box))
    assert torch.equal(train(resumed, other, range(6, 9)), weights)
    net.requires_grad_(False)
    optimizer.zero_grad()
    optimizer.step()
    assert torch.equal(flat(net), weights)
    state.close()
    other.compression_state.close()


@on_workers(1, 2)
def test_a_checkpoint_fits_another_start():
    for before, now in ((0, 9), (9, 0)):
        net = Net()
        optimizer, other = distributed(net, start=before), distributed(net, start=now)
        train(net, optimizer, range(3))
        other.compression_state.load_state_dict(loaded(saved(optimizer.compression_state)))
        assert_alike(train(net, other, range(3, 6)))
        optimizer.compression_state.close()
        other.compression_state.close()


# Errors


@on_workers(2)
def test_workers_that_freeze_other_parameters_are_told():
    net = Net()
    optimizer = distributed(net)
    train(net, optimizer, [0])
    net.second.weight.requires_grad_(dist.get_rank() == 0)
    said = 'worker 1 has frozen ["second.weight"] for the algorithm, but worker 0 has []'
    raised(RuntimeError, said, lambda: train(net, optimizer, [1]))
    busy = time.process_time()
    time.sleep(0.5)
    # A message without a buffer would keep Gloo's thread busy for ever.
    assert time.process_time() - busy < 0.25
    optimizer.compression_state.close()


@on_workers(1, 2)
def test_what_cannot_work_is_refused_by_name():
    net = Net()
    said = "compression_params['compressor'] must be left out with algorithm powersgd, got 'onebit'"
    raised(ValueError, said, lambda: distributed(net, params=ONEBIT))
    raised(ValueError, "algorithm['rank'] must be a whole number > 0", lambda: distributed(net, 0))
    said = "algorithm powersgd needs an optimizer that steps without a closure, got LBFGS"
    raised(ValueError, said, lambda: distributed(net, inner=torch.optim.LBFGS(net.parameters())))


@on_workers(2)
def test_workers_that_begin_with_other_parameters_are_told():
    other_parameters_are_told(distributed)


# "auto"


@on_workers(1, 2)
def test_auto_chooses_whether_gradients_are_compressed():
    """All workers choose the same, as if given; a checkpoint before or after it resumes."""
    alone = dist.get_world_size() == 1
    auto = {"compressor": "auto", "accuracy": "aggressive"}

    def made(params=auto, **options):
        net = Net()
        return net, distributed(net, 2, params, start=2, **options)

    with link_of(1e4), logged() as lines:
        net, optimizer = made()
        state = optimizer.compression_state
        state.set_epoch(0)
        assert state.options == {"name": "powersgd", "rank": "auto", "start": 2}
        boxes = {}
        for step in range(8):
            if step in (0, 1, 5):
                boxes[step] = saved(state)
            train(net, optimizer, [step])
    expected, given = (("none", 0), None) if alone else (("fp16", 2), {"fp16": True})
    assert state.automatic.decision == expected and state.options["rank"] == expected[1]
    assert len(lines) == (dist.get_rank() == 0 and not alone), lines
    assert not lines or lines[0].endswith(": powersgd")
    others = [optimizer]
    if not alone:
        same, of_same = made(given)
        assert torch.equal(train(same, of_same, range(8)), flat(net))
        others.append(of_same)
    for begin, box in boxes.items():
        with link_of(1e15 if begin else 1e4):
            resumed, other = made()
            other.compression_state.load_state_dict(loaded(box))
            assert (other.compression_state.automatic.decision is None) == (begin == 0)
            assert torch.equal(train(resumed, other, range(begin, 8)), flat(net)), begin
        others.append(other)
    with link_of(1e15):
        fast, whole = made()
        train(fast, whole, range(4))
    assert whole.compression_state.automatic.decision == ("none", 0)
    assert not whole.compression_state.driver.state["total"]
    averaged = Net()
    plain = bps.DistributedOptimizer(sgd(averaged), averaged.named_parameters())
    torch.testing.assert_close(train(averaged, plain, range(4)), flat(fast))
    if not alone:
        box = loaded(boxes[5])
        said = "compression of parameter"
        raised(ValueError, said, lambda: whole.compression_state.load_state_dict(box))
        fixed = made({"fp16": True})[1]
        fixed.compression_state.load_state_dict(box)
        _, of_half = made()
        of_half.compression_state.take(Decision("fp16", 0))
        said = "set of parameters with a total"
        raised(ValueError, said, lambda: of_half.compression_state.load_state_dict(box))
        others += [fixed, of_half]
    for one in (whole, plain, *others):
        one.compression_state.close()


@on_workers(1, 2)
def test_auto_measures_the_link_and_the_products():
    with logged() as lines:
        net = Net()
        optimizer = distributed(net, 2, {"compressor": "auto", "accuracy": "aggressive"})
        assert_alike(train(net, optimizer, range(3)))
    assert len(lines) == (dist.get_rank() == 0 and dist.get_world_size() > 1), lines
    optimizer.compression_state.close()


@pytest.mark.parametrize(
    "test", [test_powersgd_is_its_replay_bit_for_bit, test_the_losses_are_those_of_pytorchs_hook]
)
def test_four_workers(test):
    run(test, 4)
