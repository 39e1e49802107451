"""A worker of a run with a mailbox, which records what it does. `workers` starts it."""

from __future__ import annotations

import atexit
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gluon_gc.torch as bps
from tests.neutral.mailbox import recording
from tests.neutral.mailbox.recording import Recorder, digest

INPUTS, OUTPUTS, ROWS = 24, 5, 8


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


def optimizer_of(net: torch.nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
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


def parameters_digest(net: torch.nn.Module) -> str:
    """A checksum of a model."""
    return digest({"": {name: p.detach().numpy() for name, p in net.named_parameters()}})


def work(config: dict[str, Any]) -> None:
    """Train until the file "stop" exists, or for the config's "steps"."""
    torch.set_num_threads(1)
    folder, name = Path(config["folder"]), config["name"]
    recording.prepare(config)
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
    state = optimizer.compression_state

    def values() -> dict[str, np.ndarray]:
        return {n: p.detach().numpy().copy() for n, p in state.parameters.items()}

    recorder = Recorder(folder, _file_name(name), state.driver, values)
    optimizer.register_step_pre_hook(recorder.before_update)
    optimizer.register_step_post_hook(recorder.after_update)
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
        anchors=digest({"": {n: x.numpy() for n, x in state.driver.state["anchor"].items()}}),
        stats=optimizer.compression_state.compression_stats(),
    )
    end = config.get("end", "shutdown")
    if end == "exit":
        sys.exit(3)
    if end == "raise":
        raise ValueError("the worker's own error")
    bps.shutdown()
    recorder.finish()


def work_on_shards(config: dict[str, Any]) -> None:
    """Train a model with fully_shard for the config's "steps", and record this shard's anchors."""
    torch.set_num_threads(1)
    bps.init(mailbox=config["url"], worker_name=config["name"], **config.get("settings", {}))
    net = Net()
    fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = optimizer_of(net, config)
    batches = Batches(int(re.sub(r"\D", "", config["name"])) + 1000 * dist.get_rank())
    for _ in range(config["steps"]):
        optimizer.zero_grad()
        loss = batches.loss(net)
        loss.backward()
        bps.report_loss(loss.item())
        optimizer.step()
        time.sleep(config.get("sleep", 0.0))
    anchors = optimizer.compression_state.driver.state["anchor"]
    facts = {
        "anchors": digest({"": {name: array.numpy() for name, array in anchors.items()}}),
        "parameters": digest(
            {"": {n: p.detach().to_local().numpy() for n, p in net.named_parameters()}}
        ),
        "size": bps.size(),
        "counts": optimizer.compression_state.driver.counts,
    }
    file = Path(config["folder"], f"{_file_name(config['name'])}.json")
    bps.shutdown()
    file.write_text(json.dumps(facts))


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
