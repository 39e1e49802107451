"""Rounds through a mailbox with MXNet's workers, which crash, lag, come and go."""

import signal
from functools import partial
from operator import attrgetter

import numpy as np

from tests.neutral.mailbox.runs import EVERY_5, require_sound

# Points of the protocol, in the order in which a worker reaches them.
POINTS = [
    "the payload of round .* is put",
    "the payloads of round .* are read",
    "the result of round .* is written",
    "the state after round [1-9].* is saved",
]


def weights(replay, worker):
    """Return the sum of the weights with which rounds have counted a worker, and its last entry."""
    entries = [e for r in replay.rounds for e in r.counted if e["worker"] == worker.facts["worker"]]
    return sum(entry["weight"] for entry in entries), entries[-1]


def test_four_workers_survive_kills_and_have_the_same_bits(tmp_path, workers):
    run = workers(str(tmp_path / "run"), settings={"grace": 0.2, "keep": 2})
    first = run.start("w0")
    run.wait_for_rounds(2, first)
    by_time = {**EVERY_5, "every": "0.05 s"}
    steady = [
        run.start("w1", contexts=2, batch_size=7, seed=1),
        run.start("w2", hybridizes=True, algorithm=by_time, batch_size=2),
    ]
    run.wait_for_rounds(2, *steady)
    for number, point in enumerate(POINTS, start=3):
        # The slowest worker is the last one that puts its payload, so it mostly decides.
        run.wait_for_end(run.start(f"w{number}", kill=point, sleep=0.02), -signal.SIGKILL)
    last = run.start("w7", batch_size=3)
    run.wait_for_rounds(3, first, *steady, last)
    alive = run.stop()
    assert alive == [first, *steady, last]
    replay = require_sound(run, alive)
    for worker, batch_size, left_out in zip(alive, (4, 7, 2, 3), (0, 1, 1, 1)):
        # The first gradient of a worker that joins late is of other parameters.
        assert worker.steps == worker.facts["updates"] + left_out, worker.name
        weight, entry = weights(replay, worker)
        assert weight == batch_size * (entry["steps"] - left_out)
        assert entry["loss"] > 0
        assert worker.facts["equal_copies"]
        assert 1 <= worker.facts["size"] <= 5
        assert worker.facts["rounds"] == worker.last_round
    assert len({worker.facts["worker"] for worker in alive}) == 4
    assert len({worker.facts["seed"] for worker in alive}) == 4


def test_a_nan_leaves_its_worker_out_of_a_round_on_nonfinite_raise_and_propagate(tmp_path, workers):
    run = workers(str(tmp_path / "run"), settings={"grace": 0.2, "keep": 1000})
    steady = run.start("w0")
    affected = [run.start(f"w{n}", on_nonfinite=r) for n, r in enumerate(("raise", "propagate"), 1)]
    run.wait_for_rounds(2, steady, *affected)
    for worker in affected:
        nan = run.folder / f"{worker.name}.nan"  # its gradients are NaN while this file exists
        nan.touch()
        told = f"leaves out worker {worker.name}-"
        logs = partial(map, attrgetter("log"), (steady, worker))
        run.wait("a round with a NaN", lambda told=told, logs=logs: all(told in x for x in logs()))
        nan.unlink()
        run.wait_for_rounds(3, steady, worker)
    run.stop()
    replay = require_sound(run, [steady])
    excluded = {name: why for each in replay.rounds for name, why in each.excluded.items()}
    assert set(excluded) == {worker.facts["worker"] for worker in affected}
    assert all("net_dense0_weight has a NaN or an infinity" in why for why in excluded.values())
    for worker in affected:
        assert "Error" not in worker.said
        assert all(np.isfinite(values).all() for values in worker.arrays["parameter"].values())
        later = [each.names for each in replay.rounds if not each.excluded][-3:]
        assert any(worker.facts["worker"] in names for names in later)


def test_a_worker_that_ends_puts_what_it_has_unless_it_failed(tmp_path, workers):
    run = workers(str(tmp_path / "run"), settings={"grace": 0.2, "keep": 1000})
    steady = run.start("w0", sleep=0.01)
    codes = {"shutdown": 0, "exit": 3, "raise": 1}
    ended = {
        end: run.start(f"w{number}", end=end, steps=12) for number, end in enumerate(codes, start=1)
    }
    terminated = ended["terminated"] = run.start("w4", contexts=2)
    codes["terminated"] = 128 + signal.SIGTERM
    run.wait_for_rounds(2, terminated)
    terminated.process.send_signal(signal.SIGTERM)
    for end, worker in ended.items():
        run.wait_for_end(worker, codes[end])
    run.wait_for_rounds(2, steady)
    assert run.stop() == [steady]
    putting = [worker for end, worker in ended.items() if end != "raise"]
    replay = require_sound(run, [steady, *putting])
    left = {worker for round in replay.rounds for worker in round.left}
    for worker in ended.values():
        assert worker.facts["equal_copies"]
        assert (worker.facts["worker"] in left) == (worker in putting)
