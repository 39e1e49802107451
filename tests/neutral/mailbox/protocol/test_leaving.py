"""A worker that leaves hands over all that it has changed, and tells if it cannot."""

import os
import signal
import sys
import threading
import time
from concurrent.futures import wait
from functools import partial

import numpy as np
import pytest

from gluon_gc.mailbox import objects, patient_store, run
from gluon_gc.mailbox.store import Store, StoreError
from tests.neutral.mailbox.runs import Replay

from .workers import SHAPES, TIMEOUT, Member, counted, in_threads, read, results, wait_for

AT_ONCE, SHORT, LONG = 1e-9, 0.05, 60.0  # grace


def weights(url, member):
    """The weights of a member's payloads by round, whether a result counts them or not."""
    names = [entry.name for entry in Store(url).list("difference/rounds/")]
    put = [name for name in names if name.endswith(f"payloads/{member.name}")]
    headers = [read(url, name).header for name in put]
    return {header["round"]: header["weight"] for header in headers}


def counted_weight(url, member):
    entries = [entry for result in results(url).values() for entry in result["counted"]]
    return sum(entry["weight"] for entry in entries if entry["worker"] == member.name)


def handed_over(url, member):
    """The sum of a member's uncompressed payloads."""
    total = 0
    for number in weights(url, member):
        payload = read(url, objects.payload_name("difference", number, member.name))
        total = total + np.frombuffer(payload.body, np.float32)
    return total


def assert_all_is_handed_over(url, member):
    made = np.concatenate([member.made[name].reshape(-1) for name in SHAPES])
    np.testing.assert_allclose(handed_over(url, member), made, atol=1e-5)


def leave(member):
    """Let a member leave. Return the seconds that this takes."""
    began = time.monotonic()
    member.run.close()
    return time.monotonic() - began


def test_the_steps_since_a_payload_in_the_open_round_are_in_the_next_round(url):
    leaves = Member(url, 0, {"every": 5}, min_workers=2, grace=SHORT).join().train(23)
    leaves.run.close()
    assert weights(url, leaves) == {1: 5, 2: 18}
    assert_all_is_handed_over(url, leaves)
    stays = Member(url, 1, min_workers=2, grace=SHORT).join().train(3)
    assert [counted(results(url)[n]) for n in (1, 2)] == [[leaves.name, stays.name]] * 2
    assert counted_weight(url, leaves) == 23
    assert leaves.name not in counted(results(url).get(3, {"counted": []}))


@pytest.mark.parametrize("steps, put", [(2, {1: 2}), (3, {1: 2, 2: 1})])
def test_an_upload_under_way_ends_first(url, steps, put):
    leaves = Member(url, 0, {"every": 2, "overlap": 1}, min_workers=2, grace=SHORT).join()
    leaves.store.trap("put", "/payloads/", partial(time.sleep, 0.5))
    leaves.train(steps)
    leaves.run.close()
    assert weights(url, leaves) == put
    assert_all_is_handed_over(url, leaves)


@pytest.mark.parametrize("after", [False, True], ids=["not put", "put, but not answered"])
def test_an_outage_that_is_over_loses_nothing(url, after, monkeypatch):
    monkeypatch.setattr("gluon_gc.mailbox.patient_store._FIRST_PAUSE", LONG)
    leaves = Member(url, 0, {"every": 2, "overlap": 1}, grace=SHORT).join()
    failed = threading.Event()

    def fail():
        failed.set()
        raise StoreError("no answer")

    leaves.store.trap("put", "/payloads/", fail, after)
    leaves.train(2)
    assert failed.wait(TIMEOUT)
    leaves.train(5)
    assert leave(leaves) < 10
    assert weights(url, leaves) == {1: 2, 2: 5}
    assert_all_is_handed_over(url, leaves)


def during_uploads(member, action, *later):
    """Call the first action during a member's next upload of a payload, and so on."""

    def act():
        action()
        if later:
            during_uploads(member, *later)

    member.store.trap("put", "/payloads/", act)


@pytest.mark.parametrize("rounds", [1, 4])
def test_a_payload_that_comes_after_the_result_is_put_again(url, rounds):
    stays = Member(url, 0, grace=AT_ONCE).join()
    leaves = Member(url, 1, {"every": 100}, grace=SHORT).join().train(7)
    during_uploads(leaves, *[partial(stays.train, rounds)] * 2)
    leaves.run.close()
    stays.train(2 * rounds + 1)
    assert counted_weight(url, leaves) == 7
    assert leaves.driver.uncounted_steps == 0


def held_before_its_result(member):
    """Return two events: the member is about to put its next result, and it may go on."""
    lists, goes_on = threading.Event(), threading.Event()
    member.store.trap("put", "/result", lambda: (lists.set(), goes_on.wait(TIMEOUT)))
    return lists, goes_on


@pytest.mark.parametrize("own", [{"grace": AT_ONCE}, {"grace": LONG}, {"min_workers": 9}], ids=str)
def test_a_payload_that_a_decider_has_not_listed_is_put_again(url, own):
    stays = Member(url, 0, grace=AT_ONCE).join()
    leaves = Member(url, 1, {"every": 100}, **own).join().train(7)
    lists, goes_on = held_before_its_result(stays)

    def leave_meanwhile():
        assert lists.wait(TIMEOUT)
        leaves.store.trap("put", "/leavers/", lambda: threading.Timer(0.2, goes_on.set).start())
        leaves.run.close()

    in_threads(stays.train, leave_meanwhile)
    assert counted(results(url)[1]) == [stays.name]
    stays.train(3)
    assert counted_weight(url, leaves) == 7


def test_a_payload_is_put_again_if_its_decider_leaves_between_two_listings(url):
    decider = Member(url, 0, grace=AT_ONCE).join()
    leaves = Member(url, 1, {"every": 100}, grace=LONG).join().train(7)
    lists, goes_on = held_before_its_result(decider)
    has_left = threading.Event()

    def decide_and_leave():
        decider.train().run.close()
        has_left.set()

    def let_it_leave():
        goes_on.set()
        assert has_left.wait(TIMEOUT)

    def leave_meanwhile():
        assert lists.wait(TIMEOUT)
        trap = leaves.store.trap
        trap("put", "/leavers/", partial(trap, "list", "/00000001/", let_it_leave, True), True)
        leaves.run.close()

    in_threads(decide_and_leave, leave_meanwhile)
    assert counted(results(url)[1]) == [decider.name]
    Member(url, 2, grace=AT_ONCE).join().train(3)
    assert counted_weight(url, leaves) == 7


def test_a_worker_that_was_killed_is_waited_for_while_it_might_read_payloads(url, monkeypatch):
    monkeypatch.setattr("gluon_gc.mailbox.participant._DECIDING_SECONDS", SHORT)
    monkeypatch.setattr("gluon_gc.mailbox.store._SLOWEST", 1000)
    leaves = Member(url, 0, {"every": 100}, grace=AT_ONCE).join().train(7)
    leaves.store.put(objects.payload_name("difference", 1, "killed-1-abcdef"), bytes(500))
    assert 0.5 < leave(leaves) < 10
    assert weights(url, leaves) == {1: 7} and results(url) == {}


def test_a_replay_has_a_last_payload_behind_a_round_without_any(url):
    decider = Member(url, 0, grace=AT_ONCE).join()
    leaves = Member(url, 1, {"every": 100}, grace=SHORT).join().train(7)
    during_uploads(leaves, decider.train)
    for member in (leaves, decider):
        member.run.close()
    assert weights(url, leaves) == {3: 7} and list(results(url)) == [1]
    replay = Replay(url, {"algorithm": {"name": "local_steps"}, "compression_params": None})
    for name, values in replay.handed_over(leaves.name).items():
        np.testing.assert_allclose(values, leaves.made[name].reshape(-1), atol=1e-5)


def test_a_payload_that_always_comes_too_late_is_told(url, logged):
    stays = Member(url, 0, grace=AT_ONCE).join()
    leaves = Member(url, 1, {"every": 100}, grace=SHORT).join().train(7)
    during_uploads(leaves, *(partial(stays.train, rounds) for rounds in (1, 3, 20)))
    leaves.run.close()
    text = "the last payload has come too late: the last 7 steps of this worker are lost"
    assert text in logged.text
    assert counted_weight(url, leaves) == 0


def test_workers_that_leave_together_do_not_wait_for_each_other(url):
    members = [Member(url, rank, {"every": 100}, grace=LONG).join().train(7) for rank in range(3)]
    assert max(in_threads(*(partial(leave, member) for member in members))) < 10
    stays = Member(url, 3, grace=SHORT).join().train()
    assert sorted(counted(results(url)[1])) == sorted(m.name for m in (*members, stays))


def test_a_slow_upload_has_time_and_a_silent_store_has_not(url, monkeypatch, logged):
    monkeypatch.setattr(run, "_LEAVING_SECONDS", 0.3)
    first, second = (Member(url, rank, {"every": 100}).join().train(7) for rank in range(2))
    monkeypatch.setattr("gluon_gc.mailbox.store._SLOWEST", 100)
    first.store.trap("put", "/payloads/", partial(time.sleep, 1.0))
    first.run.close()
    assert weights(url, first) == {1: 7} and "lost" not in logged.text
    ends = threading.Event()
    second.store.trap("list", "/rounds/", partial(ends.wait, TIMEOUT))
    assert leave(second) < 10
    ends.set()
    assert f"{second.run.url} is silent: the last 7 steps of this worker are lost" in logged.text


@pytest.mark.parametrize("signals", [1, 2])
def test_only_a_second_signal_ends_the_last_upload(url, signals, logged):
    leaves, ends = Member(url, 0, {"every": 100}).join().train(7), threading.Event()
    told = "this worker is leaving the run: another signal would lose its last 7 steps"

    def interrupt():
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(lambda: told in logged.text)
        if signals == 2:
            os.kill(os.getpid(), signal.SIGINT)
            ends.wait(TIMEOUT)

    leaves.store.trap("put", "/payloads/", interrupt)
    on_signals = {signal.SIGTERM: lambda *_: sys.exit(5), signal.SIGINT: signal.default_int_handler}
    earlier = {number: signal.signal(number, now) for number, now in on_signals.items()}
    try:
        with pytest.raises(SystemExit, match="5"):
            leaves.run.close()
    except KeyboardInterrupt:  # the second one, while the first one is raised
        assert signals == 2
    finally:
        ends.set()
        for number, handler in earlier.items():  # a shell's background jobs ignore SIGINT
            signal.signal(number, handler)
    lost = "a second signal has come: the last 7 steps of this worker are lost"
    assert (lost in logged.text) == (signals == 2)
    if signals == 1:
        assert weights(url, leaves) == {1: 7}


def test_a_worker_that_leaves_does_not_wait_for_the_averages_that_it_missed(url):
    leaves = Member(url, 0, {"every": 4, "overlap": 3}, grace=AT_ONCE).join().train(7)
    stays = Member(url, 1, {"every": 4, "overlap": 3}, grace=AT_ONCE).join().train(83)
    lane = leaves.driver._lanes["difference"]
    leaves.store.trap("get", "/payloads/", lambda: time.sleep(0.2))  # of a missed round
    leaves.train(1)
    wait([lane._under_way], TIMEOUT)
    leaves.train(2)
    leaves.store.calls.clear()
    leaves.run.close()
    assert not any("/payloads/" in name for call, name in leaves.store.calls if call == "get")
    stays.train(8)
    assert counted_weight(url, leaves) == 10
    assert leaves.driver.uncounted_steps == 0


def test_a_worker_that_leaves_after_many_rounds_does_not_look_at_each(url):
    stays = Member(url, 0, grace=AT_ONCE, keep=2).join()
    leaves = Member(url, 1, {"every": 100}, grace=SHORT, keep=2).join().train(7)
    for _ in range(30):
        stays.train().saved()
    leaves.store.calls.clear()
    leaves.run.close()
    assert sum(call == "list" for call, _ in leaves.store.calls) < 20
    stays.train()
    assert counted_weight(url, leaves) == 7


def test_steps_that_a_scaler_skips_are_not_told_as_lost(url, logged):
    leaves = Member(url, 0, {"every": 4}, grace=AT_ONCE).join().train(4)
    leaves.driver.skips = True
    leaves.driver.step(lambda: None)
    leaves.run.close()
    assert "lost" not in logged.text


def test_a_payload_that_was_cut_short_is_put_again(url, monkeypatch):
    monkeypatch.setattr(patient_store, "_FIRST_PAUSE", TIMEOUT)  # it leaves meanwhile
    leaves = Member(url, 0, {"every": 2, "overlap": 1}, grace=SHORT).join()
    cut, failed = [], threading.Event()

    def alter(operation, name, data):
        if operation == "get" or "/payloads/" not in name or cut:
            return data
        cut.append(name)
        return data[:-3]

    def fail():
        failed.set()
        leaves.store.alter = lambda operation, name, data: data
        raise StoreError("no answer")

    leaves.store.alter = alter
    leaves.store.trap("put", "/payloads/", fail, after=True)
    leaves.train(2)
    assert failed.wait(TIMEOUT)
    leaves.train(1)
    leaves.run.close()
    monkeypatch.setattr(patient_store, "_FIRST_PAUSE", SHORT)
    Member(url, 1, {"every": 2, "overlap": 1}, grace=SHORT).join().train(9)
    assert counted_weight(url, leaves) == 3


def test_a_last_payload_that_came_too_late_is_removed(url):
    stays = Member(url, 0, grace=AT_ONCE, keep=1).join()
    leaves = Member(url, 1, {"every": 100}, grace=SHORT).join().train(7)
    leaves.store.trap("put", "/payloads/", lambda: [stays.train().saved() for _ in range(3)])
    leaves.run.close()
    for _ in range(8):
        stays.train().saved()
    assert counted_weight(url, leaves) == 7
    assert weights(url, leaves) == {}


@pytest.mark.parametrize("ends", [True, False])
def test_what_no_round_counts_has_a_weight_after_a_nan(url, ends):
    stays = Member(url, 1, grace=AT_ONCE).join().train()
    member = Member(url, 0, grace=SHORT).join()
    member.store.trap("put", "/payloads/", stays.train)  # the payload comes too late
    member.train()
    assert member.driver._lanes["difference"].uncounted
    member.nan_in = "b"
    member.train()
    if ends:
        member.run.close()
        stays.train()
    else:
        member.driver.skips = True
        member.driver.step(lambda: None)
    assert not member.driver._lanes["difference"].uncounted
    assert counted_weight(url, member) == 1  # without the step that the NaN has undone
