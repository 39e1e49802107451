"""Steps that do not use all parameters, on real backends, compared with a NumPy replay.

A stale gradient counts as zeros. A parameter that no worker uses keeps its weight, residual and
momentum.
"""

from pathlib import Path

import numpy as np
import pytest

import gluon_gc as bps
from gluon_gc.compression import parse
from gluon_gc.mxnet.byteps.runtime import default_exchange
from gluon_gc.mxnet.state import tensor_states
from tests import dgc_replay, replay
from tests.mxnet.cluster.jobs import backward, gradients_of, parameters
from tests.mxnet.cluster.standing import on_workers, run, run_horovod, run_machine

SHAPES = [(50, 20), (33,), (257, 3), (6, 5), (11,)]
EXCLUDED = [3, 4]
ALL, NONE = [0, 1, 2, 3, 4], []
# For each step, the parameters that worker 0 uses, and those that worker 1 uses.
USED = [(ALL, ALL), ([0, 2, 3], [2]), ([], [1, 4]), (NONE, NONE), (ALL, NONE), ([0], ALL)]
RATES = [0.125, 0.25, 0.0625, 0.5, 0.5, 0.125]
MU, WD = 0.9, 0.125
ONEBIT = {"compressor": "onebit", "scaling": True, "ef": "vanilla", "momentum": "nesterov"}
CORRECTED = {**ONEBIT, "ef": "corrected"}
DITHERING = {"compressor": "dithering", "k": 4, "seed": 3, "ef": "vanilla", "momentum": "nesterov"}
DGC = {"compressor": "dgc", "k": 0.05, "seed": 7, "momentum": "nesterov"}
WAYS = {
    "onebit": {"compression_params": ONEBIT, "bundled": 1},
    "corrected": {"compression_params": CORRECTED},
    "dithering": {"compression_params": DITHERING, "bundled": 1},
    "dgc": {"compression_params": DGC, "bundled": 1},
    "uncompressed": {"compression_params": None},
    "skip": {"compression_params": ONEBIT, "trainer": {"on_nonfinite": "skip"}},
}


def stale(compression_params, bundled=0, trainer=None, resumed=None, folder=None):
    """Train with ignore_stale_grad=True, where each worker uses the parameters of USED.

    The first `bundled` steps have ignore_stale_grad=False. Before step `resumed`, a second trainer
    takes over from a checkpoint of the first. Returns weights and gradients after each step, and
    residuals and momentum.
    """
    more = trainer or {}

    def made():
        params = parameters(SHAPES)
        for i in EXCLUDED:
            params[i].compression_params = None
        optimizer = {"learning_rate": RATES[0], "momentum": MU, "wd": WD}
        return params, bps.DistributedTrainer(
            params, "sgd", optimizer, compression_params=compression_params, **more
        )

    params, trainer = made()
    result = {"row": bps.rank()}
    for step, of_ranks in enumerate(USED):
        if step == resumed:
            file = str(Path(folder, f"stale-{bps.rank()}"))
            trainer.save_states(file)
            weights = [param.data() for param in params]
            params, trainer = made()
            for param, weight in zip(params, weights):
                param.set_data(weight)
            trainer.load_states(file)
        used = of_ranks[bps.rank() % len(of_ranks)]
        values = gradients_of(bps.rank(), step, SHAPES)
        if used:
            backward([params[i] for i in used], [values[i] for i in used])
        trainer.set_learning_rate(RATES[step])
        trainer.step(1, ignore_stale_grad=step >= bundled)
        for i, param in enumerate(params):
            result[f"g{i}_{step}"] = param.grad().asnumpy()
            result[f"w{i}_{step}"] = param.data().asnumpy()
        numbers = {tensor.name: i for (i, _), tensor in trainer._averaging.tensors.items()}
        for key, array in tensor_states.state(default_exchange(), trainer._averaging.names()):
            result[f"{key.what}{numbers[key.tensor]}_{step}/{key.node}"] = array
    return result


class Dgc:
    """Replays all workers with dgc, for a parameter of n elements."""

    def __init__(self, workers, n, index):
        plan = dgc_replay.plan(n, DGC["k"], 0.01)
        starts = [replay.own_start(DGC["seed"], index, rank) for rank in range(workers)]
        self.workers = [dgc_replay.Replay(n, np.float32, MU, at, **plan) for at in starts]

    def nodes(self, sender):
        worker = self.workers[sender]
        return {"worker": {"residual": worker.velocity, "momentum": worker.momentum}}

    def step(self, gradients, ratio, order):
        decoded = [worker.step(g)[1] for worker, g in zip(self.workers, gradients)]
        return sum((decoded[rank] for rank in order[1:]), decoded[order[0]])


class Plain:
    """Replays an uncompressed parameter; Nesterov momentum follows if others are compressed."""

    def __init__(self, mu):
        self.mu, self.momentum = np.float32(mu), np.float32(0)

    def nodes(self, sender):
        return {}

    def step(self, gradients, ratio, order):
        g = sum(gradients)
        self.momentum = self.mu * self.momentum + g
        return g + self.mu * self.momentum


class TwoWay(replay.Exchange):
    """Replays a parameter that is compressed both ways."""

    def nodes(self, sender):
        worker, server = self.workers[sender], self.server
        return {
            "worker": {"residual": worker.residual, "momentum": worker.momentum},
            "aggregator": {"residual": server.residual},
        }


def path_of(options, senders, index):
    n, params = int(np.prod(SHAPES[index])), options["compression_params"]
    applies = params is not None
    accumulates = applies and params["compressor"] == "dgc"
    if not applies or index in EXCLUDED or (accumulates and len(SHAPES[index]) == 1):
        return Plain(MU if applies else 0)
    if accumulates:
        return Dgc(senders, n, index)
    return TwoWay(senders, parse(params, MU), n, index, np.float32)


def check(results, options, local_size=1):
    """Compare weights and state after each step with the replay.

    `local_size` workers of a machine share their messages.
    """
    workers = len(results)
    order = np.argsort([result["row"] for result in results]) if local_size == 1 else None
    senders = workers // local_size
    for index, shape in enumerate(SHAPES):
        path = path_of(options, senders, index)
        compressed = options["compression_params"] is not None
        weight, velocity, last = np.full(shape, index + 1.0), 0.0, RATES[0]
        for step, of_ranks in enumerate(USED):
            used = [index in of_ranks[rank % len(of_ranks)] for rank in range(workers)]
            if any(used):
                own = [
                    gradients_of(rank, step, SHAPES)[index].ravel() * np.float32(using / workers)
                    for rank, using in enumerate(used)
                ]
                sums = [sum(own[i : i + local_size]) for i in range(0, workers, local_size)]
                ratio, rate, last = last / RATES[step], RATES[step], RATES[step]
                g = path.step(sums, ratio, range(senders) if order is None else order)
                g = g.reshape(shape)
                if compressed:  # velocity is then the momentum of weight decay
                    velocity = MU * (velocity + WD * weight)
                    weight = weight - rate * (g + velocity + WD * weight)
                else:
                    velocity = MU * velocity - rate * (g + WD * weight)
                    weight = weight + velocity
            for rank, result in enumerate(results):
                close(result[f"w{index}_{step}"], weight)
                check_state(result, f"{index}_{step}", path, rank // local_size)


def check_state(result, name, path, sender):
    """Compare the states of a worker, and the aggregator's if it has them, with the replay."""
    for node, replayed in path.nodes(sender).items():
        for what, expected in replayed.items():
            array = result.get(f"{what}{name}/{node}")
            if array is not None:
                close(array, expected)


def assert_equal_weights(results):
    for name, array in results[0].items():
        if name[0] in "wg":
            for result in results[1:]:
                np.testing.assert_array_equal(result[name], array, err_msg=name)


def close(ours, expected):
    np.testing.assert_allclose(ours, expected, rtol=2e-5, atol=2e-5)


def on_machines(job, options, workers):
    """Run a job on two machines with two workers each."""
    return run(job, options, workers, servers=2, variables={"BYTEPS_LOCAL_SIZE": 2})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "start, workers, local_size",
    [(run, 2, 1), (run_horovod, 2, 1), (run_machine, 2, 2), (on_machines, 4, 2)],
)
def test_what_some_workers_use_is_updated_on_all_and_what_nobody_uses_stays_as_it_is(
    start, workers, local_size, way
):
    results = start(stale, WAYS[way], workers=workers)
    assert_equal_weights(results)
    check(results, WAYS[way], local_size)


@on_workers(2)
def test_a_checkpoint_between_such_steps_changes_nothing(tmp_path):
    expected = stale(CORRECTED)
    resumed = stale(CORRECTED, resumed=3, folder=tmp_path)
    for step in range(3, len(USED)):
        for index in range(len(SHAPES)):
            name = f"w{index}_{step}"
            np.testing.assert_array_equal(resumed[name], expected[name], err_msg=name)


@on_workers(2)
def test_a_parameter_that_is_frozen_holds_up_none_that_travels_with_it():
    shapes = [(40,), (7,)]
    params = parameters(shapes)
    exact = {"compressor": "topk", "k": 1000, "ef": "vanilla"}
    trainer = bps.DistributedTrainer(
        params, "sgd", {"learning_rate": 0.1}, compression_params=exact
    )
    for step in range(2):
        values = gradients_of(bps.rank(), step, shapes)
        backward(params[: 2 - step], values[: 2 - step])
        before = params[1].data().asnumpy()
        trainer.step(1, ignore_stale_grad=True)
        params[1].grad_req = "null"
    np.testing.assert_array_equal(before, params[1].data().asnumpy())
    average = sum(gradients_of(rank, 1, shapes)[0] for rank in range(2)) / 2
    np.testing.assert_allclose(params[0].grad().asnumpy(), average, rtol=1e-6, atol=1e-7)
