"""Steps that do not use all parameters, on real backends, compared with a NumPy replay.

A stale gradient counts as zeros. A parameter that no worker uses keeps its weight, residual and
momentum.
"""

import numpy as np
import pytest

from gluon_gc.compression import parse
from tests import dgc_replay, replay
from tests.mxnet.cluster.jobs import gradients_of
from tests.mxnet.cluster.standing import run, run_horovod, run_machine
from tests.mxnet.exchange.test_two_way import of_way

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
WAYS = [
    {"compression_params": ONEBIT, "bundled": 1},
    {"compression_params": CORRECTED},
    {"compression_params": DITHERING, "bundled": 1},
    {"compression_params": DGC, "bundled": 1},
    {"compression_params": None},
    {"compression_params": ONEBIT, "trainer": {"on_nonfinite": "skip"}},
]


def arguments(used=USED, **more):
    """Return the arguments of `jobs.stale`."""
    more.setdefault("excluded", EXCLUDED)
    return {"shapes": SHAPES, "used": used, "learning_rates": RATES, **more}


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
    order = np.argsort([int(result["row"]) for result in results]) if local_size == 1 else None
    senders = workers // local_size
    for index, shape in enumerate(SHAPES):
        path = path_of(options, senders, index)
        compressed = options["compression_params"] is not None
        weight, velocity, last = np.full(shape, index + 1.0), 0.0, RATES[0]
        for step, of_ranks in enumerate(options["used"]):
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


def on_nodes(job, arguments, workers):
    """Run a job on two machines with two workers each."""
    return run(job, arguments, 4, servers=2, variables={"BYTEPS_LOCAL_SIZE": 2})


@pytest.mark.parametrize(
    "start, workers, local_size",
    [(run, 2, 1), (run_horovod, 2, 1), (run_machine, 2, 2), (on_nodes, 4, 2)],
)
def test_what_some_workers_use_is_updated_on_all_and_what_nobody_uses_stays_as_it_is(
    start, workers, local_size
):
    if start is run_horovod:
        pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
    ways = [arguments(**way) for way in WAYS]
    results = start("several_stale", ways, workers=workers)
    for number, options in enumerate(ways):
        of_ways = [of_way(result, number) for result in results]
        assert_equal_weights(of_ways)
        check(of_ways, options, local_size)


def test_a_checkpoint_between_such_steps_changes_nothing(tmp_path):
    never = arguments(compression_params=CORRECTED)
    resumed = {**never, "resumed": 3, "folder": str(tmp_path)}
    for result in run("several_stale", [never, resumed], workers=2):
        expected, ours = of_way(result, 0), of_way(result, 1)
        for step in range(3, len(USED)):
            for index in range(len(SHAPES)):
                name = f"w{index}_{step}"
                np.testing.assert_array_equal(ours[name], expected[name], err_msg=name)
