"""Rounds through a mailbox with workers that crash, lag, come and go."""

import signal

from tests.neutral.mailbox.runs import EVERY_5, require_sound
from tests.neutral.mailbox.stores import refusal

FAST = {"grace": 0.3, "keep": 1000}


# The points of the protocol, in the order in which a worker reaches them.
AT_FIRST = ["the run at .* is new", "the state after round 0 is saved"]
POINTS = [
    "joins in round",
    "round .* begins",
    "the payload of round .* is put",
    "round .* is complete",
    "the payloads of round .* are read",
    "the result of round .* is written",
    "the state after round [1-9].* is saved",
    "the payloads of round .* are removed",
    "the states before round [1-9].* are removed",
]


def test_a_run_survives_a_kill_at_each_point_of_the_protocol(url, workers):
    run = workers(url, settings={"grace": 0.2, "keep": 2})
    for point in AT_FIRST:
        run.wait_for_end(run.start(f"first{AT_FIRST.index(point)}", kill=point), -signal.SIGKILL)
    steady = run.start("w0")
    run.wait_for_rounds(1, steady)
    for number in range(0, len(POINTS), 2):
        points = POINTS[number : number + 2]  # one victim for each, at the same time
        pair = [run.start(f"w{number + i}", kill=p, sleep=0.01) for i, p in enumerate(points, 1)]
        for victim in pair:
            run.wait_for_end(victim, -signal.SIGKILL)
    last = run.start("w99")
    run.wait_for_rounds(2, steady, last)
    alive = run.stop()
    assert alive == [steady, last]
    require_sound(run, alive)


def test_workers_that_lag_join_late_or_have_a_nan_lose_nothing(url, workers):
    run = workers(url, settings={**FAST, "grace": 0.1})
    fast = run.start("w0", settings={**run.config["settings"], "samples_per_step": 4})
    slow = run.start("w1", sleep=0.05)
    run.wait_for_rounds(2, fast, slow)
    by_time = {**EVERY_5, "every": "0.2 s"}
    late = run.start("w2", algorithm=by_time)
    run.wait_for_rounds(5, slow, late)
    nan = run.folder / "w2.nan"  # its gradients are NaN while this file exists
    nan.touch()
    run.wait("the round with a NaN", lambda: "has a NaN or an infinity" in fast.log)
    nan.unlink()
    run.wait_for_rounds(3, slow, late)
    alive = run.stop()
    replay = require_sound(run, [fast, slow])
    names = {worker: worker.facts["worker"] for worker in alive}
    counted = {worker: [r for r in replay.rounds if names[worker] in r.names] for worker in alive}
    assert 2 <= len(counted[slow]) < len(replay.rounds)
    assert len(counted[fast]) > len(counted[slow])
    for worker, samples in ((fast, 4), (slow, 1)):  # the weight is of all samples since it counted
        entries = [e for r in counted[worker] for e in r.counted if e["worker"] == names[worker]]
        assert sum(entry["weight"] for entry in entries) == samples * entries[-1]["steps"]
    assert any(e["loss"] is not None for r in counted[late] for e in r.counted)
    excluded = [r.excluded for r in replay.rounds if r.excluded]
    assert {name for each in excluded for name in each} == {names[late]}
    assert "parameter onebit.weight has a NaN or an infinity" in excluded[0][names[late]]
    message = f"leaves out worker {names[late]}: parameter onebit.weight has a NaN"
    assert all(message in worker.log for worker in alive)
    # The samples of the steps that a NaN undid have no weight, but those of a late payload before.
    undone = uncounted = 0
    for each in (r for r in replay.rounds if names[late] in r.payloads):
        header = each.payloads[names[late]].header
        if header["nonfinite"]:
            undone += header["weight"] - uncounted
        else:
            uncounted = 0 if names[late] in each.names else header["weight"]
    entries = [e for r in counted[late] for e in r.counted if e["worker"] == names[late]]
    weights = sum(entry["weight"] for entry in entries)
    assert weights == entries[-1]["steps"] - undone


def test_a_worker_that_ends_puts_what_it_has_unless_it_failed(tmp_path, workers):
    run = workers(str(tmp_path / "run"), settings=FAST)
    steady = run.start("w0", sleep=0.01)
    codes = {"terminated": 143, "interrupted": -signal.SIGINT, "exit": 3, "raise": 1}
    steps = {"exit": 12, "raise": 12}
    started = {
        end: run.start_python(f"w{number}", end=end, steps=steps.get(end, 10**9))
        for number, end in enumerate(codes, start=1)
    }
    endless = [started["terminated"], started["interrupted"]]
    run.wait_for_rounds(2, *endless)
    for worker, number in zip(endless, (signal.SIGTERM, signal.SIGINT)):
        worker.process.send_signal(number)
    for end, worker in started.items():
        run.wait_for_end(worker, codes[end])
    run.wait_for_rounds(2, steady)
    assert run.stop() == [steady]
    putting = [worker for end, worker in started.items() if end != "raise"]
    replay = require_sound(run, [steady, *putting])
    left = {worker for round in replay.rounds for worker in round.left}
    for worker in started.values():
        assert "lost" not in worker.said, worker.said
        assert (worker.facts["worker"] in left) == (worker in putting)


def test_training_goes_on_locally_while_the_store_fails(bucket, proxy, workers):
    run = workers(bucket, settings={**FAST, "grace": 0.5})
    both = [run.start("w0"), run.start("w1")]
    run.wait_for_rounds(2, *both)
    before = [worker.steps for worker in both]
    proxy.change = lambda request: refusal(503, "SlowDown")
    run.wait("both go on locally", lambda: all("Training goes on" in w.log for w in both))
    run.wait(
        "more local steps",
        lambda: all(w.steps > b + 20 for w, b in zip(both, before)),
    )
    proxy.change = lambda request: None
    run.wait_for_rounds(2, *both)
    assert all("answers again, after" in worker.log for worker in both)
    require_sound(run, run.stop())
