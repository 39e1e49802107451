"""Fixtures with runs: their stores, and their workers."""

import os

import pytest

pytest.importorskip("obstore")

from tests.neutral.mailbox.conftest import aws, bucket, proxy, s3_server, url  # noqa: E402, F401

from .runs import Workers  # noqa: E402


@pytest.fixture
def workers(tmp_path):
    """Return a function that makes `Workers` of the run at a URL. They end after the test."""
    made = []

    def make(of_run, **config):
        variables = {name: os.environ[name] for name in os.environ if name.startswith("AWS_")}
        variables["NO_PROXY"] = "127.0.0.1"
        made.append(Workers(tmp_path / f"workers{len(made)}", of_run, variables, **config))
        return made[-1]

    yield make
    for each in made:
        each.kill()
