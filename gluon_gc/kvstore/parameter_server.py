"""The backend over MXNet's parameter server (dist_sync), unmodified.

A worker pushes its payload as the row of a row_sparse array whose id is its rank. The server's
union of the rows is all payloads side by side; row 0 of what it stores is the answer.
"""

from __future__ import annotations

import atexit
import json
import sys
import threading
from typing import Any, ClassVar, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.kvstore import KVStoreBase
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import RowSparseNDArray

from .. import census, env, kernels, operators
from ..log import logger
from ..operators import MessageRows
from . import archive, handshake, messages, plan
from .base import CompressingKVStore
from .plan import Chunk
from .watch import SCHEDULER_ID, Watch, die_of, is_dead

_CONTROLLER = 0  # the command that MXNet's server hands to its controller


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
        census.join(cluster, env.get("GLUON_GC_CONNECT_TIMEOUT"))
        notice.cancel()
        env.export_for_ps_lite(cluster)
        self._kv = mx.kv.create("dist_sync")
        logger.info("worker %d has joined the cluster at %s", self.rank, address)
        self.num_workers = self._kv.num_workers
        self._row = self._kv.rank  # ps-lite's rank, by which the server sorts the rows
        self._row0 = mx.nd.zeros(1, dtype="int64")
        self._servers = cluster.num_server
        self._allocator = plan.KeyAllocator(self._servers)
        self._keys: Dict[Chunk, int] = {}
        # A server counts the pushes of a key, not who sent them. So a key is always exchanged with
        # the same arrays: MXNet's engine then ends one exchange before it begins the next.
        self._sent: Dict[int, NDArray] = {}
        self._pulled: Dict[int, List[RowSparseNDArray]] = {}
        self._rows: Dict[int, MessageRows] = {}
        self._first_rows: Dict[int, NDArray] = {}  # of all workers' messages
        self._counters: Dict[int, Tuple[NDArray, NDArray]] = {}  # bytes pushed and pulled
        gone = (
            f"worker {self.rank}: the scheduler at {address} is gone; "
            "it leaves when a worker or server dies, and says which"
        )
        timeout = env.heartbeat_timeout()
        self._watch = Watch(lambda: gone if is_dead(self._kv, SCHEDULER_ID, timeout) else "")
        GluonGCParameterServer.connected = self
        sys.excepthook = die_of
        atexit.register(self.close)
        self._greetings = [self._allocator.key(server) for server in range(self._servers)]
        self._configure([])
        self._kv.init(
            self._greetings, [self._zero_rows(key, messages.ROWS) for key in self._greetings]
        )
        self._agree({})

    def close(self) -> None:
        """Leave the cluster once all workers come here; nothing can be exchanged afterwards."""
        if self.connected is None:
            return
        mx.nd.waitall()
        self._kv._barrier()  # watched still: a worker that all wait for may die
        self._watch.stop()
        del self._kv
        GluonGCParameterServer.connected = None

    # Set-up: every worker comes here with the same chunks

    def _open(self, chunks: Sequence[Chunk]) -> None:
        servers = plan.spread([chunk.message_bytes for chunk in chunks], self._servers)
        configured, keys, zeros = [], [], []
        for chunk, server in zip(chunks, servers):
            key = self._keys[chunk] = self._allocator.key(server)
            keys.append(key)
            if chunk.aggregated:
                zeros.append(self._zero_rows(key, chunk.params.rows(chunk.size, chunk.dtype)))
                configured.append(
                    {
                        "key": key,
                        "params": chunk.params.describe(),
                        "size": chunk.size,
                        "dtype": chunk.dtype,
                        "start": self._start(chunk, node=self.num_workers),
                    }
                )
            elif chunk.gathered:
                zeros.append(self._zero_rows(key, chunk.params.rows(chunk.size, chunk.dtype)))
                configured.append({"key": key, "gathered": True})
            elif chunk.dtype == "float64":
                zeros.append(self._zero_rows(key, MessageRows(chunk.message_bytes)))
                configured.append({"key": key, "summed_bytes": chunk.message_bytes})
            else:
                values = chunk.message_bytes // np.dtype(chunk.dtype).itemsize
                zeros.append(mx.nd.zeros(values, dtype=chunk.dtype))
                self._sent[key] = mx.nd.zeros(values, dtype=chunk.dtype)
        self._configure(configured)
        if keys:
            self._kv.init(keys, zeros)

    def _zero_rows(self, key: int, rows: MessageRows) -> RowSparseNDArray:
        """Zeros as the server first stores them for messages of all workers."""
        shape = (self.num_workers * rows.count, rows.row_words)
        self._rows[key] = rows
        self._first_rows[key] = mx.nd.arange(0, shape[0], rows.count, dtype="int64")
        self._sent[key] = mx.nd.sparse.zeros("row_sparse", shape)
        pulls = 1 if rows.count == 1 else 2
        self._pulled[key] = [mx.nd.sparse.zeros("row_sparse", shape) for _ in range(pulls)]
        self._counters[key] = mx.nd.zeros(1, dtype="float64"), mx.nd.zeros(1, dtype="float64")
        return mx.nd.sparse.row_sparse_array((mx.nd.zeros(shape), np.arange(shape[0])), shape)

    def _configure(self, keys: List[Dict[str, Any]]) -> None:
        if self._row == 0:
            self._command("configure", keys)

    def _command(self, action: str, request: Any) -> None:
        """Ask all servers; returns when they have done it."""
        body = json.dumps({"gluon_gc": {action: request}})
        self._kv._send_command_to_servers(_CONTROLLER, body)

    def _agree(self, about: Mapping[str, Any]) -> None:
        """Make sure that all servers are ours, and all workers about to do the same."""
        hello = handshake.hello(self.rank, about)
        for key in self._greetings:
            handshake.check(self._exchange_row(key, hello, priority=0))
        self._kv._barrier()  # from here on, rank 0 may have servers answer it something else

    # What travels

    def _exchange_row(self, key: int, message: NDArray, priority: int, answers: int = 1) -> NDArray:
        """From this worker's message to the first `answers` that the server has then."""
        pushed_bytes, _ = self._counters[key]
        rows, sent = self._rows[key], self._sent[key]
        operators.frame(message, rows, self._row, self.num_workers, pushed_bytes, out=sent)
        self._kv.push(key, sent, priority)
        return self._pull_row(key, priority, answers)

    def _pull_row(self, key: int, priority: int, answers: int = 1) -> NDArray:
        """The first messages that the server has, shape (answers, bytes)."""
        _, pulled_bytes = self._counters[key]
        rows, pulled = self._rows[key], self._pulled[key]
        wanted = self._row0 if answers == 1 else self._first_rows[key]
        for part in pulled:  # the first row of a message says how many more there are
            self._kv.row_sparse_pull(key, out=part, row_ids=wanted, priority=priority)
            if part is not pulled[-1]:
                wanted = operators.rows_left(part, rows, answers)
        return operators.unframe(pulled, rows, answers, pulled_bytes)

    def _reduce(self, chunk: Chunk, payload: NDArray, priority: int) -> NDArray:
        return self._exchange_row(self._keys[chunk], payload, priority).reshape((-1,))

    def _gather(self, chunk: Chunk, payload: NDArray, priority: int) -> NDArray:
        return self._exchange_row(self._keys[chunk], payload, priority, self.num_workers)

    def _sum(self, chunk: Chunk, array: NDArray, priority: int) -> NDArray:
        key = self._keys[chunk]
        if chunk.dtype == "float64":  # MXNet's server may sum it in float32
            reply = self._exchange_row(key, operators.as_bytes(array), priority)
            return operators.sum_rows(reply, chunk.dtype)
        sent = array.copyto(self._sent[key])
        self._kv.pushpull(key, sent, out=sent, priority=priority)
        return sent

    # Checkpoints: rank 0's has what the servers carry over as well

    def state(self, names: Collection[str]) -> List[Dict[str, Any]]:
        states = super().state(names)
        chunks = self._compressed(names)
        keys = [self._keys[chunk] for chunk in chunks if chunk.aggregated]
        if self.rank == 0 and keys:
            aggregators = self._archived(keys)
            for chunk, state in zip(chunks, states):
                if self._keys[chunk] in aggregators:
                    state["aggregator"] = aggregators[self._keys[chunk]]
        return states

    def _archived(self, keys: Sequence[int]) -> archive.States:
        """What servers carry over for these keys."""
        mx.nd.waitall()
        pages = [b""] * self._servers
        unfinished, number = list(range(self._servers)), 0
        while unfinished:
            self._command("save", {"keys": keys, "page": number})
            for server in list(unfinished):
                page = messages.unpack(self._pull_row(self._greetings[server], priority=0))
                pages[server] += page[1:]
                if not page[0]:
                    unfinished.remove(server)
            number += 1
        return {key: state for data in pages for key, state in archive.unpack(data).items()}

    def _load_chunk_state(self, chunk: Chunk, state: Mapping[str, Any]) -> None:
        super()._load_chunk_state(chunk, state)
        if self.rank == 0 and "aggregator" in state:
            packed = archive.to_json(state["aggregator"])
            self._command("load", {"key": self._keys[chunk], "state": packed})

    def _message_bytes(self, chunk: Chunk, done: Mapping[str, float]) -> Tuple[float, float]:
        if not ((chunk.aggregated or chunk.gathered) and done["calls"]):
            return super()._message_bytes(chunk, done)
        pushed, pulled = (counter.asscalar() for counter in self._counters[self._keys[chunk]])
        return pushed / done["calls"], pulled / done["calls"]

    def broadcast_all(self, arrays: Sequence[NDArray], root_rank: int) -> None:
        """Overwrite arrays with those of the worker of rank `root_rank`, bit for bit, any dtype.

        The bytes travel framed as floats; everybody else adds zeros to them.
        """
        if not 0 <= root_rank < self.num_workers:
            raise ValueError(f"root_rank must be in [0, {self.num_workers}), got {root_rank}")
        shapes = [(array.shape, np.dtype(array.dtype).name) for array in arrays]
        self._agree({"parameters to broadcast": shapes, "root_rank": root_rank})
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
