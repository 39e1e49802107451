"""The backend over MXNet's parameter server (dist_sync), unmodified.

A worker pushes its payload as the row of a row_sparse array whose id is its rank. The server's
union of the rows is all payloads side by side; row 0 of what it stores is the answer.
"""

from __future__ import annotations

import itertools
import json
import threading
from dataclasses import dataclass
from typing import Any, ClassVar, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.kvstore import KVStoreBase
from mxnet.ndarray import NDArray

from .. import census, env, kernels, operators
from ..leaving import ending
from ..log import logger
from ..operators import Counter, MessageRows
from . import archive, handshake, messages, plan
from .base import CompressingKVStore
from .gradient import Gradients
from .plan import Chunk
from .rows import Rows
from .watch import SCHEDULER_ID, Watch, is_dead, worker_id

_CONTROLLER = 0  # the command that MXNet's server hands to its controller
_LANES = 3  # messages under way to a server: a pull stands in line behind those that are pushed


@dataclass(frozen=True, eq=False)
class _Message:
    """Chunks that travel together, in which lane, and where bytes are counted."""

    chunks: Tuple[Chunk, ...]
    key: int
    lane: NDArray
    pushed: Counter
    pulled: Counter

    @property
    def framed(self) -> bool:
        """Whether bytes travel, in rows, rather than values that MXNet sums."""
        (chunk, *_) = self.chunks
        return chunk.aggregated or chunk.gathered or chunk.dtype == "float64"


@KVStoreBase.register
class GluonGCParameterServer(CompressingKVStore):
    """Compressed gradients through the parameter server that the DMLC variables describe.

    Raises
    ------
    ConnectionError
        No scheduler listens at its address within GLUON_GC_CONNECT_TIMEOUT.
    RuntimeError
        A node is not gluon_gc's, two nodes are the same, or workers and servers differ in version
        or settings; or this process is connected already.
    """

    type = "dist_sync"
    connected: ClassVar[Optional["GluonGCParameterServer"]] = None
    """The one connection that a process can have."""

    def __init__(self) -> None:
        super().__init__()
        if self.connected is not None:
            raise RuntimeError("this process is connected to its parameter server already")
        ending().concerns(self)
        cluster = env.cluster()
        self.rank = cluster.rank
        address = f"{cluster.root_uri}:{cluster.root_port}"
        waiting = (
            f"worker {self.rank} waits at {address} until all {cluster.total_workers} workers "
            f"and {cluster.num_server} servers are there"
        )
        notice = threading.Timer(30, logger.warning, [waiting])
        notice.daemon = True
        notice.start()
        self._lifeline = census.join(cluster, env.get("GLUON_GC_CONNECT_TIMEOUT"))
        notice.cancel()
        with env.exported_for_ps_lite(self._lifeline.cluster):
            self._kv = mx.kv.create("dist_sync")
        logger.info("worker %d has joined the cluster at %s", self.rank, address)
        self.num_workers = self._kv.num_workers
        self._row = self._kv.rank  # ps-lite's rank, by which the server sorts the rows
        self._rows = Rows(self._kv)
        self._servers = cluster.num_server
        self._allocator = plan.KeyAllocator(self._servers)
        self._messages: Dict[Chunk, _Message] = {}
        self._numbers: Dict[Chunk, int] = {}
        self._summed: Dict[int, NDArray] = {}  # as in Rows, each key has an array of its own
        self._lifeline.know(worker_id(self._row))
        timeout = env.heartbeat_timeout()
        gone = f"worker {self.rank} ends: no heartbeat for {timeout} s from the scheduler"
        self._watch = Watch(lambda: gone if is_dead(self._kv, SCHEDULER_ID, timeout) else "")
        GluonGCParameterServer.connected = self
        self._greetings = [self._allocator.key(server) for server in range(self._servers)]
        self._configure([])
        self._kv.init(
            self._greetings, [self._rows.open(key, messages.ROWS) for key in self._greetings]
        )
        self._agree({})

    def close(self) -> None:
        """Leave the cluster once all workers come here; nothing can be exchanged afterwards."""
        if self.connected is None:
            return
        mx.nd.waitall()
        self._lifeline.leave()
        self._watch.stop()
        del self._kv, self._rows  # ps-lite waits for all nodes
        self._lifeline.close()
        GluonGCParameterServer.connected = None
        ending().concerns(None)

    def abandon(self, why: str) -> None:
        """Leave the cluster at once; all others end, and say why."""
        if self.connected is self:
            self._lifeline.abandon(why)
            self._watch.stop()
            GluonGCParameterServer.connected = None
            ending().abandoned()

    # Set-up: every worker comes here with the same chunks

    def _open(self, chunks: Sequence[Chunk]) -> None:
        bundles = plan.bundled(chunks, plan.SMALL_BYTES)
        loads = [sum(chunk.message_bytes for chunk in bundle) for bundle in bundles]
        lanes = [
            itertools.cycle([mx.nd.zeros(1) for _ in range(_LANES)]) for _ in range(self._servers)
        ]
        keys, zeros, configured = [], [], []
        for bundle, server in zip(bundles, plan.spread(loads, self._servers)):
            key, counts = self._allocator.key(server), mx.nd.zeros(2, dtype="float64")
            message = _Message(
                tuple(bundle), key, next(lanes[server]), Counter(counts, 0), Counter(counts, 1)
            )
            keys.append(message.key)
            zeros.append(self._zeros(message))
            if message.framed:
                configured.append({"key": message.key, **self._description(message)})
            for chunk in bundle:
                self._messages[chunk] = message
        self._configure(configured)
        if keys:
            self._kv.init(keys, zeros)

    def _zeros(self, message: _Message) -> NDArray:
        """What the server first stores for a message."""
        (chunk, *_) = message.chunks
        if chunk.aggregated or chunk.gathered:
            parts = (c.params.part(c.size, c.dtype) for c in message.chunks)
            return self._rows.open(message.key, MessageRows(tuple(parts)))
        if message.framed:
            return self._rows.open(message.key, MessageRows(((chunk.message_bytes, None),)))
        values = chunk.message_bytes // np.dtype(chunk.dtype).itemsize
        self._summed[message.key] = mx.nd.zeros(values, dtype=chunk.dtype)
        return mx.nd.zeros(values, dtype=chunk.dtype)

    def _description(self, message: _Message) -> Dict[str, Any]:
        """What the server must know of a message in rows."""
        (chunk, *_) = message.chunks
        if chunk.gathered:
            return {"gathered": True}
        if not chunk.aggregated:
            return {"summed_bytes": chunk.message_bytes}
        chunks = [
            {
                "number": self._number(chunk),
                "params": chunk.params.describe(),
                "size": chunk.size,
                "dtype": chunk.dtype,
                "start": self._start(chunk, node=self.num_workers),
            }
            for chunk in message.chunks
        ]
        return {"chunks": chunks}

    def _number(self, chunk: Chunk) -> int:
        """What servers call a chunk that they aggregate."""
        return self._numbers.setdefault(chunk, len(self._numbers))

    def _configure(self, keys: List[Dict[str, Any]]) -> None:
        if self._row == 0:
            self._command("configure", keys)

    def _command(self, action: str, request: Any) -> None:
        """Ask all servers; returns when they have done it."""
        body = json.dumps({"gluon_gc": {action: request}})
        self._kv._send_command_to_servers(_CONTROLLER, body)

    def _agree(self, about: Mapping[str, Any]) -> None:
        """Make sure that all servers are ours, and all workers about to do the same."""
        self._lifeline.next_exchange()
        hello = handshake.hello(self.rank, about)
        for key in self._greetings:
            self._rows.push(key, [hello])
            (answer,) = self._rows.pull(key)
            handshake.check(answer)
        self._kv._barrier()  # from here on, rank 0 may have servers answer it something else

    # What travels

    def _exchange(self, chunks: Sequence[Chunk], gradients: Gradients, priority: int) -> None:
        self._lifeline.next_exchange()
        messages = list(dict.fromkeys(self._messages[chunk] for chunk in chunks))
        sent = [
            [self._encoded(chunk, self._values(chunk, gradients)) for chunk in message.chunks]
            for message in messages
        ]
        received = [
            self._travel(message, arrays, priority - number)
            for number, (message, arrays) in enumerate(zip(messages, sent))
        ]
        for message, arrays in zip(messages, received):
            for chunk, array in zip(message.chunks, arrays):
                self._deliver(chunk, array, gradients)

    def _travel(self, message: _Message, arrays: Sequence[NDArray], priority: int) -> List[NDArray]:
        """What comes back for what is sent of each chunk."""
        (chunk, *_) = message.chunks
        if not message.framed:
            sent = arrays[0].copyto(self._summed[message.key])
            self._kv.pushpull(message.key, sent, out=sent, priority=priority)
            return [sent]
        summed = not (chunk.aggregated or chunk.gathered)
        if summed:  # MXNet's server may sum float64 in float32
            arrays = [operators.as_bytes(arrays[0])]
        self._rows.push(message.key, arrays, priority, message.pushed, message.lane)
        answers = self.num_workers if chunk.gathered else 1
        parts = self._rows.pull(message.key, answers, priority, message.pulled, message.lane)
        if summed:
            return [operators.sum_rows(parts[0], chunk.dtype)]
        return parts if chunk.gathered else [part.reshape((-1,)) for part in parts]

    # Checkpoints: rank 0's has what the servers carry over as well

    def state(self, names: Collection[str]) -> List[Dict[str, Any]]:
        states = super().state(names)
        numbers = [self._numbers.get(chunk) for chunk in self._compressed(names)]
        aggregated = [number for number in numbers if number is not None]
        if self.rank == 0 and aggregated:
            archived = self._archived(aggregated)
            for number, state in zip(numbers, states):
                if number in archived:
                    state["aggregator"] = archived[number]
        return states

    def _archived(self, numbers: Sequence[int]) -> archive.States:
        """What servers carry over for the chunks that they call so."""
        mx.nd.waitall()
        pages = [b""] * self._servers
        unfinished, page_number = list(range(self._servers)), 0
        while unfinished:
            self._command("save", {"chunks": numbers, "page": page_number})
            for server in list(unfinished):
                (answer,) = self._rows.pull(self._greetings[server])
                page = messages.unpack(answer)
                pages[server] += page[1:]
                if not page[0]:
                    unfinished.remove(server)
            page_number += 1
        return {key: state for data in pages for key, state in archive.unpack(data).items()}

    def _load_chunk_state(self, chunk: Chunk, state: Mapping[str, Any]) -> None:
        super()._load_chunk_state(chunk, state)
        if self.rank == 0 and "aggregator" in state:
            packed = archive.to_json(state["aggregator"])
            self._command("load", {"chunk": self._numbers[chunk], "state": packed})

    def _message_bytes(self, chunk: Chunk, done: Mapping[str, float]) -> Tuple[float, float]:
        """A chunk's share of the message that it travels in, by the bytes of the payloads."""
        if not ((chunk.aggregated or chunk.gathered) and done["calls"]):
            return super()._message_bytes(chunk, done)
        message = self._messages[chunk]
        all_done = [self._codecs[other].meter() for other in message.chunks]
        ways = ("sent_bytes", message.pushed), ("received_bytes", message.pulled)
        pushed, pulled = (
            counter.array.asnumpy()[counter.index] * done[way] / sum(d[way] for d in all_done)
            for way, counter in ways
        )
        return pushed / done["calls"], pulled / done["calls"]

    def broadcast_all(self, arrays: Sequence[NDArray], root_rank: int) -> None:
        """Overwrite arrays with those of the worker of rank `root_rank`, bit for bit, any dtype.

        The bytes travel framed as floats; everybody else adds zeros to them.
        """
        self._agree_to_broadcast(arrays, root_rank)
        host = [array.asnumpy() for array in arrays]
        data = np.frombuffer(b"".join(array.tobytes() for array in host), np.uint8)
        words = kernels.frame(data).view(np.float32)
        most = max(1, env.get("BYTEPS_PARTITION_BYTES") // 4)
        lane = min(most, -(-words.size // self._servers))
        keys = [self._allocator.key(server) for server in range(self._servers)]
        buffers = [mx.nd.zeros(lane) for _ in keys]
        self._kv.init(keys, buffers)
        received = np.empty_like(words)
        round_words = lane * len(keys)
        for start in range(0, words.size, round_words):
            for key, buffer, begin in zip(keys, buffers, range(start, start + round_words, lane)):
                part = words[begin : begin + lane] if self.rank == root_rank else words[:0]
                buffer[:] = np.pad(part, (0, lane - part.size))
                self._kv.pushpull(key, buffer, out=buffer)
            answers = np.concatenate([buffer.asnumpy() for buffer in buffers])
            part = received[start : start + round_words]
            part[:] = answers[: part.size]
        data = kernels.unframe(received.view(np.uint32), data.size)
        begin = 0
        for array, old in zip(arrays, host):
            new = data[begin : begin + old.nbytes].view(old.dtype).reshape(old.shape)
            array[:] = mx.nd.array(new, dtype=old.dtype)
            begin += old.nbytes
