"""Stores that fail at will, short pauses, and compression of small arrays."""

import pytest

from .workers import FaultyStore


@pytest.fixture(autouse=True)
def faulty_stores(monkeypatch):
    """Let each `Run` use a `FaultyStore`, and look at it more often than in real runs."""
    monkeypatch.setattr("gluon_gc.mailbox.run.Store", FaultyStore)
    monkeypatch.setattr("gluon_gc.mailbox.participant._SHORTEST", 0.002)
    monkeypatch.setattr("gluon_gc.mailbox.patient_store._FIRST_PAUSE", 0.01)
    monkeypatch.setattr("gluon_gc.mailbox.patient_store._LONGEST_PAUSE", 0.02)
    monkeypatch.setenv("BYTEPS_MIN_COMPRESS_BYTES", "0")


@pytest.fixture
def url(tmp_path):
    """Return the URL of an empty store."""
    return str(tmp_path / "run")
