"""Workers that sum their gradients inside machines or inner groups before they exchange them."""

import copy
import os
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist

import gluon_gc.torch as bps
from gluon_gc.compression.auto import inner_params
from gluon_gc.torch.transport.arrays import GpuCoder
from tests.link import link_of
from tests.torch.common import (
    DGC,
    DITHERING,
    SETTINGS,
    SIGNS,
    TOPK,
    Net,
    assert_alike,
    logged,
    raised,
    sgd,
    train,
    wrapped,
)
from tests.torch.gpu import emulated
from tests.torch.workers import on_workers

PAIRS, CROSSED = [[0, 1], [2, 3]], [[0, 3], [1, 2]]  # workers 3 and 2 are peers, in this order
INNER = {"compressor": "blockwise", "bits": 8, "stochastic": True}
SEVERAL = (
    *SETTINGS,
    {"fp16": True},
    {**TOPK, "exchange": "gather"},
    {**SIGNS, "inner": {**INNER, "seed": 3}},
    {**TOPK, "inner": {"compressor": "dithering", "k": 64, "seed": 3}},
)


def own_group(groups):
    """Return the group among these that this worker is in. All workers call this."""
    made = [dist.new_group(ranks) for ranks in groups]
    return next(m for m, ranks in zip(made, groups) if dist.get_rank() in ranks)


def trained_in(inner_group, params, steps=3):
    net, optimizer, ddp, state = wrapped(params, inner_group=inner_group)
    weights = train(net, optimizer, ddp, range(steps))
    state.close()
    return weights


@on_workers(4)
def test_gradients_are_summed_inside_the_groups_first():
    rank = dist.get_rank()
    for groups in (PAIRS, CROSSED):
        parameters = {"w": torch.nn.Parameter(torch.zeros(6000))}
        state = bps.CompressionState(parameters.items(), {}, inner_group=own_group(groups))
        machines = state.exchange.machines
        assert machines.groups == groups and rank in groups[machines.number]
        assert machines.across.ranks == [ranks[machines.local_rank] for ranks in groups]
        torch.manual_seed(rank)
        values = torch.randn(6000)
        rows = [torch.empty(6000) for _ in range(4)]
        dist.all_gather(rows, values / 4)
        state.average({"w": values}).wait()
        assert torch.equal(values, sum(sum(rows[r] for r in ranks) for ranks in groups))
        state.close()


def the_bits_of_the_cpu_on_two_levels(folder):
    """Kernels and copies on emulated GPUs give the bits of the CPU."""
    inner_group = own_group(CROSSED)
    expected = [trained_in(inner_group, params) for params in SEVERAL]
    for weights in expected:
        assert_alike(weights)
    for of_emulator in (None, folder):
        emulated.start(of_emulator)
        for params, weights in zip(SEVERAL, expected):
            assert torch.equal(trained_in(inner_group, params), weights), params


def values_stay_on_gpus():
    """With GLUON_GC_PAYLOADS=nccl, on an emulated GPU."""
    inner_group = own_group(PAIRS)
    for params in (SIGNS, DITHERING, {}):
        state = bps.CompressionState(
            Net().named_parameters(),
            params,
            torch.optim.SGD(Net().parameters(), 0.1),
            inner_group=inner_group,
        )
        mine = [
            c for c in state.lane.chunks if c.inside.local == state.exchange.machines.local_rank
        ]
        assert mine and all(c.inside.to_owner.on_gpu for c in state.lane.chunks)
        assert {chunk.on_gpu for chunk in mine} == {params is SIGNS}
        assert params is not SIGNS or all(isinstance(c.coder, GpuCoder) for c in mine)
        state.close()


@on_workers(4)
def test_checkpoints_go_on_in_other_layouts():
    """The sum of all senders' residuals stays the same, and so do the residuals of owners."""
    layouts = [own_group(PAIRS), None, own_group(CROSSED), own_group(PAIRS), None]
    for params in (SIGNS, TOPK, DITHERING, DGC, {"compressor": "blockwise", "ef": "vanilla"}):
        saved = None
        for inner_group in layouts:
            net, optimizer, ddp, state = wrapped(params, inner_group=inner_group)
            if saved is not None:
                state.load_state_dict(saved)
                for what in ("worker.residual", "worker.momentum", "aggregator.residual"):
                    before, after = totals(saved, what), totals(of_all(state), what)
                    assert before.keys() == after.keys()
                    for name, total in before.items():
                        assert torch.allclose(total, after[name], atol=1e-6), (params, what, name)
                assert totals(saved, "worker.residual")["first.weight"].any()
            assert_alike(train(net, optimizer, ddp, range(3)))
            saved = of_all(state)
            state.close()


def of_all(state):
    """Return the state_dicts of all workers."""
    saved = [None] * dist.get_world_size()
    dist.all_gather_object(saved, state.state_dict())
    return saved


def totals(saved, what):
    """Return the sum of all workers' arrays of a kind, by parameter."""
    sums = {}
    for name, parameter in Net().named_parameters():
        total = torch.zeros(parameter.numel(), dtype=torch.float64)
        for worker in saved:
            for key, array in worker["arrays"].get(name, {}).items():
                begin = int(key.rpartition(".")[2])
                if key.startswith(what):
                    total[begin : begin + array.numel()] += array
                    sums[name] = total
    return sums


@on_workers(4)
def test_residuals_of_rounds_go_on_in_other_layouts():
    algorithm, saved = {"name": "local_steps", "every": 2}, None
    for inner_group in (own_group(PAIRS), None, own_group(CROSSED)):
        net = Net()
        optimizer = bps.DistributedOptimizer(
            sgd(net),
            net.named_parameters(),
            compression_params=SIGNS,
            algorithm=algorithm,
            inner_group=inner_group,
        )
        state = optimizer.compression_state
        if saved is not None:
            state.load_state_dict(saved)
            for kind in saved[0]["residuals"]:
                before, after = (
                    totals([{"arrays": one["residuals"][kind]} for one in each], "worker.residual")
                    for each in (saved, of_all(state))
                )
                assert before.keys() == after.keys() == dict(net.named_parameters()).keys()
                assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)
                assert any(total.any() for total in before.values())
        assert_alike(train(net, optimizer, net, range(4)))
        saved = of_all(state)
        state.close()


@on_workers(4)
def test_a_checkpoint_goes_on_bit_for_bit_on_two_levels():
    """A list of all state_dicts fits other chunks, too. A worker's own needs the same chunks."""
    inner_group = own_group(CROSSED)
    for params in (SIGNS, DITHERING, {**SIGNS, "inner": INNER}):
        net, optimizer, ddp, state = wrapped(params, inner_group=inner_group)
        train(net, optimizer, ddp, range(3))
        weights, momentum = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
        own, everybody = copy.deepcopy(state.state_dict()), of_all(state)
        expected = train(net, optimizer, ddp, range(3, 6))
        state.close()
        for saved, most in ((own, None), (everybody, None), (everybody, 2000)):
            with partition_bytes(most):
                net, optimizer, ddp, state = wrapped(params, inner_group=inner_group)
            net.load_state_dict(weights)
            optimizer.load_state_dict(copy.deepcopy(momentum))
            state.load_state_dict(saved)
            if most is None:
                assert torch.equal(train(net, optimizer, ddp, range(3, 6)), expected), params
            else:
                before, after = (totals(s, "worker.residual") for s in (saved, of_all(state)))
                assert all(torch.equal(before[name], after[name]) for name in before)
                said = "pass the list of the state_dicts of all workers that saved"
                raised(ValueError, said, partial(state.load_state_dict, own))
            state.close()
    state = bps.CompressionState(Net().named_parameters(), SIGNS)
    said = f"the machines is {CROSSED} there, but None here"
    raised(ValueError, said, lambda: state.load_state_dict(own))
    state.close()


@contextmanager
def partition_bytes(most):
    """Return a context with another BYTEPS_PARTITION_BYTES, unless it is None."""
    if most is not None:
        os.environ["BYTEPS_PARTITION_BYTES"] = str(most)
    yield
    os.environ.pop("BYTEPS_PARTITION_BYTES", None)


@on_workers(4)
def test_auto_measures_both_levels():
    params = {"compressor": "auto", "accuracy": "aggressive"}
    with logged() as lines:
        net, optimizer, ddp, state = wrapped(params, inner_group=own_group(PAIRS))
    if dist.get_rank() == 0:
        (line,) = [line for line in lines if line.startswith("auto, ")]
        assert "Mbit/s inside a machine" in line
    assert_alike(train(net, optimizer, ddp, range(2)))
    state.close()


@on_workers(4)
def test_a_choice_of_the_inner_compressor_is_kept_in_checkpoints():
    """The links are so slow that all gradients are compressed on both levels."""
    params, inner_group = {"compressor": "auto", "accuracy": "aggressive"}, own_group(PAIRS)
    with link_of(1e6):
        net, optimizer, ddp, state = wrapped(params, inner_group=inner_group)
    inner = {own.inner for own in state.params.values() if own.compressor is not None}
    assert inner == {inner_params()}
    assert_alike(train(net, optimizer, ddp, range(2)))
    saved = state.state_dict()
    state.close()
    _, _, _, other = wrapped(params, inner_group=inner_group)
    other.load_state_dict(saved)
    assert other.params == state.params
    other.close()


@on_workers(4)
def test_inner_groups_that_do_not_fit_are_an_error_on_all_workers():
    rank = dist.get_rank()
    pair, halves = own_group(PAIRS), own_group([[0, 2], [1, 3]])
    uneven, everybody = own_group([[0], [1, 2, 3]]), own_group([[0, 1, 2, 3]])

    def refused(said, inner_group, **options):
        raised(
            ValueError,
            said,
            lambda: bps.CompressionState(
                Net().named_parameters(), SIGNS, inner_group=inner_group, **options
            ),
        )

    refused("worker 3 has no inner_group, but other workers have one", None if rank == 3 else pair)
    alien = dist.GroupMember.NON_GROUP_MEMBER
    refused("worker 2 is not in its own inner_group", alien if rank == 2 else pair)
    first = rank % 2
    said = (
        f"the inner_group of worker {first} has worker {1 - first}, which is not in process_group"
    )
    refused(said, pair, process_group=halves)
    said = "the inner_group of worker 0 is [0, 1], but that of worker 1, which is in it, is [1, 3]"
    refused(said, pair if rank in (0, 2) else halves)
    said = "the inner_group of worker 1 has 3 workers, but that of worker 0 has 1: all must have"
    refused(said, uneven)
    raised(
        TypeError,
        "inner_group must be a ProcessGroup of torch.distributed, got str",
        lambda: bps.CompressionState(Net().named_parameters(), SIGNS, inner_group="site"),
    )
    state = bps.CompressionState(Net().named_parameters(), SIGNS, inner_group=everybody)
    assert state.exchange.machines is None  # a single group exchanges like workers of one machine
    state.close()
