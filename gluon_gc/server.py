"""What the server and the scheduler run: ``python -m gluon_gc.server ROLE``.

Importing MXNet with DMLC_ROLE set to one of these roles would turn the process into MXNet's own
server, half initialised. So `bpslaunch` takes DMLC_ROLE away, and it is put back here.
"""

from __future__ import annotations

import ctypes
import json
import sys
import traceback
from collections import Counter
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import mxnet as mx
from mxnet.base import _LIB, check_call
from mxnet.kvstore.kvstore import KVStore
from mxnet.ndarray import NDArray

from . import census, compression, env, operators
from .kvstore import archive, handshake, messages
from .kvstore.aggregator import Aggregator
from .kvstore.watch import SCHEDULER_ID, Watch, is_dead, server_id
from .leaving import die
from .lifeline import Lifeline
from .log import logger
from .trace import Trace

_CONTROLLER_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class Server:
    """Answers the workers' pushes.

    A key is configured as compressed, whose payloads are aggregated or gathered, or as float64,
    which is summed. The rows of other keys are workers' hellos, and dense arrays are sums that
    MXNet has made already.
    """

    def __init__(self, kv: KVStore, threads: int, lifeline: Lifeline) -> None:
        self._kv = kv
        self._lifeline = lifeline
        self._aggregator = Aggregator(threads)
        self._rows: Dict[int, operators.MessageRows] = {}
        self._gathered: Set[int] = set()
        self._chunks: Dict[int, List[int]] = {}  # the numbers of those that a key's messages hold
        self._served: Set[int] = set()  # the chunks that came here, of those that are configured
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
            self._fail(f"cannot {action} what worker 0 sent")

    def _configure(self, messages: List[Dict[str, Any]]) -> None:
        for message in messages:
            key = message["key"]
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
            self._lifeline.know(server_id(self._kv.rank))
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
            served = self._served.intersection(request["chunks"])
            self._archive = archive.pack({n: self._aggregator.state(n) for n in served})
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
                self._served.update(numbers)
                replies = [self._aggregator.reduce(n, part) for n, part in zip(numbers, parts)]
            elif key in self._rows:
                replies = [operators.as_bytes(operators.sum_rows(parts[0], "float64"))]
            else:
                replies = [handshake.answer(parts[0])]
                self._greeting = stored
            operators.frame(replies, rows, place=0, places=workers).copyto(stored)
            stored.wait_to_read()
        except Exception as error:
            self._fail(f"key {key}: {error}")

    def _fail(self, why: str) -> None:
        self._lifeline.abandon(why)
        die(f"{self._lifeline.name}: {why}")


def _serve_as_scheduler(cluster: env.Cluster) -> None:
    nodes = census.hold(cluster)
    timeout = env.heartbeat_timeout()

    def problem() -> str:
        dead = [name for node, name in nodes.ids.items() if is_dead(kv, node, timeout)]
        return f"no heartbeat for {timeout} s from {', '.join(dead)}" if dead else ""

    env.export_for_ps_lite(nodes.cluster)
    kv = mx.kv.create("dist")
    watch = Watch(problem, nodes.fail_soon)
    _run(kv, lambda *_: None)
    watch.stop()
    nodes.close(timeout or env.get("PS_HEARTBEAT_TIMEOUT"))


def _serve_as_server(cluster: env.Cluster) -> None:
    lifeline = census.join(cluster, env.get("GLUON_GC_CONNECT_TIMEOUT"))
    timeout = env.heartbeat_timeout()
    gone = f"{lifeline.name} ends: no heartbeat for {timeout} s from the scheduler"
    env.export_for_ps_lite(lifeline.cluster)
    kv = mx.kv.create("dist")
    watch = Watch(lambda: gone if is_dead(kv, SCHEDULER_ID, timeout) else "")
    _run(kv, Server(kv, env.server_threads(), lifeline).control)
    watch.stop()
    lifeline.close()


def _run(kv: KVStore, control: Callable[..., None]) -> None:
    check_call(_LIB.MXKVStoreRunServer(kv.handle, _CONTROLLER_TYPE(control), None))


def main(role: str) -> None:
    """Serve as `role`, "server" or "scheduler", until all workers are done."""
    serve = {"scheduler": _serve_as_scheduler, "server": _serve_as_server}[role]
    try:
        serve(env.cluster(role))
    except (OSError, RuntimeError, env.ConfigurationError) as error:
        die(f"{role}: {error}")


if __name__ == "__main__":
    main(sys.argv[1])
