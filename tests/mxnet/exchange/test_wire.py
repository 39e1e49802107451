"""The bytes on the network match compression_stats(), in both directions.

compression_stats() counts the messages' contents. It does not count ps-lite's overhead: some
hundred bytes per message, acknowledgements and heartbeats, which are 1 % in this test.
"""

from __future__ import annotations

import collections
import ctypes
import os
import socket
import struct
import threading
from typing import Collection, Counter, Sequence

import mxnet as mx
import pytest

import gluon_gc as bps
from tests.mxnet.cluster.cluster import Cluster
from tests.mxnet.cluster.jobs import backward, gradients_of, parameters

_ETH_P_IP = 0x0800
_SO_RCVBUFFORCE = 33
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_HEADERS = struct.Struct(">2xH8x4s4s4sI4xB")  # IP length, addresses; TCP ports, sequence, offset
_IP_HEADER_BYTES = 20  # without options, which are not used here
_BUFFER_BYTES = 64 << 20  # of packets that wait to be read

_SO_ATTACH_FILTER = 26
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # instructions of a packet filter (BPF)
_TARGET_AT = 16  # offset in an IP header


class PacketCounter:
    """A context manager that counts the bytes that TCP sends over loopback, without headers.

    The count does not depend on the machine's load, unlike the numbers of packets and
    acknowledgements. Retransmitted bytes count once. `received` has the bytes by address. Without
    CAP_NET_RAW and CAP_NET_ADMIN, there is a PermissionError.
    """

    def __init__(self, addresses: Collection[str]) -> None:
        self.received: Counter[str] = collections.Counter()
        self._ends: dict[bytes, int] = {}  # by connection: the sequence number after its last byte
        self._addresses = {socket.inet_aton(address): address for address in addresses}
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM)
        _filter_by_target(self._socket, list(self._addresses))
        # Bind after the filter is set, or unfiltered packets would be queued.
        self._socket.bind(("lo", _ETH_P_IP))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        self._socket.settimeout(0.2)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._count, daemon=True)

    def __enter__(self) -> PacketCounter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        statistics = self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
        self._socket.close()
        _, dropped = struct.unpack("II", statistics)
        assert dropped == 0, f"{dropped} packets were not looked at in time"

    def _count(self) -> None:
        while True:
            if self._stopped.is_set():  # other traffic on this machine may never pause
                self._socket.setblocking(False)
            try:
                packet, (_, _, kind, _, _) = self._socket.recvfrom(_HEADERS.size)
            except (socket.timeout, BlockingIOError):
                if self._stopped.is_set():
                    return
                continue
            if (
                kind != socket.PACKET_OUTGOING and len(packet) == _HEADERS.size
            ):  # loopback shows each packet twice
                self._count_packet(*_HEADERS.unpack(packet))

    def _count_packet(
        self, length: int, source: bytes, target: bytes, ports: bytes, sequence: int, offset: int
    ) -> None:
        data = length - _IP_HEADER_BYTES - 4 * (offset >> 4)
        connection = source + target + ports
        end = (sequence + data) % 2**32
        new = (end - self._ends.get(connection, sequence)) % 2**32
        if 0 < new < 2**31:
            self._ends[connection] = end
            self.received[self._addresses[target]] += min(data, new)


def _filter_by_target(packets: socket.socket, targets: Sequence[bytes]) -> None:
    """Make the kernel deliver only the headers of packets to these addresses."""
    program = [(_LOAD_WORD, 0, 0, _TARGET_AT)]
    for further, target in zip(reversed(range(len(targets))), targets):
        program.append((_JUMP_IF_EQUAL, further + 1, 0, int.from_bytes(target, "big")))
    program += [(_RETURN, 0, 0, 0), (_RETURN, 0, 0, _HEADERS.size)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in program))
    length_and_place = struct.pack("HP", len(program), ctypes.addressof(code))
    packets.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, length_and_place)


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
