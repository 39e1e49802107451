"""What the server runs.

Importing MXNet with DMLC_ROLE=server would turn the process into MXNet's own server, half
initialised. So `bpslaunch` takes DMLC_ROLE away, and it is put back here.
"""

from __future__ import annotations

import json
import re
import traceback
from collections import Counter
from typing import Any, Dict, List, Optional, Set

import mxnet as mx
from mxnet.kvstore.kvstore import KVStore
from mxnet.ndarray import NDArray

from .. import compression, env
from ..launch import ps_lite
from ..launch.joining import join
from ..launch.leaving import die
from ..launch.lifeline import Lifeline
from ..log import logger
from . import operators, trace
from .codec import MessageCodec, Part
from .kvstore import archive
from .kvstore.parameter_server import control_messages, handshake, pages
from .kvstore.parameter_server.pages import PAGE_BYTES


class Server:
    """Answers the workers' pushes.

    A key is configured as compressed, whose payloads are aggregated or gathered, or as values in
    rows, which are summed. The rows of other keys are workers' hellos, and dense arrays are sums
    that MXNet has made already.
    """

    def __init__(self, kv: KVStore, threads: int, lifeline: Lifeline) -> None:
        self._kv = kv
        self._lifeline = lifeline
        self._threads = threads
        self._aggregators: Dict[int, MessageCodec] = {}
        self._rows: Dict[int, operators.MessageRows] = {}
        self._gathered: Set[int] = set()
        self._summed: Dict[int, str] = {}  # dtypes of values
        self._page_key: Optional[int] = None
        self._page: Optional[NDArray] = None  # what workers pull pages from
        self._saved = archive.Cutter(iter(()))
        self._loaded = archive.Joiner({})
        self._serving = False
        self._trace: Optional[trace.Trace] = None
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

    def close(self) -> None:
        """Write what there is of a trace."""
        if self._trace is not None:
            self._trace.close()

    def _configure(self, messages: List[Dict[str, Any]]) -> None:
        for message in messages:
            key = message["key"]
            if message["server"] != self._kv.rank:
                continue
            if "gathered" in message:
                self._gathered.add(key)
            elif "pages" in message:
                self._page_key = key
            elif "summed_bytes" in message:
                self._summed[key] = message["dtype"]
                self._rows[key] = operators.MessageRows(((message["summed_bytes"], None),))
            else:
                self._aggregators[key] = _aggregator(message)
                self._rows[key] = self._aggregators[key].rows()
        if not self._serving:  # MXNet takes an updater only once the server runs
            self._kv._set_updater(self.update)
            self._serving = True
            if env.get("BYTEPS_TRACE_ON"):
                self._trace = trace.Trace(f"server{self._kv.rank}")

    def _save(self, request: Dict[str, Any]) -> None:
        """Lay ready the next page of what is carried over, or the first for these keys."""
        if "keys" in request:
            own = [self._aggregators[key] for key in request["keys"] if key in self._aggregators]
            self._saved = archive.Cutter(codec.state() for codec in own)
        pages.full(self._saved.page(PAGE_BYTES)).copyto(self._page)
        self._page.wait_to_read()

    def _load(self, request: Dict[str, Any]) -> None:
        """Expect pages of what is to be carried over for these keys."""
        own = [key for key in request["keys"] if key in self._aggregators]
        self._loaded = archive.Joiner({key: self._aggregators[key].layouts() for key in own})

    def update(self, key: int, received: NDArray, stored: NDArray) -> None:
        """Called by MXNet once every worker has pushed `key`."""
        try:
            if received.stype == "default":
                received.copyto(stored)
                return
            if key == self._page_key:
                self._page = stored
                if self._loaded.left:
                    for loaded, states in self._loaded.add(pages.unframed(received)):
                        self._aggregators[loaded].load_state(states)
                return
            if self._trace is not None and (key in self._aggregators or key in self._gathered):
                self._updates[key] += 1
                if self._updates[key] > self._trace.step:
                    self._trace.next_step()
            if key in self._gathered:
                operators.keep_rows(received, stored).wait_to_read()
                return
            rows = self._rows.get(key, control_messages.ROWS)
            workers = received.shape[0] // rows.count
            framing = rows.framing_at(place=0, places=workers)
            if key in self._aggregators:
                aggregate = self._aggregators[key].aggregate
                aggregate(received, workers, self._threads, framing).copyto(stored)
            else:
                (parts,) = operators.unframe([received], rows, workers)
                if key in self._summed:
                    reply = operators.as_bytes(operators.sum_rows(parts, self._summed[key]))
                else:
                    reply = handshake.answer(parts)
                operators.frame([reply], rows, place=0, places=workers).copyto(stored)
            stored.wait_to_read()
        except Exception as error:
            self._fail(f"key {key}: {_reason(error)}")

    def _fail(self, why: str) -> None:
        self._lifeline.abandon(why)
        die(f"{self._lifeline.name}: {why}")


def _reason(error: Exception) -> str:
    """What an error of an operator says, without what MXNet adds to it."""
    said = re.findall(r"\]: gluon_gc: (.*)", str(error))
    return said[-1] if said else str(error)


def _aggregator(message: Dict[str, Any]) -> MessageCodec:
    """What aggregates messages that are described so."""
    parts = [Part(chunk["size"], chunk["start"]) for chunk in message["chunks"]]
    return MessageCodec(compression.parse(message["params"]), message["dtype"], parts)


def serve() -> None:
    """Serve until all workers are done."""
    if env.get("BYTEPS_TRACE_ON"):
        trace.writable("")
    lifeline = join(env.cluster("server"), env.get("GLUON_GC_CONNECT_TIMEOUT"))
    env.export_for_ps_lite(lifeline.cluster)
    env.prepare_exchanges()
    kv = mx.kv.create("dist")
    server = Server(kv, env.server_threads(), lifeline)
    ps_lite.serve(kv.handle, server.control, lifeline.wait_for_workers)
    server.close()
    lifeline.close()
