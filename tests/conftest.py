"""What tests of the examples share, and the end of the clusters that stand between tests."""

import sys
from pathlib import Path

import pytest

from gluon_gc.log import logger
from tests.distributed import standing

EXAMPLE = Path(__file__).resolve().parents[1] / "example"
FOLDERS = ("", "cifar100", "digits", "imagenet", "mnist")
sys.path[:0] = [str(EXAMPLE / folder) for folder in FOLDERS]  # as the examples' scripts have it


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A folder with a small data set of each kind: 64 images to train on, 22 to validate with."""
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
    """What the log says."""
    if caplog.handler not in logger.handlers:  # where pytest's latest have put it
        monkeypatch.setattr(logger, "propagate", True)
    return caplog
