"""The arrays with which a worker of a new group continues."""

import numpy as np

from gluon_gc.state import Key
from gluon_gc.state.division import Share, arrays_of_worker

RESIDUAL, STREAM = Key("x", "worker", "residual"), Key("x", "worker", "stream")
SUM, SUM_STREAM = Key("x", "aggregator", "residual"), Key("x", "aggregator", "stream")
EQUAL, OWN = Key("x", "trainer", "momentum"), Key("x", "local", "parameter")


def workers(count):
    """Return the arrays of each worker. Each has summed another chunk."""
    return [
        {
            RESIDUAL: np.full(3, rank + 1.0, np.float32),
            STREAM: np.array([[0, 3, 7, rank + 1]], np.uint64),
            SUM._replace(begin=rank): np.full(1, rank + 0.5, np.float32),
            SUM_STREAM: np.array([[rank, rank + 1, 7, 9]], np.uint64),
            EQUAL: np.ones(3, np.float32),
            OWN: np.full(3, rank, np.float32),
        }
        for rank in range(count)
    ]


def test_without_shares_a_worker_has_its_own_arrays_and_those_of_all_aggregators():
    before = workers(2)
    found = arrays_of_worker(before, 1)
    for key in (RESIDUAL, STREAM, EQUAL, OWN):
        assert found[key] is before[1][key]
    assert found[SUM] == 0.5 and found[SUM._replace(begin=1)] == 1.5
    assert found[SUM_STREAM].tolist() == [[0, 1, 7, 9], [1, 2, 7, 9]]


def test_a_new_group_shares_sums_and_continues_the_streams_of_the_first_worker():
    before = workers(2)
    of_third = arrays_of_worker(before, 2, {"x": Share(2, 3, 2)})
    assert of_third[RESIDUAL].tolist() == [1.0] * 3 and of_third[RESIDUAL].dtype == np.float32
    assert of_third[STREAM] is before[0][STREAM] and of_third[EQUAL] is before[0][EQUAL]
    assert of_third[OWN] is before[0][OWN]  # rank 2 modulo 2
    found = [
        arrays_of_worker(before, rank, {"x": Share(2, 3, rank, draws_alike=False)})[STREAM]
        for rank in range(3)
    ]
    assert len({stream.tobytes() for stream in found}) == 3
    assert found[0].tolist() == before[0][STREAM].tolist()


def test_residuals_of_whole_machines_count_once():
    found = arrays_of_worker(workers(4), 0, {"x": Share(2, 1)})
    assert found[RESIDUAL].tolist() == [5.0] * 3  # the sum of all is 10, twice that of machines


def test_tensors_without_a_share_start_from_zero():
    assert RESIDUAL not in arrays_of_worker(workers(2), 0, {})
