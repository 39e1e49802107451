import pytest

from tests.distributed.cluster import Cluster


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
