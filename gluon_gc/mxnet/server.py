"""The server process: it aggregates the workers' messages in MXNet's parameter server.

If DMLC_ROLE is "server" when MXNet is imported, the import itself runs MXNet's own server, half
initialised. So `bpslaunch` removes DMLC_ROLE, and `serve` sets it again.
"""

from __future__ import annotations

import json
import re
import traceback
from collections import Counter
from typing import Any

import mxnet as mx
from mxnet.kvstore.kvstore import KVStore
from mxnet.ndarray import NDArray

from .. import compression, env
from ..launch.leaving import die
from ..launch.scheduler import ps_lite
from ..launch.scheduler.lifeline import Lifeline, join
from ..log import logger
from .engine import operators, trace
from .exchange.coder import MessageCoder, Part
from .kvstore import archive
from .kvstore.parameter_server import control_messages, pages
from .kvstore.parameter_server.pages import PAGE_BYTES


class Server:
    """Answers the workers' pushes, key by key:

    - Payloads of a compressed key are aggregated, or gathered.
    - Rows of values are summed.
    - Rows of any other key are messages in which workers compare facts.
    - Dense arrays are already summed by MXNet, and stored.
    """

    def __init__(self, kv: KVStore, threads: int, lifeline: Lifeline) -> None:
        self._kv = kv
        self._lifeline = lifeline
        self._threads = threads
        self._aggregators: dict[int, MessageCoder] = {}
        self._rows: dict[int, operators.MessageRows] = {}
        self._gathered: set[int] = set()
        self._summed: dict[int, str] = {}  # the dtype of each key's values
        self._page_key: int | None = None
        self._page: NDArray | None = None  # the stored array from which workers pull pages
        self._saved = archive.Cutter(iter(()))
        self._loaded = archive.Joiner({})
        self._serving = False
        self._trace: trace.Trace | None = None
        self._updates: Counter = Counter()  # of each key of payloads; the maximum is the step

    def control(self, command: int, body: bytes, _: object) -> None:
        """Handle a request in JSON. Anything else, such as a pickled optimizer, is refused."""
        try:
            ((action, request),) = json.loads(body)["gluon_gc"].items()
            act = {
                "configure": self._configure,
                "forget": self._forget,
                "save": self._save,
                "load": self._load,
                "keep_earlier": self._keep_earlier,
                "take_back": self._take_back,
            }[action]
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
            self._fail(f"cannot carry out worker 0's request '{action}'")

    def close(self) -> None:
        if self._trace is not None:
            self._trace.close()

    def _configure(self, messages: list[dict[str, Any]]) -> None:
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
        if not self._serving:  # MXNet accepts an updater only after the server has started
            self._kv._set_updater(self.update)
            self._serving = True
            if env.get("BYTEPS_TRACE_ON"):
                self._trace = trace.Trace(f"server{self._kv.rank}")

    def _forget(self, keys: list[int]) -> None:
        """Free the aggregators of these keys, until the keys are configured again."""
        for key in keys:
            self._aggregators.pop(key, None)

    def _save(self, request: dict[str, Any]) -> None:
        """Prepare the next page of the aggregators' states, or the first page for new keys."""
        if "keys" in request:
            local_coders = self._own_aggregators(request)
            self._saved = archive.Cutter(coder.state() for coder in local_coders)
        pages.full(self._saved.page(PAGE_BYTES)).copyto(self._page)
        self._page.wait_to_read()

    def _load(self, request: dict[str, Any]) -> None:
        """Expect pages with the states of these keys' aggregators."""
        local_keys = [key for key in request["keys"] if key in self._aggregators]
        self._loaded = archive.Joiner({key: self._aggregators[key].layouts() for key in local_keys})

    def _keep_earlier(self, request: dict[str, Any]) -> None:
        for aggregator in self._own_aggregators(request):
            aggregator.keep_earlier()

    def _take_back(self, request: dict[str, Any]) -> None:
        for aggregator in self._own_aggregators(request):
            aggregator.take_back()

    def _own_aggregators(self, request: dict[str, Any]) -> list[MessageCoder]:
        return [self._aggregators[key] for key in request["keys"] if key in self._aggregators]

    def update(self, key: int, received: NDArray, stored: NDArray) -> None:
        """MXNet calls this when every worker has pushed `key`."""
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
            framing = rows.framing_at(0, workers)
            if key in self._aggregators:
                aggregate = self._aggregators[key].aggregate
                aggregate(received, workers, self._threads, framing).copyto(stored)
            else:
                (parts,) = operators.unframe([received], rows, workers)
                if key in self._summed:
                    reply = operators.as_bytes(operators.sum_rows(parts, self._summed[key]))
                else:
                    reply = control_messages.answer(parts)
                operators.frame([reply], rows, 0, workers).copyto(stored)
            stored.wait_to_read()
        except Exception as error:
            self._fail(f"key {key}: {_reason(error)}")

    def _fail(self, why: str) -> None:
        self._lifeline.abandon(why)
        die(f"{self._lifeline.name}: {why}")


def _reason(error: Exception) -> str:
    """The text of an operator's error, without MXNet's additions."""
    reasons = re.findall(r"\]: gluon_gc: (.*)", str(error))
    return reasons[-1] if reasons else str(error)


def _aggregator(message: dict[str, Any]) -> MessageCoder:
    parts = [Part(chunk["size"], chunk["start"]) for chunk in message["chunks"]]
    return MessageCoder(compression.parse(message["params"]), message["dtype"], parts)


def serve() -> None:
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
