"""How the nodes of a cluster meet at the scheduler's port, before ps-lite takes it.

ps-lite must know how many worker processes there are, and only machines with workers know how many
of them they run. So every node tells the scheduler what it is, in a line of JSON. The scheduler
answers when all have come, and leaves the port to ps-lite.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Dict, List, Optional

from .env import Cluster
from .log import logger

_REMIND = 30  # seconds after which the scheduler says who is missing
_PATIENCE = 10  # seconds for a node's line, once it is connected
_AFTERMATH = 10  # seconds in which nodes that come late are told what went wrong


class _Census:
    """What the scheduler knows so far."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._members: Dict[str, asyncio.StreamWriter] = {}
        self._servers = 0
        self.local_size: Optional[int] = None
        self.ended: asyncio.Future = asyncio.get_running_loop().create_future()

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take one node's line."""
        try:
            first = await asyncio.wait_for(reader.read(1), _PATIENCE)
            rest = await asyncio.wait_for(reader.readline(), _PATIENCE) if first == b"{" else b""
        except (asyncio.TimeoutError, OSError):
            first = b""
        if first != b"{":
            writer.close()
            if first == b"\xff":  # as ZeroMQ begins
                host = writer.get_extra_info("peername")[0]
                self._end(
                    f"a node at {host} is not gluon_gc's but MXNet's own; start servers and the "
                    "scheduler with bpslaunch, and workers with bps.init()"
                )
            return
        try:
            member = json.loads(first + rest)
            self._count(member["role"], member["rank"], member["local_size"], writer)
        except (ValueError, KeyError):
            writer.close()

    def _count(
        self, role: str, rank: Optional[int], size: int, writer: asyncio.StreamWriter
    ) -> None:
        if role == "server":
            rank, self._servers = self._servers, self._servers + 1
        name = f"{role} {rank}"
        if self.ended.done():
            self._answer(writer)
            return
        known = name in self._members
        self._members[name if not known else f"another {name}"] = writer
        logger.info("scheduler: %s has come", name)
        if known:
            self._end(f"{name} came twice: every machine needs its own DMLC_WORKER_ID")
        if self._servers > self._cluster.num_server:
            self._end(f"there are more servers than DMLC_NUM_SERVER, {self._cluster.num_server}")
        if role == "worker":
            self.local_size = self.local_size or size
            if size != self.local_size:
                self._end(
                    f"{name} is one of {size} on its machine, others are of {self.local_size}: "
                    "all machines must have as many"
                )
        if not self.missing():
            self._end("")

    def missing(self) -> List[str]:
        """The nodes that have not come yet; of each machine only the first, if none came at all."""
        size = self.local_size or 1
        expected = [f"server {i}" for i in range(self._cluster.num_server)]
        expected += [f"worker {i}" for i in range(self._cluster.num_worker * size)]
        return [name for name in expected if name not in self._members]

    def _end(self, problem: str) -> None:
        if not self.ended.done():
            self.ended.set_result(problem)
            for writer in self._members.values():
                self._answer(writer)

    def _answer(self, writer: asyncio.StreamWriter) -> None:
        answer = {"problem": self.ended.result(), "local_size": self.local_size}
        writer.write(json.dumps(answer).encode() + b"\n")

    async def remind(self) -> None:
        """Say from time to time who is missing."""
        while True:
            await asyncio.sleep(_REMIND)
            logger.warning("scheduler: waits for %s", ", ".join(self.missing()))

    async def close(self) -> None:
        """See to it that all have been answered."""
        for writer in self._members.values():
            try:
                await writer.drain()
                writer.close()
                await writer.wait_closed()
            except OSError:
                pass  # it died; ps-lite's heartbeats tell


async def _hold(cluster: Cluster) -> int:
    census = _Census(cluster)
    server = await asyncio.start_server(census.meet, None, cluster.root_port)
    reminder = asyncio.ensure_future(census.remind())
    problem = await census.ended
    reminder.cancel()
    if problem:
        await asyncio.sleep(_AFTERMATH)
    server.close()
    await census.close()
    if problem:
        raise RuntimeError(f"the cluster does not fit together: {problem}")
    return census.local_size or 1


def hold(cluster: Cluster) -> int:
    """The scheduler's part: wait for all nodes.

    Returns
    -------
    int
        Worker processes a machine.

    Raises
    ------
    RuntimeError
        Two nodes say they are the same, machines have different numbers of workers, or a node is
        MXNet's own. All who came hear of it.
    OSError
        The port is taken.
    """
    return asyncio.run(_hold(cluster))


def join(cluster: Cluster, timeout: float) -> int:
    """Any other node's part: tell the scheduler, and wait until all are there.

    Parameters
    ----------
    timeout : float
        Seconds within which the scheduler must be reached.

    Returns
    -------
    int
        Worker processes a machine.

    Raises
    ------
    ConnectionError
        There is no scheduler in time, it leaves before all are there, or is MXNet's own.
    RuntimeError
        As in `hold`.
    """
    member = {"role": cluster.role, "rank": cluster.rank, "local_size": cluster.local_size}
    address = f"{cluster.root_uri}:{cluster.root_port}"
    with _connected(cluster.root_uri, cluster.root_port, timeout) as link:
        link.sendall(json.dumps(member).encode() + b"\n")
        with link.makefile("rb") as lines:
            first = lines.read(1)
            if first == b"\xff":
                raise ConnectionError(
                    f"the scheduler at {address} is not gluon_gc's but MXNet's own; "
                    "start it with DMLC_ROLE=scheduler bpslaunch"
                )
            rest = lines.readline()
    if not rest:
        raise ConnectionError(f"the scheduler at {address} left before all nodes were there")
    answer = json.loads(first + rest)
    if answer["problem"]:
        raise RuntimeError(f"the cluster does not fit together: {answer['problem']}")
    return answer["local_size"]


def _connected(host: str, port: int, timeout: float) -> socket.socket:
    """A connection to the scheduler, which may start later."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            link = socket.create_connection((host, port), timeout=max(1.0, timeout))
            link.settimeout(None)
            return link
        except OSError as error:
            if time.monotonic() >= deadline:
                raise ConnectionError(
                    f"no scheduler at {host}:{port} within {timeout:g} s ({error}); "
                    "see DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT and GLUON_GC_CONNECT_TIMEOUT"
                ) from None
            time.sleep(0.2)
