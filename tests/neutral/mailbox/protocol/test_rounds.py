"""Rounds of several workers, in threads."""

import gc
import itertools
import os
import shutil
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import wait
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gluon_gc.mailbox import objects
from gluon_gc.mailbox.objects import DamagedError
from gluon_gc.mailbox.packing import Packing
from gluon_gc.mailbox.patient_store import ReplacedError
from gluon_gc.mailbox.run import Run
from gluon_gc.mailbox.store import Store, StoreError
from tests.neutral.mailbox.recording import digest
from tests.neutral.mailbox.runs import Replay

from .workers import (
    SHAPES,
    TIMEOUT,
    Member,
    assert_equal,
    counted,
    in_threads,
    read,
    results,
    wait_for,
)

SHORT, LONG = 0.1, 1000.0  # seconds of grace
NEVER_REMOVED = 1000  # rounds between saved states


def observed(member, steps):
    """Train, and return the digests of the shared state of each fragment after each step."""
    seen = {kind: [] for kind in member.driver.kinds}
    for _ in range(steps):
        member.train()
        state = member.shared()
        for kind, names in member.driver._rounds.items():
            own = {of: {name: arrays[name] for name in names} for of, arrays in state.items()}
            seen[kind].append(digest(own))
    return seen


def replayed(url, params=None):
    """Return the digests of the shared state of each fragment after each round in the store."""
    config = {"algorithm": {"name": "local_steps"}, "compression_params": params}
    kinds = [kind for kind in Store(url).folders("") if kind.startswith("difference")]
    return {kind: Replay(url, config, kind).digests for kind in kinds}


def assert_follows(seen, replayed, least):
    """Assert that the states of a worker are those of the replay, in its order."""
    for kind, states in seen.items():
        number = 0
        for state in states:
            while state != replayed[kind][number]:
                number += 1
                assert number in replayed[kind], f"{kind}: no round has this state"
        assert number >= least


def require_in_step(members):
    """Let the first round wait for all members, too, by putting a payload of each into round 0."""
    for member in members:
        for kind in member.driver.kinds:
            member.store.put(objects.payload_name(kind, 0, member.name), b"")


@pytest.mark.parametrize("mix", [0, 0.5])
@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize("fragments", [1, 3])
def test_all_workers_have_the_anchors_of_the_replay_after_each_round(url, fragments, overlap, mix):
    options = {"every": 3, "fragments": fragments, "overlap": overlap, "mix": mix}
    params = {"compressor": "topk", "k": 0.3, "ef": "vanilla"}
    settings = {"keep": NEVER_REMOVED, "grace": LONG}
    members = [
        Member(url, rank, options, params, samples_per_step=weight, **settings).join()
        for rank, weight in enumerate((1, 2, 0.7))
    ]
    require_in_step(members)
    seen = in_threads(*(partial(observed, member, 14) for member in members))
    expected = replayed(url, params)
    for states in seen:
        assert_follows(states, expected, least=4)
    for kind in members[0].driver.kinds:
        for result in results(url, kind).values():
            assert counted(result) == [member.name for member in members]
            weights = [entry["weight"] for entry in result["counted"]]
            np.testing.assert_allclose(np.divide(weights, weights[0]), [1, 2, 0.7])
    assert members[0].driver.counts[kind] == 4 and members[0].run.size == 3


def test_workers_may_count_in_seconds_and_begin_rounds_after_other_numbers_of_steps(url):
    options = {"every": "0.2 s", "fragments": 3}
    members = [
        Member(url, rank, options, keep=NEVER_REMOVED, grace=SHORT).join() for rank in range(2)
    ]
    require_in_step(members)

    def train(member, pause, seen):
        while member.participant("difference.0").round < 4:
            for kind, states in observed(member, 1).items():
                seen.setdefault(kind, []).extend(states)
            time.sleep(pause)
        return seen

    seen = in_threads(
        *(partial(train, member, pause, {}) for member, pause in zip(members, (0.002, 0.02)))
    )
    expected = replayed(url)
    for states in seen:
        assert_follows(states, expected, least=1)
    for kind, member in itertools.product(members[0].driver.kinds, members):
        weights = [
            entry["weight"]
            for result in results(url, kind).values()
            for entry in result["counted"]
            if entry["worker"] == member.name
        ]
        assert 0 < sum(weights) <= member.driver.steps


@pytest.mark.parametrize("workers", [1, 3])
def test_each_worker_reads_the_payloads_of_the_others_once(url, workers):
    members = [Member(url, rank, grace=LONG).join() for rank in range(workers)]
    require_in_step(members)
    in_threads(*(partial(member.train, 5) for member in members))
    assert len(results(url)) == 5
    for member in members:
        reads = [name for operation, name in member.store.calls if operation == "get"]
        read = [name for name in reads if "/payloads/" in name]
        assert len(read) == len(set(read)) == 5 * (workers - 1)
        assert not any(name.endswith(member.name) for name in read)


def test_two_deciders_at_once_write_one_result_and_one_state(url):
    members = [Member(url, rank, keep=1, grace=LONG).join() for rank in range(2)]
    require_in_step(members)
    barrier = threading.Barrier(2)
    for member in members:
        member.store.trap("put", "/00000001/result$", partial(barrier.wait, TIMEOUT))
    in_threads(*(partial(member.train, 2) for member in members))
    for member in members:
        member.saved()
    puts = [call for member in members for call in member.store.calls if call[0] == "put"]
    assert puts.count(("put", objects.result_name("difference", 1))) == 2
    assert puts.count(("put", objects.state_name("difference", 1))) == 1
    assert_equal(*(member.shared() for member in members))
    expected = replayed(url)["difference"][2]
    for member in members:
        assert digest(member.shared()) == expected


class Spreading(Member):
    """A worker whose parameters all become NaN when one does, as in training."""

    def update(self):
        super().update()
        if any(np.isnan(x).any() for x in self.values.values()):
            for x in self.values.values():
                x[:] = np.nan


def test_a_worker_recovers_from_a_nan_in_all_fragments(url):
    params = {"compressor": "onebit", "ef": "vanilla"}
    options = {"every": 2, "fragments": 2}
    members = [Member(url, 0, options, params, grace=LONG).join()]
    members.append(Spreading(url, 1, options, params, grace=LONG).join())
    require_in_step(members)
    bad = members[1]
    in_threads(*(partial(member.train, 2) for member in members))
    bad.nan_in = "b"
    in_threads(*(partial(member.train, 1) for member in members))
    assert_equal(bad.values, bad.driver.state["anchor"])
    in_threads(*(partial(member.train, 1) for member in members))
    assert all(np.isfinite(x).all() for x in bad.values.values())
    assert counted(results(url, "difference.0")[2]) == [members[0].name]
    assert len(counted(results(url, "difference.1")[2])) == 2


def test_a_nan_of_another_fragment_leaves_a_payload_its_weight(url):
    params = {"compressor": "onebit", "ef": "vanilla"}
    options = {"every": 2, "fragments": 2, "overlap": 1}
    members = [Member(url, rank, options, params, grace=LONG).join() for rank in range(2)]
    require_in_step(members)
    in_threads(*(partial(member.train, 2) for member in members))
    members[1].nan_in = "w"
    for steps in (1, 2):
        in_threads(*(partial(member.train, steps) for member in members))
    assert counted(results(url, "difference.0")[2]) == [members[0].name]
    assert [e["weight"] for e in results(url, "difference.1")[2]["counted"]] == [2.0, 2.0]


@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize("mix", [0, 0.5])
def test_a_nan_excludes_its_worker_and_names_the_parameter_to_all(url, mix, overlap, logged):
    options, params = {"every": 3, "mix": mix, "overlap": overlap}, {"compressor": "onebit"}
    params["ef"] = "vanilla"
    members = [
        Member(url, rank, options, params, keep=NEVER_REMOVED, grace=LONG).join()
        for rank in range(3)
    ]
    require_in_step(members)
    in_threads(*(partial(member.train, 3 + overlap) for member in members))
    bad = members[1]
    residuals = bad.participant().packing.residuals()
    bad.nan_in = "b"
    in_threads(*(partial(member.train, 3) for member in members))
    assert counted(results(url)[2]) == [members[0].name, members[2].name]
    excluded = {bad.name: "parameter b has a NaN or an infinity"}
    assert results(url)[2]["excluded"] == excluded
    told = [record.getMessage() for record in logged.records]
    assert told.count(f"round 2 leaves out worker {bad.name}: {excluded[bad.name]}") == 3
    assert_equal(bad.values, bad.driver.state["anchor"])
    assert_equal(bad.participant().packing.residuals(), residuals)
    in_threads(*(partial(member.train, 3) for member in members))
    assert len(counted(results(url)[3])) == 3
    expected = replayed(url, params)["difference"][3]
    for member in members:
        assert digest(member.shared()) == expected
        assert all(np.isfinite(x).all() for x in member.values.values())


def test_a_round_in_which_all_have_a_nan_counts_nobody(url):
    members = [Member(url, rank, grace=LONG).join() for rank in range(2)]
    require_in_step(members)
    before = members[0].shared()
    for member in members:
        member.nan_in = "w"
    in_threads(*(member.train for member in members))
    result = results(url)[1]
    assert result["counted"] == [] and len(result["excluded"]) == 2
    for member in members:
        assert_equal(member.shared(), before)
        assert_equal(member.values, before["anchor"])
    in_threads(*(member.train for member in members))
    assert len(counted(results(url)[2])) == 2


def test_training_goes_on_without_enough_workers_and_a_late_one_is_in_the_round(url, logged):
    early = Member(url, 0, min_workers=2, grace=SHORT, keep=NEVER_REMOVED).join()
    early.train(4)
    assert early.driver.steps == 4 and results(url) == {}
    assert early.driver.counts["difference"] == 0
    alone = "round 1 has 1 workers of min_workers 2: training goes on locally"
    wait_for(lambda: alone in logged.text)
    late = Member(url, 1, min_workers=2, grace=SHORT, keep=NEVER_REMOVED).join()
    late.train()
    assert counted(results(url)[1]) == [early.name, late.name]
    wait([early.driver._lanes["difference"]._under_way], TIMEOUT)
    early.train()
    assert early.driver.counts["difference"] == late.driver.counts["difference"] == 1
    assert digest(early.shared()) == replayed(url)["difference"][1]
    changes, uncounted, made = early.changes(), early.uncounted(), early.made
    first = {name: 0.1 * gradient for name, gradient in drawn(early, 1).items()}
    for name in SHAPES:  # the first step is counted, and the others are not lost
        np.testing.assert_allclose(
            first[name] + changes[name] + uncounted[name], made[name], atol=1e-5
        )


def test_a_worker_whose_payloads_come_too_late_is_told_and_leaves_none_behind(url, logged):
    late = Member(url, 0, grace=SHORT).join()
    member = Member(url, 1, grace=1e-9, keep=1).join()
    told = "the last 5 payloads of this worker came too late, the last one after an upload of"
    for number in range(1, 8):
        late.store.trap("put", "/payloads/", lambda: [member.train().saved() for _ in range(3)])
        late.train()
        payloads = [e.name for e in Store(url).list("") if e.name.endswith(late.name)]
        assert len(payloads) == 1
        assert logged.text.count(told) == (number >= 5)
    late.train()
    assert late.name in counted(max(results(url).items())[1])
    assert late.participant()._late_rounds == 0


def drawn(member, step):
    member.draw(step)
    return dict(member.grads)


def test_a_payload_that_is_cut_short_is_left_out_and_named(url):
    members = [Member(url, rank, grace=LONG).join() for rank in range(2)]
    require_in_step(members)
    members[1].store.alter = lambda operation, name, data: (
        data[:-1] if operation == "put" and "payloads" in name else data
    )
    in_threads(*(member.train for member in members))
    name = objects.payload_name("difference", 1, members[1].name)
    why = f"object '{name}' is damaged: it was cut short or altered"
    assert results(url)[1]["excluded"] == {members[1].name: why}
    assert counted(results(url)[1]) == [members[0].name]
    assert_equal(members[0].shared(), members[1].shared())
    uncounted = members[1].driver._lanes["difference"].uncounted
    for name, values in uncounted.items():
        np.testing.assert_allclose(values, members[1].made[name].reshape(-1), atol=1e-6)


def test_a_payload_that_a_listing_has_and_that_cannot_be_read_is_left_out(url):
    members = [Member(url, rank, grace=LONG).join() for rank in range(2)]
    require_in_step(members)
    hidden = objects.payload_name("difference", 1, members[1].name)
    for member in members:
        member.store.alter = lambda operation, name, data: (
            None if (operation, name) == ("get", hidden) else data
        )
    is_decided = partial(Store(url).get, objects.result_name("difference", 1))
    members[1].store.trap("list", "/rounds/00000001/", partial(wait_for, is_decided))
    in_threads(*(member.train for member in members))
    assert results(url)[1]["excluded"] == {members[1].name: f"object '{hidden}' is missing"}


def test_a_lost_result_or_state_is_an_error_and_no_second_run_begins(url):
    members = [Member(url, rank, keep=NEVER_REMOVED, grace=SHORT) for rank in range(3)]
    members[0].join().train(3)
    name = objects.result_name("difference", 2)
    Store(url).delete([name])
    with pytest.raises(RuntimeError, match=f"object '{name}' is missing, but the next round has"):
        members[1].join().train()
    assert Store(url).get(name) is None
    Store(url).delete([objects.state_name("difference", 0)])
    with pytest.raises(RuntimeError, match="no state of 'difference' is saved, but it has rounds"):
        members[2].join()
    assert not Store(url).list(objects.states_folder("difference"))


@pytest.mark.parametrize("what", ["result", "state", "payload", "missing payload"])
def test_damaged_objects_that_all_must_read_are_named(url, what):
    member = Member(url, 0, keep=NEVER_REMOVED, grace=SHORT).join().train(2)
    name = {
        "result": objects.result_name("difference", 2),
        "state": objects.state_name("difference", 0),
    }.get(what, objects.payload_name("difference", 2, member.name))
    data = Store(url).get(name)
    if what == "missing payload":
        Store(url).delete([name])
        with pytest.raises(RuntimeError, match=f"object '{name}' is missing, but the round's"):
            Member(url, 1).join()
        return
    Store(url).put(name, data[:-1])
    with pytest.raises(DamagedError, match=f"object '{name}' is damaged"):
        Member(url, 1).join()
    if what == "payload":  # an intact one, but not the one that was counted
        header = {**objects.unpack(name, data).header, "weight": 2.0}
        Store(url).put(name, objects.pack(header, objects.unpack(name, data).body))
        with pytest.raises(DamagedError, match=f"object '{name}' is not the one that the round"):
            Member(url, 1).join()


def test_a_damaged_result_stops_the_workers_that_read_it(url):
    decider, reader = (Member(url, rank, grace=SHORT).join() for rank in range(2))
    decider.store.alter = lambda operation, name, data: (
        data[:-1] if operation == "put" and name.endswith("/result") else data
    )
    decider.train()
    for _ in range(2):
        with pytest.raises(DamagedError, match="'difference/rounds/00000001/result' is damaged"):
            reader.train()
    assert all(change.any() for change in reader.changes().values())  # it loses nothing


@pytest.mark.parametrize(
    "options, params, framework, said",
    [
        ({"outer_lr": 0.5}, {}, "numpy", "outer_lr 0.5 for the algorithm, but the run has 0.7"),
        ({"fragments": 2}, {}, "numpy", "fragments 2"),
        ({}, {"compressor": "onebit"}, "numpy", "for parameter w, but the run has none"),
        ({}, {"fp16": True}, "numpy", "fp16 true for parameter w, but the run has false"),
        ({}, {}, "mxnet", 'framework "mxnet", but the run has "numpy"'),
    ],
    ids=["outer_lr", "fragments", "compressor", "fp16", "framework"],
)
def test_a_run_is_not_continued_with_other_settings(url, options, params, framework, said):
    Member(url, 0, {"every": 3}).join().run.close()
    other = Member(url, 1, {"every": 3, **options}, params)
    other.run.framework = framework
    with pytest.raises(RuntimeError, match="this worker does not fit the run at") as raised:
        other.join()
    assert said in str(raised.value)


def test_a_run_is_not_continued_with_other_chunks_and_may_be_with_another_every(url, monkeypatch):
    first = Member(url, 0, {"every": 3}, grace=SHORT).join().train(3)
    second = Member(url, 1, {"every": "7 s"}).join()
    assert_equal(first.shared(), second.shared())
    monkeypatch.setenv("BYTEPS_PARTITION_BYTES", "1024")
    with pytest.raises(RuntimeError, match="this worker has BYTEPS_PARTITION_BYTES 1024"):
        Member(url, 2, {"every": 3}).join()
    monkeypatch.delenv("BYTEPS_PARTITION_BYTES")
    monkeypatch.setenv("BYTEPS_MIN_COMPRESS_BYTES", "100")
    with pytest.raises(RuntimeError, match="this worker has BYTEPS_MIN_COMPRESS_BYTES 100"):
        Member(url, 2, {"every": 3}).join()


def test_a_run_of_another_format_and_a_damaged_job_are_refused(url):
    Member(url, 0).join().run.close()
    data = Store(url).get(objects.JOB)
    header = objects.unpack(objects.JOB, data).header
    Store(url).put(objects.JOB, objects.pack({**header, "format": 99}))
    with pytest.raises(RuntimeError, match="has format 99"):
        Member(url, 1).join()
    Store(url).put(objects.JOB, data[:-1])
    with pytest.raises(DamagedError, match="object 'job' is damaged"):
        Member(url, 1).join()


@pytest.mark.parametrize("keep", [1, 3])
def test_no_more_than_two_states_and_the_payloads_since_remain_but_all_results(url, keep):
    member, most = Member(url, 0, keep=keep, grace=1e-9).join(), 0
    for step in range(1, 6 * keep + 2):
        member.train().saved()
        states = [entry.name for entry in Store(url).list(objects.states_folder("difference"))]
        rounds = [entry.name for entry in Store(url).list(objects.rounds_folder("difference"))]
        assert 1 <= len(states) <= 2
        assert sum(name.endswith("/result") for name in rounds) == step
        most = max(most, sum("/payloads/" in name for name in rounds))
    assert most == 2 * keep
    newest = (step - 1) // keep * keep
    assert states == [objects.state_name("difference", n) for n in (newest - keep, newest)]


def test_what_killed_writers_have_left_is_removed_after_a_day(url):
    member = Member(url, 0, keep=1, grace=1e-9).join()
    files = [
        Path(url, "difference", name)
        for name in ("states/00000030#1", "rounds/00000001/payloads/w#12", "states/new#1", "a#b")
    ]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        if file.name != "new#1":
            os.utime(file, (time.time() - 100_000,) * 2)
    member.train(2).saved()
    assert [file.name for file in files if file.exists()] == ["new#1", "a#b"]


@pytest.mark.parametrize(
    "operation, name",
    [
        ("list", "/states/$"),
        ("get", "/states/00000002$"),
        ("get", "/00000003/result$"),
        ("get", "/00000003/payloads/"),
        ("get", "/00000004/payloads/"),
    ],
    ids=["states", "state", "result", "payload", "later payload"],
)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_a_worker_joins_while_rounds_are_removed(url, operation, name, after, rounds):
    member = Member(url, 0, keep=2, grace=1e-9).join().train(4)
    newcomer = Member(url, 1)
    newcomer.store.trap(operation, name, partial(member.train, rounds), after)
    newcomer.join()
    assert member.driver.steps == 4 + rounds
    assert_equal(newcomer.shared(), member.shared())
    assert_equal(newcomer.values, newcomer.driver.state["anchor"])


@pytest.mark.parametrize("joins", [True, False], ids=["newcomer", "sleeper"])
@pytest.mark.parametrize("overlap", [0, 1])
def test_a_worker_that_missed_rounds_has_one_average_in_memory(url, monkeypatch, joins, overlap):
    options, settings = {"every": 2, "overlap": overlap}, {"grace": 1e-9, "keep": NEVER_REMOVED}
    other = Member(url, 1, options, **settings)
    if not joins:
        other.join().train(2)
    member = Member(url, 0, options, **settings).join().train(20 + overlap)
    mean, means, alive = Packing.mean, [], []

    def watched(packing, weighted):
        gc.collect()
        alive.append(sum(each() is not None for each in means))
        found = mean(packing, weighted)
        means.append(weakref.ref(found["w"]))
        return found

    monkeypatch.setattr(Packing, "mean", watched)
    if joins:
        other.join()
        assert_equal(other.shared(), member.shared())
    else:
        other.train(3)
        assert digest(other.shared()) in replayed(url)["difference"].values()
    assert len(means) >= 10 and max(alive) <= 2  # one is applied while the next one is read


def test_a_worker_that_missed_many_rounds_takes_the_newest_state(url):
    sleeper = Member(url, 1, grace=1e-9, keep=2).join().train()
    Member(url, 0, grace=1e-9, keep=30).join().train(61).saved()
    sleeper.store.calls.clear()
    sleeper.train()
    gets = [name for operation, name in sleeper.store.calls if operation == "get"]
    assert len(gets) < 12 and objects.state_name("difference", 60) in gets
    assert_equal(Member(url, 2).join().shared(), sleeper.shared())


def test_a_worker_that_leaves_goes_on_to_the_open_round(url):
    options = {"every": 2, "overlap": 1}
    leaves = Member(url, 0, options, grace=1e-9).join().train(3)
    member = Member(url, 1, options, grace=1e-9).join().train(9)
    leaves.train()  # its payload is on its way
    wait([leaves.driver._lanes["difference"]._under_way], TIMEOUT)
    leaves.run.close()
    assert leaves.is_idle()
    assert leaves.participant().round > member.participant().round


def test_a_worker_that_leaves_is_counted_once_more_and_not_waited_for(url):
    stays = Member(url, 0, {"every": 2}, grace=LONG, keep=NEVER_REMOVED).join()
    leaves = Member(url, 1, {"every": 2}, grace=LONG, keep=NEVER_REMOVED).join()
    require_in_step([stays, leaves])
    in_threads(*(partial(member.train, 2) for member in (stays, leaves)))
    leaves.train()  # a step that no round has counted
    leaves.run.close()
    stays.train(4)  # would last for LONG
    assert leaves.name in counted(results(url)[2]) and results(url)[3]["left"] == [leaves.name]
    assert counted(results(url)[3]) == [stays.name]
    payload = read(url, objects.payload_name("difference", 2, leaves.name))
    assert payload.header["weight"] == 1
    np.testing.assert_allclose(
        np.frombuffer(payload.body, np.float32),
        np.concatenate([x.reshape(-1) for x in leaves.changes().values()]),
    )


def test_a_worker_that_leaves_while_its_round_is_open_is_not_waited_for(url):
    options = {"every": 2, "overlap": 1}
    stays, leaves = (Member(url, rank, options, grace=LONG).join() for rank in range(2))
    require_in_step([stays, leaves])
    in_threads(*(partial(member.train, 3) for member in (stays, leaves)))
    leaves.train()  # its payload of round 2 is on its way
    name = objects.payload_name("difference", 2, leaves.name)
    while Store(url).get(name) is None:
        time.sleep(0.01)
    leaves.run.close()
    stays.train(4)
    assert counted(results(url)[2]) == [stays.name, leaves.name]
    assert results(url)[3]["left"] == [leaves.name]


@pytest.mark.parametrize("is_begun_anew", [False, True])
def test_a_run_that_is_removed_is_an_error_of_its_workers(url, is_begun_anew, monkeypatch):
    monkeypatch.setattr("gluon_gc.mailbox.patient_store._AWAY", LONG if is_begun_anew else 0.1)
    member = Member(url, 0, grace=1e-9).join().train(2)
    shutil.rmtree(url)
    if is_begun_anew:
        Member(url, 1, grace=1e-9).join().train(3)
    with pytest.raises(ReplacedError, match="was removed while this worker was in it"):
        wait_for(lambda: member.train() is None)
    if not is_begun_anew:
        assert not Path(url, "difference").exists()
    newcomer = Member(url, 2, grace=1e-9).join().train()
    assert counted(max(results(url).items())[1]) == [newcomer.name]


POINTS = {
    "before a round": ("get", "/result$"),
    "before a payload is put": ("put", "/payloads/"),
    "before a round is listed": ("list", "/rounds/0"),
    "before payloads are read": ("get", "/payloads/"),
    "before a result is put": ("put", "/result$"),
}


@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS.keys())
@pytest.mark.parametrize("is_empty", [False, True], ids=["no folder", "an empty folder"])
def test_a_folder_that_is_away_for_a_moment_is_a_store_that_fails(url, point, is_empty, logged):
    members = [Member(url, rank, grace=SHORT).join() for rank in range(2)]
    require_in_step(members)
    in_threads(*(partial(member.train, 2) for member in members))
    member, away = members[0], f"{url}.away"

    def take_away():
        Path(url).rename(away)
        if is_empty:
            Path(url).mkdir()

    member.store.trap(*point, take_away)
    members[1].train()  # for a payload to read
    member.train()
    wait_for(lambda: "object 'job' is missing. Training goes on locally, since" in logged.text)
    assert not Path(url).exists() or not any(Path(url).iterdir())
    if is_empty:
        Path(url).rmdir()
    Path(away).rename(url)
    wait_for(lambda: [each.train() for each in members] and all(m.is_idle() for m in members))
    for member in members:
        member.train()
        assert_equal(member.shared(), Member(url, 2).join().shared())


def test_files_that_others_put_into_the_folder_are_ignored(url):
    member = Member(url, 0, grace=LONG, keep=1).join()
    require_in_step([member])
    for name in (".DS_Store", ".nfs000012", "00000001.part"):
        member.store.put(f"difference/states/{name}", b"")
        member.store.put(f"difference/rounds/00000001/payloads/{name}", b"")
    member.train(3)
    assert counted(results(url)[1]) == [member.name] and results(url)[1]["excluded"] == {}
    assert_equal(Member(url, 1).join().shared(), member.shared())


def test_all_begin_with_the_parameters_of_the_worker_that_has_created_the_run(url):
    options = {"fragments": 3, "every": 3}
    founder = Member(url, 0, options, grace=LONG)
    for values in founder.values.values():
        values[:] = 2.0
    other = Member(url, 1, options, grace=LONG)
    name = objects.state_name("difference.1", 0)
    # The other one joins while the founder is about to save its second fragment.
    joining = []
    founder.store.trap("put", name, lambda: joining.append(started(other.join)))
    founder.join()
    joining[0].join(TIMEOUT)
    assert_equal(other.values, founder.values)


def started(call):
    thread = threading.Thread(target=call)
    thread.start()
    time.sleep(0.1)
    return thread


def test_if_the_founder_ends_before_it_has_saved_its_parameters_another_worker_does(url):
    founder = Member(url, 0)
    founder.store.trap("put", "/states/", pytest.fail)
    with pytest.raises(pytest.fail.Exception):
        founder.join()
    other = Member(url, 1, grace=SHORT).join()
    assert_equal(other.values, other.driver.state["anchor"])


def test_a_new_epoch_does_not_take_an_average_before_its_step(url):
    """The state that is saved would lack it."""
    options = {"every": 3, "overlap": 2}
    member = Member(url, 0, options, grace=1e-9, keep=1).join()
    for step in range(1, 12):
        member.train()
        member.driver.finish()
        member.driver.set_epoch(step)
    newcomer = Member(url, 1, options).join()
    assert newcomer.participant().round == 4
    assert_equal(newcomer.shared(), member.shared())


def test_a_model_that_is_loaded_after_joining_is_refused(url):
    member = Member(url, 0, grace=1e-9).join()
    member.values["w"][:] = 5.0
    with pytest.raises(RuntimeError, match="parameter w has changed since this worker joined"):
        member.train()


def test_a_state_that_cannot_be_saved_is_left_to_a_later_round(url, logged):
    member = Member(url, 0, grace=1e-9, keep=2).join()
    down = []

    def fail():
        down.append(member.store.trap("put", "/states/", fail) if len(down) < 1 else None)
        raise StoreError("disk full")

    member.store.trap("put", "/states/", fail)
    member.train(8).saved()
    assert "disk full: the state after round 2 is not saved" in logged.text
    assert "Training goes on locally" not in logged.text
    states = Store(url).list(objects.states_folder("difference"))
    assert int(objects.last_part(states[-1].name)) > 2


def test_settings_that_are_spelled_differently_are_the_same(url):
    of_one = {next(iter(SHAPES)): {"outer_lr": 1}}
    Member(url, 0, {"outer_lr": 1, "mix": 0, "overrides": of_one}).join()
    of_one = {next(iter(SHAPES)): {"outer_lr": np.float32(1)}}
    settings = {"grace": np.float32(9), "samples_per_step": np.int64(8)}
    Member(url, 1, {"outer_lr": 1.0, "mix": 0.0, "overrides": of_one}, **settings).join()


def test_the_sites_of_a_run_have_the_same_shards(url):
    runs = [Run(url, "numpy", worker_name=name) for name in ("a", "b")]
    assert runs[0].of_shard(0, 2).url == f"{runs[0].url}/shard-0-of-2"
    runs[0].report_loss(0.5)
    assert runs[0]._shards[0].loss == 0.5
    with pytest.raises(RuntimeError, match="have 2 shards of fully_shard, but this one has 4"):
        runs[1].of_shard(0, 4)
    with pytest.raises(RuntimeError, match="have 2 shards of fully_shard, but this one has 0"):
        Member(url, 2).join()


def test_a_worker_that_leaves_after_a_long_sleep_is_counted(url):
    member = Member(url, 0, keep=1, grace=1e-9).join().train()
    sleeper = Member(url, 1, {"every": 2}, keep=1, grace=1e-9).join().train()
    member.train(6)
    sleeper.run.close()
    member.train()
    assert sleeper.name in counted(max(results(url).items())[1])


def test_a_worker_in_a_decided_round_does_not_wait_for_others(url):
    """With min_workers 2, nobody else comes there any more."""
    member = Member(url, 0, keep=1, grace=1e-9).join().train()
    sleeper = Member(url, 1, keep=1, grace=LONG, min_workers=2).join()
    sleeper.store.trap("put", "/payloads/", lambda: [member.train().saved() for _ in range(5)])
    sleeper.train()
    assert sleeper.participant().round == 7
    assert_equal(sleeper.shared(), member.shared())


def test_a_run_goes_on_from_its_last_round_after_all_workers_have_ended(url):
    before = Member(url, 0, keep=2, grace=1e-9).join().train(3).shared()
    for life in (1, 2):
        member = Member(url, 0, keep=2, grace=1e-9).join()
        assert member.participant().round == 3 * life + 1
        assert_equal(member.shared(), before)
        before = member.train(3).shared()


class Site:
    """Two workers of one site, in threads."""

    size = 2

    def __init__(self):
        self._barrier, self._answer = threading.Barrier(2, timeout=TIMEOUT), None

    def of(self, is_first):
        member = Site()
        member.is_first, member._site = is_first, self
        return member

    def share(self, make):
        site = self._site
        if self.is_first:
            site._answer = make()
        site._barrier.wait()
        answer = site._answer
        site._barrier.wait()
        return answer


def test_the_workers_of_a_site_begin_timed_rounds_in_the_same_step(url):
    site, options = Site(), {"every": "0.05 s"}

    def train(is_first):
        member = Member(url, 0, options, site=site.of(is_first), grace=1e-9)
        for step in range(20):
            member.train()
            time.sleep(0.02 * (step % 2 == is_first))
        return member

    first, second = in_threads(partial(train, True), partial(train, False))
    assert first.driver.counts == second.driver.counts and first.driver.counts["difference"] > 2
    assert_equal(first.values, second.values)
    assert_equal(first.shared(), second.shared())
    weights = [entry["weight"] for r in results(url).values() for entry in r["counted"]]
    assert sum(weights) % 2 == 0 and len(weights) > 2


ENDING = """
import sys
import gluon_gc.mailbox.run
from tests.neutral.mailbox.protocol.workers import FaultyStore, Member

gluon_gc.mailbox.run.Store = FaultyStore
worker, *others = [Member(sys.argv[1], rank, grace=0.05).join() for rank in range(4)]
for other in others:
    other.train().run.close()
for payload in range(3):
    worker.store.trap("get", "/payloads/", lambda: setattr(worker.store, "is_down", True))
worker.train(3)
print("it ends")
"""


def test_a_process_ends_while_its_store_does_not_answer(url):
    ended = subprocess.run(
        [sys.executable, "-c", ENDING, url], capture_output=True, text=True, timeout=TIMEOUT
    )
    assert ended.returncode == 0 and ended.stdout == "it ends\n", ended.stderr
    assert "it is down. Training goes on locally, since" in ended.stderr


def test_a_payload_without_weight_takes_nothing_from_the_residuals(url):
    """As when a loss scaler skips all steps of a round."""
    topk = {"compressor": "topk", "k": 0.1, "ef": "vanilla"}
    members = other, member = [Member(url, n, params=topk, grace=LONG).join() for n in range(2)]
    require_in_step(members)
    in_threads(other.train, member.train)
    before = member.participant().packing.residuals()
    member.driver.skips = True
    for _ in range(2):
        in_threads(other.train, lambda: member.driver.step(lambda: None))
        assert_equal(member.participant().packing.residuals(), before)
    entries = [entry for result in results(url).values() for entry in result["counted"]]
    assert [each["weight"] for each in entries if each["worker"] == member.name] == [1, 0, 0]


def test_a_step_whose_update_fails_does_not_count(url):
    member = Member(url, 0, {"every": 2}, grace=SHORT).join().train(1)

    def fail():
        raise ValueError("out of memory")

    for _ in range(3):
        with pytest.raises(ValueError, match="out of memory"):
            member.driver.step(fail)
    assert (member.driver.steps, member.driver.samples) == (1, 1)
    member.train(1)
    assert [entry["weight"] for entry in results(url)[1]["counted"]] == [2]
