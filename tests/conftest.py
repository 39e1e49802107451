"""Fixtures that tests of several folders share; ends the standing clusters."""

import sys
from pathlib import Path

import pytest

from gluon_gc.log import logger
from tests.distributed import standing

EXAMPLE = Path(__file__).resolve().parents[1] / "example"
FOLDERS = ("", "cifar100", "digits", "imagenet", "mnist")
# The examples' scripts have these folders on sys.path.
sys.path[:0] = [str(EXAMPLE / folder) for folder in FOLDERS]


LONGEST = ("fuzz/test_corpus.py", "test_installation.py", "test_adding_a_compressor.py")


def pytest_collection_modifyitems(items):
    """Move the longest files to the front, so that none of them is left alone at the end."""
    items.sort(key=lambda item: not item.location[0].endswith(LONGEST))


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Return a folder with a small data set of each kind: 64 training and 22 validation images."""
    import make_data

    folder = tmp_path_factory.mktemp("data")
    for name in make_data.FORMATS:
        make_data.make(name, folder / name, train=64, validation=22, classes=10)
    return folder


@pytest.fixture(scope="session", autouse=True)
def standing_clusters():
    yield
    standing.end()


@pytest.fixture
def logged(caplog, monkeypatch):
    """Return the captured log."""
    if caplog.handler not in logger.handlers:  # pytest may have put another handler there
        monkeypatch.setattr(logger, "propagate", True)
    return caplog
