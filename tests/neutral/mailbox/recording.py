"""Records what a worker of a run with a mailbox does, in files of one folder. `runs` reads them.

The names of a worker's files begin with its name:

- NAME.log: all messages of gluon_gc;
- NAME.steps: a byte for each step;
- NAME.rounds: for each round after which it could look, the digest of its shared state;
- NAME.npz: at its end, what it has changed, and where that is;
- NAME.json: at its end, facts for tests.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any, Callable, Dict

import numpy as np

from gluon_gc import mailbox
from gluon_gc.log import logger
from gluon_gc.mailbox.driver import MailboxDriver
from gluon_gc.mailbox.signals import Signals
from gluon_gc.mailbox.store import Store

ARCHIVE = "archive/"  # before the names of removed objects
Arrays = Dict[str, np.ndarray]


def prepare(config: dict[str, Any]) -> None:
    """Record the messages of this worker, and let it keep what it removes from the store."""
    logger.setLevel(logging.DEBUG)
    logger.addHandler(Points(Path(config["folder"]), config))
    _archive_removed_objects()


class Points(logging.Handler):
    """Records all messages, and kills this worker at the one with the pattern "kill", if any."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        super().__init__(logging.DEBUG)
        self._folder, self._name = folder, config["name"]
        self._kill = config.get("kill")

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        with open(self._folder / f"{self._name}.log", "a") as log:
            log.write(f"{message}\n")
        if self._kill and re.search(self._kill, message):
            os.kill(os.getpid(), signal.SIGKILL)


class Recorder:
    """What a worker does, for its files. `values` returns copies of its parameters by name."""

    def __init__(
        self, folder: Path, name: str, driver: MailboxDriver, values: Callable[[], Arrays]
    ) -> None:
        self._begin, self._driver, self._values = folder / name, driver, values
        self._made: Arrays = defaultdict(float)
        self._signals = Signals()
        self._applied: dict[str, int] = {}
        self._before: Arrays = {}
        self.facts: dict[str, Any] = {
            "worker": mailbox.worker_name(),
            "seed": mailbox.worker_seed(),
            "updates": 0,
        }

    def before_update(self, *_: Any) -> None:
        self._signals.hold()  # until the update is recorded
        self._before = self._values()

    def after_update(self, *_: Any) -> None:
        self.facts["updates"] += 1
        for name, values in self._values().items():
            self._made[name] += (self._before[name] - values).astype(np.float64)
        self._signals.release()

    def note_step(self) -> None:
        with open(f"{self._begin}.steps", "a") as steps:
            steps.write(".")

    def note_rounds(self) -> None:
        """Record the shared state, unless a round is under way, whose average may be missing."""
        for kind, lane in self._driver._lanes.items():
            last = lane.participant.round - 1
            if lane.is_idle and self._applied.get(kind) != last:
                self._applied[kind] = last
                line = {"kind": kind, "round": last, "digest": self._digest(kind)}
                with open(f"{self._begin}.rounds", "a") as rounds:
                    rounds.write(json.dumps(line) + "\n")

    def _digest(self, kind: str) -> str:
        state = self._driver._state_of(kind)
        return digest({shared: dict(arrays) for shared, arrays in state.items()})

    def finish(self) -> None:
        """Record what this worker has changed, and where it is after it has left."""
        arrays = {f"made/{name}": values for name, values in self._made.items()}
        arrays.update({f"parameter/{n}": values for n, values in self._values().items()})
        for lane in self._driver._lanes.values():
            for name, values in lane.participant.packing.residuals().items():
                arrays[f"residual/{name}"] = values
        np.savez(f"{self._begin}.npz", **arrays)
        Path(f"{self._begin}.json").write_text(json.dumps(self.facts))


def digest(state: dict[str, dict[str, np.ndarray]]) -> str:
    """A checksum of arrays by kind and name."""
    found = hashlib.md5()
    for kind in sorted(state):
        for name in sorted(state[kind]):
            found.update(f"{kind} {name}".encode() + state[kind][name].tobytes())
    return found.hexdigest()


def _archive_removed_objects() -> None:
    """Let this worker copy each object before it removes it, for the replay of all rounds."""
    delete = Store.delete

    def copy_and_delete(store: Store, names: Any) -> None:
        names = [*names]
        for name in names:
            data = store.get(name)
            if data is not None and not name.startswith("probe"):
                store.put(ARCHIVE + name, data)
        delete(store, names)

    Store.delete = copy_and_delete
