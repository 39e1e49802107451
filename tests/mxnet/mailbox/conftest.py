"""Fixtures with runs of MXNet's workers."""

import pytest

pytest.importorskip("obstore")

from tests.neutral.mailbox.runs import running  # noqa: E402

from .workers import Workers  # noqa: E402


@pytest.fixture
def workers(tmp_path):
    """Return a function that makes `Workers` of the run at a URL. They end after the test."""
    with running(tmp_path, Workers) as make:
        yield make
