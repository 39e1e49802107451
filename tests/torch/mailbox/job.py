"""A worker of a run with a mailbox, which records what it does. `runs` starts it.

It writes in the folder of its config, in files that begin with its name:

- NAME.log: all messages of gluon_gc;
- NAME.steps: a byte for each step;
- NAME.rounds: for each round after which it could look, the digest of its shared state;
- NAME.npz: at its end, what it has changed, and where that is;
- NAME.json: at its end, facts for tests.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import os
import re
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Dict

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gluon_gc.torch as bps
from gluon_gc.log import logger
from gluon_gc.mailbox.store import Store

INPUTS, OUTPUTS, ROWS = 24, 5, 8
ARCHIVE = "archive/"  # before the names of removed objects


class Net(torch.nn.Module):
    """A linear model of three matrices, which may each have their own compressor."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.onebit = torch.nn.Linear(INPUTS, 40)
        self.topk = torch.nn.Linear(40, 30)
        self.blocks = torch.nn.Linear(30, 20)
        self.plain = torch.nn.Linear(20, OUTPUTS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.plain(self.blocks(self.topk(self.onebit(x))))


def optimizer_of(net: torch.nn.Module, config: Dict[str, Any]) -> torch.optim.Optimizer:
    kind = getattr(torch.optim, config.get("optimizer", "SGD"))
    return bps.DistributedOptimizer(
        kind(net.parameters(), config.get("lr", 0.01)),
        net.named_parameters(),
        compression_params=config.get("compression_params"),
        algorithm=config["algorithm"],
        overrides=config.get("overrides"),
    )


class Batches:
    """Made data: each worker has its own seed, and all workers one function to learn."""

    def __init__(self, seed: int) -> None:
        self._random = torch.Generator().manual_seed(seed)
        self._weight = torch.randn(INPUTS, OUTPUTS, generator=torch.Generator().manual_seed(99))

    def loss(self, model: torch.nn.Module) -> torch.Tensor:
        x = torch.randn(ROWS, INPUTS, generator=self._random)
        return torch.nn.functional.l1_loss(model(x), x @ self._weight)


class Points(logging.Handler):
    """Records all messages, and kills or holds this worker at one of them.

    "kill": a pattern. "hold": a pattern; the worker waits there until the file "released" exists.
    """

    def __init__(self, folder: Path, config: Dict[str, Any]) -> None:
        super().__init__(logging.DEBUG)
        self._folder, self._name = folder, config["name"]
        self._kill, self._hold = config.get("kill"), config.get("hold")

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        with open(self._folder / f"{self._name}.log", "a") as log:
            log.write(f"{message}\n")
        if self._kill and re.search(self._kill, message):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._hold and re.search(self._hold, message):
            (self._folder / f"{self._name}.held").touch()
            while not (self._folder / "released").exists():
                time.sleep(0.01)


class Recorder:
    """What a worker does, for its files."""

    def __init__(self, folder: Path, name: str, optimizer: torch.optim.Optimizer) -> None:
        self._begin = folder / name
        self._driver = optimizer.compression_state.driver
        self._parameters = optimizer.compression_state.parameters
        self._made: Dict[str, np.ndarray] = defaultdict(float)
        self._applied: Dict[str, int] = {}
        self._before: Dict[str, np.ndarray] = {}
        self.facts: Dict[str, Any] = {"worker": bps.worker_name(), "seed": bps.worker_seed()}
        optimizer.register_step_pre_hook(self._before_update)
        optimizer.register_step_post_hook(self._after_update)

    @property
    def anchors(self) -> Dict[str, torch.Tensor]:
        return self._driver.state["anchor"]

    def _values(self) -> Dict[str, np.ndarray]:
        return {name: p.detach().numpy().copy() for name, p in self._parameters.items()}

    def _before_update(self, *_: Any) -> None:
        self._before = self._values()

    def _after_update(self, *_: Any) -> None:
        for name, values in self._values().items():
            self._made[name] += (self._before[name] - values).astype(np.float64)

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


def digest(state: Dict[str, Dict[str, np.ndarray]]) -> str:
    """A checksum of arrays by kind and name."""
    found = hashlib.md5()
    for kind in sorted(state):
        for name in sorted(state[kind]):
            found.update(f"{kind} {name}".encode() + state[kind][name].tobytes())
    return found.hexdigest()


def parameters_digest(net: torch.nn.Module) -> str:
    """A checksum of a model."""
    return digest({"": {name: p.detach().numpy() for name, p in net.named_parameters()}})


def archive_removed_objects() -> None:
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


def work(config: Dict[str, Any]) -> None:
    """Train until the file "stop" exists, or for the config's "steps"."""
    torch.set_num_threads(1)
    folder, name = Path(config["folder"]), config["name"]
    logger.setLevel(logging.DEBUG)
    logger.addHandler(Points(folder, config))
    archive_removed_objects()
    recorders = []
    atexit.register(lambda: [recorder.finish() for recorder in recorders])  # after it has left
    bps.init(mailbox=config["url"], worker_name=name, **config.get("settings", {}))
    net = Net(config.get("seed", 0))
    optimizer = optimizer_of(net, config)
    for lane in optimizer.compression_state.driver._lanes.values():
        if "round_grace" in config:
            settings = lane.participant.settings
            lane.participant.settings = settings.__class__(
                **{**vars(settings), "grace": config["round_grace"]}
            )
    recorder = Recorder(folder, _file_name(name), optimizer)
    recorders.append(recorder)
    recorder.note_rounds()
    model = DistributedDataParallel(net) if dist.get_world_size() > 1 else net
    batches = Batches(config.get("data", int(re.sub(r"\D", "", name))) + 1000 * dist.get_rank())
    for _ in range(config.get("steps", 10**9)):
        if _stops(folder / "stop"):
            break
        optimizer.zero_grad()
        loss = batches.loss(model)
        (loss * float("nan") if (folder / f"{name}.nan").exists() else loss).backward()
        bps.report_loss(loss.item())
        optimizer.step()
        recorder.note_step()
        recorder.note_rounds()
        time.sleep(config.get("sleep", 0.002))
    recorder.facts.update(
        size=bps.size(),
        digest=parameters_digest(net),
        anchors=digest({"": {n: x.numpy() for n, x in recorder.anchors.items()}}),
        stats=optimizer.compression_state.compression_stats(),
    )
    end = config.get("end", "shutdown")
    if end == "exit":
        sys.exit(3)
    if end == "raise":
        raise ValueError("the worker's own error")
    bps.shutdown()
    recorder.finish()


def _file_name(name: str) -> str:
    """Each worker of a site has its own files."""
    return f"{name}.{dist.get_rank()}" if dist.get_rank() else name


def _stops(file: Path) -> bool:
    """Whether the file exists; the first worker of a site decides for all."""
    answer = [file.exists()]
    if dist.get_world_size() > 1:
        dist.broadcast_object_list(answer)
    return answer[0]


if __name__ == "__main__":
    work(json.loads(sys.argv[1]))
