"""Copies, close(), rounds of init and shutdown, and workers that do not come."""

import os
import time
from datetime import timedelta
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
    logged,
    raised,
    settled,
    sgd,
    train,
    train_once,
    wrapped,
)
from tests.torch.workers import on_workers


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
def test_states_share_the_hooks_around_the_steps_of_all_optimizers():
    from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

    def count():
        return len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks)

    states = [bps.CompressionState(Net().named_parameters(), TOPK)]
    before = count()
    states += [bps.CompressionState(Net().named_parameters(), TOPK) for _ in range(3)]
    assert count() == before
    for state in states:
        state.close()


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


# Rounds of init and shutdown


def files_and_threads():
    return [len(os.listdir(folder)) for folder in ("/proc/self/fd", "/proc/self/task")]


# New workers, because what an earlier test left may end meanwhile.
@on_workers(2, NEW="for rounds of init and shutdown")
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
        counts.append(settled(files_and_threads))
    later = counts[1:]  # the first round starts what stays, such as OpenMP's threads
    assert later == later[:1] * 3, counts
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


@on_workers(2)
def test_a_misspelt_variable_is_named_once_a_machine():
    with mock.patch.dict(os.environ, BYTEPS_PARTITON_BYTES="1"), logged() as lines:
        bps.init()
    said = "reads the variable BYTEPS_PARTITON_BYTES; did you mean BYTEPS_PARTITION_BYTES?"
    assert any(said in line for line in lines) == (bps.local_rank() == 0), lines


@on_workers(2)
def test_callbacks_of_an_average_may_begin_another_step_and_save():
    parameter = torch.nn.Parameter(torch.zeros(3000))
    state = bps.CompressionState([("w", parameter)], TOPK)

    def average(value):
        return state.average({"w": torch.full((3000,), value)})

    calls = [state.state_dict, lambda: state.set_epoch(1), lambda: average(1.0)]
    for call in calls:
        average(2.0).then(lambda _, call=call: call()).wait()
    average(3.0).wait()
    state.close()


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
    os.environ["GLUON_GC_STALL_SECONDS"] = "soon"  # not valid: the earlier value stays
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
        said = "an exchange has failed: another worker may have ended, or made a "
        said += "different call: worker 0 waits for worker 1: "
        raised(RuntimeError, said, lambda: train(net, optimizer, ddp, [2]))
    os._exit(0)


@on_workers(3)
def test_workers_may_be_in_different_numbers_of_groups():
    """PyTorch's names of groups count them, so workers would wait for differently named groups."""
    for _ in range(2):
        dist.new_group([0, 1])
    group = dist.new_group([1, 2], timedelta(seconds=20))
    if dist.get_rank() == 0:
        return
    for name in ("first", "second"):
        average = {name: torch.full((100,), float(dist.get_rank()))}
        parameters = [(name, torch.nn.Parameter(torch.zeros(100)))]
        state = bps.CompressionState(parameters, process_group=group)
        state.average(average).wait()
        assert average[name].unique().tolist() == [1.5]
