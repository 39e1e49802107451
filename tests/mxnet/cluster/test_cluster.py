"""Workers leave a cluster and join another: suspend, resume, shutdown and init."""

import os
from contextlib import contextmanager

import mxnet as mx
import numpy as np
import pytest

import gluon_gc as bps
from gluon_gc.mxnet.byteps.runtime import default_exchange
from gluon_gc.mxnet.state import tensor_states
from tests.mxnet.cluster.cluster import Cluster
from tests.mxnet.cluster.jobs import backward, gradients_of, parameters, ranks, train_steps
from tests.mxnet.cluster.standing import run


@contextmanager
def two_clusters(folder, first, second, **variables):
    """Yield two clusters, each with the given numbers of workers and servers, and their nodes."""
    with Cluster(folder, *first, **variables) as one, Cluster(folder, *second) as other:
        one.start_roles()
        if second[1]:
            other.start_roles("2")
        yield one, other


def resume_in(port, **more):
    os.environ["DMLC_PS_ROOT_PORT"] = str(port)
    bps.resume(num_servers=more.pop("servers", 1), **more)


def port_of(cluster):
    return cluster.environment["DMLC_PS_ROOT_PORT"]


def states_after_resume(trainer):
    """Return the states of a trainer that has made no step in the current cluster."""
    trainer._follow_cluster()
    trainer._averaging.prepare(trainer._optimizer, "step")
    return states_of(trainer)


def states_of(trainer):
    """Return this worker's residuals and momenta by tensor and kind."""
    arrays = tensor_states.state(default_exchange(), trainer._averaging.names())
    return {(key.tensor, key.what): array for key, array in arrays if key.node == "worker"}


SHAPES = [(300, 7), (33,)]
ONEBIT = {"compressor": "onebit", "ef": "corrected", "momentum": "nesterov"}


def resumed(port, folder):
    """Train in a cluster, then in another one, then load the state into worker 0 alone.

    Returns this worker's state at the end of the second cluster, and worker 0's state alone.
    """

    def made(kvstore=None):
        optimizer = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}
        params = parameters(SHAPES)
        return params, bps.DistributedTrainer(
            params, "sgd", optimizer, compression_params=ONEBIT, kvstore=kvstore
        )

    never, trainer_never = made()
    train_steps(never, trainer_never, range(6), SHAPES)
    params, trainer = made("dist_sync")
    train_steps(params, trainer, range(3), SHAPES)
    backward(params, gradients_of(bps.rank(), 10, SHAPES))
    trainer.allreduce_grads(1)  # no update applies these averages
    bps.suspend()
    resume_in(port, num_workers=2)
    trainer.save_states(f"{folder}/states{bps.rank()}")  # before a step has used the new cluster
    train_steps(params, trainer, range(3, 6), SHAPES)
    for ours, other in zip(params, never):
        np.testing.assert_array_equal(ours.data().asnumpy(), other.data().asnumpy())
    before, alone, rank = states_of(trainer), None, bps.rank()
    bps.suspend()
    if rank == 0:
        del os.environ["BYTEPS_FORCE_DISTRIBUTED"]
        bps.resume(num_workers=1, num_servers=1, global_rank=0)
        bps.suspend()  # before a step has used the state
        bps.resume(num_workers=1, num_servers=1, global_rank=0)
        assert bps.size() == 1
        alone = states_after_resume(trainer)
    return before, alone


def test_workers_go_on_in_another_cluster_and_in_one_of_another_size(tmp_path):
    with two_clusters(tmp_path, (2, 2), (2, 1)) as (first, second):
        job = {"port": port_of(second), "folder": str(tmp_path)}
        for rank in range(2):
            first.start_worker(rank, resumed, job)
        both = first.results()
        second.wait_for_end()
    alone = both[0][1]
    assert {what for _, what in alone} == {"residual", "momentum"}
    for key, array in alone.items():
        total = sum(before[key] for before, _ in both)
        np.testing.assert_array_equal(array, total)
        assert total.any()


def resumed_on_one_machine(port, servers):
    """Train on two machines, then load the state into workers 0 and 1 on one machine.

    Returns each worker's residual before, and that of workers 0 and 1 afterwards.
    """
    params = parameters(SHAPES[:1])
    trainer = bps.DistributedTrainer(
        params, "sgd", compression_params={"compressor": "onebit", "ef": "vanilla"}
    )
    train_steps(params, trainer, [0], SHAPES[:1])
    (before,), after, rank = states_of(trainer).values(), None, bps.rank()
    bps.suspend()
    if rank < 2:
        if not servers:
            del os.environ["BYTEPS_FORCE_DISTRIBUTED"]
        os.environ.update(BYTEPS_LOCAL_SIZE="2", BYTEPS_LOCAL_RANK=str(rank))
        resume_in(port, num_workers=1, servers=servers, global_rank=0)
        (after,) = states_after_resume(trainer).values()
        assert bps.size() == 2
    return before, after


@pytest.mark.parametrize("servers", [0, 1])
@pytest.mark.parametrize("workers", [2, 4])
def test_the_workers_of_a_machine_get_the_residuals_of_another_once(tmp_path, workers, servers):
    local_size = workers // 2
    machines = {"DMLC_NUM_WORKER": 2, "BYTEPS_LOCAL_SIZE": local_size}
    with two_clusters(tmp_path, (workers, 1), (1, servers), **machines) as (first, second):
        for rank in range(workers):
            machine, local_rank = divmod(rank, local_size)
            numbers = {"DMLC_WORKER_ID": machine, "BYTEPS_LOCAL_RANK": local_rank}
            job = {"port": port_of(second), "servers": servers}
            first.start_worker(rank, resumed_on_one_machine, job, **numbers)
        results = first.results()
    total = results[0][0] + results[-1][0]
    assert total.any()
    for _, after in results[:2]:
        np.testing.assert_allclose(after, total, rtol=1e-6)


def grown(optimizer, options, port):
    """Train alone for 3 steps, then with a new worker, which has other initial parameters.

    Returns the weights after 6 steps, and the number of steps that the trainer has counted.
    """
    old, shapes = bps.size() == 1, [(5, 7)]
    params = parameters(shapes, contexts=2, value=1 if old else 9)
    options = {"lr_scheduler": mx.lr_scheduler.FactorScheduler(1, 0.9), **options}
    trainer = bps.DistributedTrainer(params, optimizer, options)
    for step in range(0 if old else 3, 6):
        if old and step == 3:
            bps.suspend()
            resume_in(port, num_workers=2)
        backward(params, gradients_of(bps.rank(), step, shapes))
        trainer.step(2)
    return [array.asnumpy() for array in params[0].list_data()], trainer._averaging.steps


def grown_by_hand(optimizer, options, port):
    """As `grown`, with a DistributedOptimizer and MXNet's Updater, as Module does."""
    old = bps.size() == 1
    scheduler = mx.lr_scheduler.FactorScheduler(1, 0.9)
    inner = mx.optimizer.create(optimizer, lr_scheduler=scheduler, **options)
    update = mx.optimizer.get_updater(bps.DistributedOptimizer(inner))
    weight = mx.nd.full((5, 7), 1 if old else 9)
    for step in range(0 if old else 3, 6):
        if old and step == 3:
            bps.suspend()
            resume_in(port, num_workers=2)
        (gradient,) = gradients_of(bps.rank(), step, [(5, 7)])
        update(0, mx.nd.array(gradient), weight)
    return [weight.asnumpy()], inner.num_update


@pytest.mark.parametrize("job", [grown, grown_by_hand])
@pytest.mark.parametrize("optimizer, options", [("sgd", {"momentum": 0.9}), ("nadam", {})])
def test_a_new_worker_goes_on_from_the_parameters_and_states_of_the_old_one(
    tmp_path, job, optimizer, options
):
    with two_clusters(tmp_path, (1, 1), (2, 1)) as (first, second):
        arguments = {"optimizer": optimizer, "options": options, "port": port_of(second)}
        first.start_worker(0, job, arguments)
        second.start_worker(1, job, arguments)
        first.wait_for_end()
        second.wait_for_end()
        results = [cluster.result(rank) for rank, cluster in enumerate([first, second])]
    scheduler = mx.lr_scheduler.FactorScheduler(1, 0.9)
    stock = mx.optimizer.create(optimizer, lr_scheduler=scheduler, **options)
    update, weight = mx.optimizer.get_updater(stock), mx.nd.ones((5, 7))
    for step in range(6):
        workers = range(1 if step < 3 else 2)
        mean = sum(gradients_of(rank, step, [(5, 7)])[0] for rank in workers) / len(workers)
        update(0, mx.nd.array(mean), weight)
    for copies, steps in results:
        np.testing.assert_allclose(copies[0], weight.asnumpy(), rtol=1e-5, atol=1e-6)
        for copy in copies:
            np.testing.assert_array_equal(copy, results[0][0][0])
        assert steps == 6


def test_servers_learn_how_many_workers_a_machine_has():
    places = run(ranks, variables={"BYTEPS_LOCAL_SIZE": 2})
    assert places == [(0, 0, 2), (1, 1, 2)]


def sizes_of_two_clusters(port):
    sizes = [bps.size()]
    bps.shutdown()
    os.environ["DMLC_PS_ROOT_PORT"] = str(port)
    bps.init()
    return [*sizes, bps.size()]


def test_workers_of_a_machine_are_counted_alike_after_shutdown_and_init(tmp_path):
    machine = {"DMLC_NUM_WORKER": 1, "BYTEPS_LOCAL_SIZE": 2}
    with two_clusters(tmp_path, (2, 1), (1, 1), **machine) as (first, second):
        for rank in range(2):
            numbers = {"DMLC_WORKER_ID": 0, "BYTEPS_LOCAL_RANK": rank}
            first.start_worker(rank, sizes_of_two_clusters, {"port": port_of(second)}, **numbers)
        assert first.results() == [[2, 2], [2, 2]]
        second.wait_for_end()


def handled():
    """Leave the cluster when an iterator ends."""
    try:
        next(iter(()))
    except StopIteration:
        bps.shutdown()


def test_the_end_of_an_iterator_is_no_failure(cluster):
    nodes = cluster(1, 1)
    nodes.start_roles()
    nodes.start_worker(0, handled)
    nodes.results()
