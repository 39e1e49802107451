"""The workers of a machine find each other and share memory; here both are in one process."""

import os
import socket
import threading

import pytest

from gluon_gc.env import Cluster
from gluon_gc.launch.machine import Machine, _address


def _cluster(rank, size=2):
    return Cluster("worker", "a test", os.getpid() % 65536, 1, 1, 0, rank, size)


def _together(function):
    """Call a function with 0 and 1 in two threads; returns both results."""
    results = {}

    def run(number):
        results[number] = function(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in (1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [results[number] for number in (0, 1)]


@pytest.fixture
def machines():
    made = _together(lambda rank: Machine(_cluster(rank), 20))
    yield made
    for machine in made:
        machine.close()


def test_each_gets_what_all_have_in_the_order_of_ranks(machines):
    data = [b"", os.urandom(300_000)]
    assert _together(lambda rank: machines[rank].gather(data[rank])) == [data, data]


def test_memory_is_zeros_and_what_one_writes_all_see(machines):
    mine, other = _together(lambda rank: machines[rank].share(5000))
    assert mine.shape == (5000,) and not mine.any()
    mine[17] = 3
    assert other[17] == 3 and not other[18:].any()


def test_a_forked_child_keeps_no_connection_open(machines):
    child = os.fork()
    if not child:
        os._exit(sum(link.fileno() >= 0 for one in machines for link in one.links.values()))
    _, status = os.waitpid(child, 0)
    assert status == 0 and all(link.fileno() >= 0 for link in machines[0].links.values())


@pytest.mark.parametrize("rank, missing", [(0, "1, 2"), (1, "0")])
def test_those_who_do_not_come_are_named(rank, missing):
    said = f"workers with BYTEPS_LOCAL_RANK {missing} did not connect"
    with pytest.raises(ConnectionError, match=said):
        Machine(_cluster(rank, 3), 0.2)


def test_two_with_one_rank_are_refused():
    other = threading.Thread(target=lambda: [Machine(_cluster(1, 3), 5) for _ in range(2)])
    other.start()
    with pytest.raises(ConnectionError, match="two workers .* have BYTEPS_LOCAL_RANK 1"):
        Machine(_cluster(0, 3), 20)
    other.join(30)


def test_two_first_ones_are_refused():
    with pytest.raises(ConnectionError, match="two workers .* have BYTEPS_LOCAL_RANK 0"):
        with socket.socket(socket.AF_UNIX) as taken:
            taken.bind(_address(_cluster(0)))
            Machine(_cluster(0), 0.2)
