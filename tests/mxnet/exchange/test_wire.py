"""The bytes on the network match compression_stats(), in both directions.

compression_stats() counts the messages' contents. It does not count ps-lite's overhead: some
hundred bytes per message, acknowledgements and heartbeats, which are 1 % in this test.
"""

import os

import mxnet as mx
import pytest

import gluon_gc as bps
from tests.mxnet.cluster.cluster import Cluster
from tests.mxnet.cluster.jobs import backward, gradients_of, parameters
from tests.mxnet.cluster.packets import PacketCounter

WORKERS, SERVERS = 2, 2
STEPS = 20
ELEMENTS = 4_000_000
DITHERING = {"compressor": "dithering", "k": 2}  # its messages vary in length


def traffic(steps, **compression_params):
    """Train on one large tensor; returns the bytes per step, pushed and pulled."""
    params = parameters([(ELEMENTS,)])
    trainer = bps.DistributedTrainer(
        params, "sgd", {"learning_rate": 0.1}, compression_params=compression_params
    )
    gradients = gradients_of(bps.rank(), 0, [(ELEMENTS,)])
    for _ in range(steps):
        backward(params, gradients)
        trainer.step(1)
        mx.nd.waitall()
    total = trainer.compression_stats()["total"]
    return total["pushed_bytes"], total["pulled_bytes"]


def counted(folder, params, steps):
    """Return the bytes sent to servers and workers, and those per step by compression_stats()."""
    folder.mkdir()
    subnet = os.getpid() % 2**16  # loopback addresses that are not in use
    to_workers, to_servers = (f"127.{subnet >> 8}.{subnet & 255}.{host}" for host in (101, 102))
    try:
        packets = PacketCounter([to_workers, to_servers])
    except PermissionError:
        pytest.skip("counting packets needs CAP_NET_RAW and CAP_NET_ADMIN")
    cluster = Cluster(folder, WORKERS, SERVERS, DMLC_NODE_HOST=to_servers)
    try:
        with packets:
            cluster.start_roles()
            for rank in range(WORKERS):
                job = traffic, {"steps": steps, **params}
                cluster.start_worker(rank, *job, DMLC_NODE_HOST=to_workers)
            results = cluster.results()
    finally:
        cluster.stop()
    sent = packets.received[to_servers], packets.received[to_workers]
    return sent, [sum(of_workers) for of_workers in zip(*results)]


@pytest.mark.parametrize("params", [DITHERING, {"fp16": True}], ids=["dithering", "fp16"])
def test_the_bytes_on_the_network_are_those_of_compression_stats(tmp_path, params):
    once, _ = counted(tmp_path / "once", params, STEPS)
    twice, expected = counted(tmp_path / "twice", params, 2 * STEPS)
    for way in range(2):  # pushed, pulled
        a_step = (twice[way] - once[way]) / STEPS  # without the bytes of setting up
        assert a_step == pytest.approx(expected[way], rel=0.03)
