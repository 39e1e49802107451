"""Fixtures that tests of several folders share; ends the standing clusters."""

import gc
import locale
import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from gluon_gc.log import logger
from tests.mxnet.cluster import standing
from tests.mxnet.cluster.cluster import Cluster

# Modules of tests/neutral are also imported by others, before its own profile is loaded.
settings.register_profile("no deadline", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("no deadline")

EXAMPLE = Path(__file__).resolve().parents[1] / "example"
FOLDERS = ("", "cifar100", "digits", "imagenet", "mnist")
# The examples' scripts have these folders on sys.path.
sys.path[:0] = [str(EXAMPLE / folder) for folder in FOLDERS]


LONGEST = (
    "installation/test_installation.py",
    "docs/test_training.py",
    "launch/test_leaving.py",
    "exchange/test_bad_network.py",
    "launch/test_stalls.py",
    "examples/test_benchmark.py",
    "examples/test_examples.py",
    "states/test_checkpoint.py",
    "exchange/test_two_way.py",
    "exchange/test_one_exchange.py",
    "launch/test_kill_matrix.py",
    "launch/test_restarts.py",
    "cuda/test_equal_bytes.py",
    "docs/test_adding_a_compressor.py",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Begin with the longest files, so that none of them is left alone at the end.

    xdist itself begins with the files that have the most tests.
    """
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class LongestFirst(LoadFileScheduling):
        def _assign_work_unit(self, node):
            longest = [file for file in self.workqueue if file.endswith(LONGEST)]
            if longest:
                self.workqueue.move_to_end(longest[0], last=False)
            super()._assign_work_unit(node)

    return LongestFirst(config, log)


def pytest_collection_finish():
    gc.freeze()  # ten thousand tests, that nothing need look through


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Return a folder with a small data set of each kind: 64 training and 22 validation images."""
    import make_data

    folder = tmp_path_factory.mktemp("data")
    for name in make_data.FORMATS:
        make_data.make(name, folder / name, train=64, validation=22, classes=10)
    return folder


@pytest.fixture
def cluster(tmp_path):
    """Creates a `Cluster`, and ends it after the test."""
    clusters = []

    def make(workers, servers, **variables):
        clusters.append(Cluster(tmp_path, workers, servers, **variables))
        return clusters[-1]

    yield make
    for started in clusters:
        started.stop()


@pytest.fixture(scope="module", autouse=True)
def standing_clusters():
    """End the standing cluster after each file, because idle workers of Horovod keep cores busy."""
    yield
    standing.end()


@pytest.fixture(scope="module", autouse=True)
def same_encoding():
    """Restore the locale, which a library may have set to C: files would be read as ASCII then."""
    before = locale.setlocale(locale.LC_CTYPE)
    yield
    locale.setlocale(locale.LC_CTYPE, before)


@pytest.fixture
def logged(caplog, monkeypatch):
    """Return the captured log."""
    if caplog.handler not in logger.handlers:  # pytest may have put another handler there
        monkeypatch.setattr(logger, "propagate", True)
    return caplog
