"""What the server and the scheduler run.

Importing MXNet with DMLC_ROLE set to one of these roles would turn the process into MXNet's own
server, half initialised. So `bpslaunch` takes DMLC_ROLE away, and it is put back here.
"""

from __future__ import annotations

import ctypes
import json
import traceback
from collections import Counter
from dataclasses import replace
from typing import Any, Dict, List, Optional, Set, Tuple

import mxnet as mx
from mxnet.base import _LIB, check_call
from mxnet.kvstore.kvstore import KVStore
from mxnet.ndarray import NDArray

from . import census, compression, env, operators
from .kvstore import archive, handshake, messages
from .kvstore.aggregator import Aggregator
from .kvstore.watch import SCHEDULER_ID, Watch, die, is_dead
from .log import logger
from .trace import Trace

_CONTROLLER_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class Server:
    """Answers the workers' pushes.

    A key is configured as compressed, whose payloads are aggregated or gathered, or as float64,
    which is summed. The rows of other keys are workers' hellos, and dense arrays are sums that
    MXNet has made already.
    """

    def __init__(self, kv: KVStore, threads: int) -> None:
        self._kv = kv
        self._aggregator = Aggregator(threads)
        self._rows: Dict[int, operators.MessageRows] = {}
        self._gathered: Set[int] = set()
        self._chunks: Dict[int, List[int]] = {}  # the numbers of those that a key's messages hold
        self._greeting: Optional[NDArray] = None  # what workers pull messages from
        self._archive = b""
        self._serving = False
        self._trace: Optional[Trace] = None
        self._updates: Counter = Counter()  # of each key of payloads, to know which step it is

    def control(self, command: int, body: bytes, _: object) -> None:
        """Take a request in JSON; anything else, such as a pickled optimizer, is refused."""
        try:
            ((action, request),) = json.loads(body)["gluon_gc"].items()
            act = {"configure": self._configure, "save": self._save, "load": self._load}[action]
        except (ValueError, KeyError, TypeError, AttributeError):
            logger.warning(
                "server: refused a command that is not gluon_gc's; "
                "is a worker using MXNet's own KVStore?"
            )
            return
        try:
            act(request)
        except Exception:
            traceback.print_exc()
            die(f"server: cannot {action} what worker 0 sent")

    def _configure(self, messages: List[Dict[str, Any]]) -> None:
        for message in messages:
            key = message["key"]
            if message["server"] != self._kv.rank:
                continue
            if "gathered" in message:
                self._gathered.add(key)
            elif "summed_bytes" in message:
                self._rows[key] = operators.MessageRows(((message["summed_bytes"], None),))
            else:
                self._rows[key] = operators.MessageRows(tuple(map(self._add, message["chunks"])))
                self._chunks[key] = [chunk["number"] for chunk in message["chunks"]]
        if not self._serving:  # MXNet takes an updater only once the server runs
            self._kv._set_updater(self.update)
            self._serving = True
            if env.get("BYTEPS_TRACE_ON"):
                self._trace = Trace(f"server{self._kv.rank}")

    def _add(self, chunk: Dict[str, Any]) -> Tuple[int, Optional[int]]:
        """Expect a chunk; how its payloads lie in rows."""
        size, dtype = chunk["size"], chunk["dtype"]
        params = compression.parse(chunk["params"])
        self._aggregator.add(chunk["number"], params, size, dtype, chunk["start"])
        return params.part(size, dtype)

    def _save(self, request: Dict[str, Any]) -> None:
        """Answer with a page of what is carried over for some chunks; the first page fixes it."""
        if request["page"] == 0:
            own = [number for number in request["chunks"] if number in self._aggregator]
            self._archive = archive.pack({n: self._aggregator.state(n) for n in own})
        page = messages.pack(archive.page(self._archive, request["page"]))
        places = self._greeting.shape[0] // messages.ROWS.count
        operators.frame([page], messages.ROWS, 0, places).copyto(self._greeting)
        self._greeting.wait_to_read()

    def _load(self, request: Dict[str, Any]) -> None:
        if request["chunk"] in self._aggregator:
            self._aggregator.load_state(request["chunk"], archive.from_json(request["state"]))

    def update(self, key: int, received: NDArray, stored: NDArray) -> None:
        """Called by MXNet once every worker has pushed `key`."""
        try:
            if received.stype == "default":
                received.copyto(stored)
                return
            if self._trace is not None and (key in self._chunks or key in self._gathered):
                self._updates[key] += 1
                if self._updates[key] > self._trace.step:
                    self._trace.next_step()
            if key in self._gathered:
                operators.keep_rows(received, stored).wait_to_read()
                return
            rows = self._rows.get(key, messages.ROWS)
            workers = received.shape[0] // rows.count
            parts = operators.unframe([received], rows, workers)
            if key in self._chunks:
                numbers = self._chunks[key]
                replies = [self._aggregator.reduce(n, part) for n, part in zip(numbers, parts)]
            elif key in self._rows:
                replies = [operators.as_bytes(operators.sum_rows(parts[0], "float64"))]
            else:
                replies = [handshake.answer(parts[0])]
                self._greeting = stored
            operators.frame(replies, rows, place=0, places=workers).copyto(stored)
            stored.wait_to_read()
        except Exception as error:
            die(f"server: key {key}: {error}")


def _watch_nodes(kv: KVStore, cluster: env.Cluster) -> Watch:
    """The scheduler's watch: names the node that died."""
    timeout = env.heartbeat_timeout()
    nodes = {8 + 2 * rank: f"server {rank}" for rank in range(cluster.num_server)}
    nodes.update({9 + 2 * rank: f"worker {rank}" for rank in range(cluster.total_workers)})

    def problem() -> str:
        dead = [name for node, name in nodes.items() if is_dead(kv, node, timeout)]
        if not dead:
            return ""
        return f"scheduler: no heartbeat for {timeout} s from {', '.join(dead)} (ps-lite's rank)"

    return Watch(problem)


def main(role: str) -> None:
    """Serve as `role`, "server" or "scheduler", until all workers are done."""
    cluster = env.cluster(role)
    try:
        if role == "scheduler":
            local_size = census.hold(cluster)
        else:
            local_size = census.join(cluster, env.get("GLUON_GC_CONNECT_TIMEOUT"))
    except (OSError, RuntimeError) as error:
        die(f"{role}: {error}")
    cluster = replace(cluster, local_size=local_size)
    env.export_for_ps_lite(cluster)
    kv = mx.kv.create("dist")
    if role == "scheduler":
        watch = _watch_nodes(kv, cluster)
        controller = _CONTROLLER_TYPE(lambda *_: None)
    else:
        timeout = env.heartbeat_timeout()
        watch = Watch(
            lambda: is_dead(kv, SCHEDULER_ID, timeout) and "server: the scheduler is gone"
        )
        controller = _CONTROLLER_TYPE(Server(kv, env.server_threads()).control)
    check_call(_LIB.MXKVStoreRunServer(kv.handle, controller, None))
    watch.stop()
