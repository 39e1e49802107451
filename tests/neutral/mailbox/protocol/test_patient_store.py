"""PatientStore: calls are repeated until the store answers."""

import threading
import time

import pytest

from gluon_gc.mailbox.patient_store import PatientStore, StoppedError
from gluon_gc.mailbox.store import Store, StoreError
from tests.neutral.mailbox.stores import refusal

from .workers import TIMEOUT, FaultyStore


@pytest.fixture
def stores(url):
    store = FaultyStore(url)
    patient = PatientStore(store)
    patient.repeats = True
    yield store, patient
    patient.stop()


def failing(store, times):
    """Let the next calls fail this number of times."""
    left = [times]

    def fail():
        if left[0]:
            left[0] -= 1
            store.trap("get", "", fail)
            raise StoreError("no answer")

    store.trap("get", "", fail)


def test_calls_are_repeated_and_the_log_says_since_when(stores, logged):
    store, patient = stores
    patient.put("a", b"1")
    failing(store, 3)
    assert patient.get("a") == b"1"
    assert store.calls.count(("get", "a")) == 4
    first, last = (record.getMessage() for record in logged.records)
    assert first.startswith("no answer. Training goes on locally, since ")
    assert last == f"{store.url} answers again, after 0 s"
    assert patient.hindered_seconds == 0


def test_a_call_that_does_not_end_is_a_failing_store(stores, monkeypatch):
    monkeypatch.setattr("gluon_gc.mailbox.patient_store._SILENT", 0.01)
    store, patient = stores
    ends = threading.Event()
    store.trap("get", "", lambda: ends.wait(TIMEOUT))
    calling = threading.Thread(target=patient.get, args=["a"])
    calling.start()
    while not patient.hindered_seconds:
        time.sleep(0.005)
    ends.set()
    calling.join(TIMEOUT)
    assert patient.hindered_seconds == 0


def test_errors_are_raised_before_a_worker_has_joined(stores):
    store, patient = stores
    patient.repeats = False
    failing(store, 1)
    with pytest.raises(StoreError, match="no answer"):
        patient.get("a")
    assert store.calls == [("get", "a")]


def test_two_workers_that_create_an_object_at_once_are_no_failure(bucket, proxy, logged):
    conflict = refusal(409, "ConditionalRequestConflict")
    left = [conflict] * 2
    proxy.change = lambda request: left.pop() if left else None
    patient = PatientStore(Store(bucket))
    assert patient.put("job", b"1", create=True) is True
    assert not left and not logged.records
    proxy.change = lambda request: conflict
    with pytest.raises(StoreError, match="409 Conflict"):  # it does not end
        patient.put("job", b"1", create=True)


def test_a_store_that_fails_hinders_rounds_even_if_another_kind_notes_progress(stores):
    store, patient = stores
    failing(store, 10**9)
    threading.Thread(target=pytest.raises, args=(StoppedError, patient.get, "a")).start()
    for _ in range(3):
        patient.note_progress()
        seen = len(store.calls)
        waiting = threading.Event()
        while len(store.calls) < seen + 2:
            waiting.wait(0.005)
        assert patient.hindered_seconds > 0


def test_a_worker_that_leaves_repeats_nothing(stores):
    store, patient = stores
    failing(store, 10**9)
    raised = []

    def get():
        try:
            patient.get("a")
        except StoppedError as error:
            raised.append(error)

    thread = threading.Thread(target=get)
    thread.start()
    patient.stop()
    thread.join(TIMEOUT)
    assert not thread.is_alive() and len(raised) == 1
    with pytest.raises(StoppedError):
        patient.sleep(1000.0)


def test_a_round_is_hindered_from_its_first_wait_until_there_is_progress(stores):
    _, patient = stores
    assert patient.hindered_seconds == 0
    patient.note_waiting()
    first = patient.hindered_seconds
    patient.note_waiting()
    assert patient.hindered_seconds > first >= 0
    patient.note_progress()
    assert patient.hindered_seconds == 0
