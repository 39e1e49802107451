"""The programs that benchmark/sites.py starts: workers that train a language model, and helpers.

    python benchmark/sites_worker.py PROGRAM FOLDER [ARGUMENT...]

All programs of a run append to files of the same FOLDER, so that a killed worker leaves its record.
A line of rounds.jsonl says that `steps` local steps of a worker are in the model after a round.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable

import numpy as np
import torch
import torch.distributed as dist
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "example"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "example" / "pytorch"))

from common.source_text import load_text, training_windows, validation_windows
from transformer import Transformer

BATCH, CONTEXT, WIDTH, DEPTH, HEADS = 8, 128, 128, 2, 4  # 0.48 million parameters
_RATE, _WARM_UP = 2e-3, 10  # of AdamW; a worker that starts warms up again
_OUTER = {"lr": 0.7, "momentum": 0.9, "nesterov": True}  # of DiLoCo and torchft
_CHECKPOINT = 5  # steps between two checkpoints of DistributedDataParallel
_WINDOWS = 256  # for validation
_TIMEOUT = timedelta(seconds=10)  # of torchft's collectives
_POLL = 0.2


def append(path: Path, record: dict[str, Any]) -> None:
    """Append a line with a JSON record, and the time, to a file that several processes write."""
    with open(path, "a") as file:
        file.write(json.dumps({**record, "time": time.time()}) + "\n")


def save(folder: Path, done: int, tensors: dict[str, torch.Tensor]) -> None:
    """Save the shared parameters after a round."""
    torch.save({name: tensor.detach() for name, tensor in tensors.items()}, folder / "part.pt")
    (folder / "part.pt").rename(folder / f"anchor-{done}.pt")


def network() -> Transformer:
    """Return the model with its initial weights, the same in all processes."""
    torch.manual_seed(0)
    return Transformer(WIDTH, DEPTH, HEADS, CONTEXT)


def loss_of(model: torch.nn.Module, windows: np.ndarray) -> torch.Tensor:
    """Return the mean loss in nats per byte."""
    data = torch.from_numpy(windows).long()
    return functional.cross_entropy(model(data[:, :-1]).flatten(0, 1), data[:, 1:].flatten())


class Worker:
    """A worker that trains alone. Its methods `connect` and `stepped` differ by library.

    Parameters
    ----------
    args : Namespace
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.folder, self.steps = args, args.folder, 0
        self.name = f"site{args.host}-{os.getpid()}"
        (self.folder / f"pid.{args.host}").write_text(str(os.getpid()))
        self.text = load_text(0, 1)
        self.model = self.net = network()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=_RATE, betas=(0.9, 0.95))
        self.seed = os.getpid()
        self.connect()
        append(self.folder / "starts.jsonl", {"worker": self.name})

    def connect(self) -> None:
        """Join the other workers."""

    def stepped(self) -> None:
        """Called after each step."""

    def train(self) -> None:
        """Train until the process is killed."""
        while not (self.folder / "go").exists():
            time.sleep(_POLL)
        with open(self.folder / f"steps.{self.args.host}", "ab", buffering=0) as made:
            while True:
                self.step()
                made.write(b".")

    def step(self) -> None:
        """Train on one batch. It takes --pace seconds, besides the communication of rounds."""
        begin = time.monotonic()
        windows = training_windows(self.text, BATCH, CONTEXT, [self.seed, self.steps])
        self.steps += 1
        for group in self.optimizer.param_groups:
            group["lr"] = _RATE * min(1.0, self.steps / _WARM_UP)
        self.optimizer.zero_grad()
        loss = loss_of(self.model, windows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        time.sleep(max(0.0, begin + self.args.pace - time.monotonic()))
        self.optimizer.step()
        self.stepped()

    def count(self, done: int, steps: int, worker: str = "") -> None:
        """Record that a round counted the steps of a worker."""
        record = {"round": done, "worker": worker or self.name, "steps": steps}
        append(self.folder / "rounds.jsonl", record)

    def save(self, done: int) -> None:
        """Save the model after a round."""
        save(self.folder, done, dict(self.net.named_parameters()))


class Mailbox(Worker):
    """local_steps through an object store. The program `watch` records the rounds."""

    def connect(self) -> None:
        import gluon_gc.torch as bps

        args = self.args
        bps.init(
            mailbox=args.url,
            min_workers=2,
            grace=args.grace,
            keep=args.keep,
            samples_per_step=BATCH,
            worker_name=f"site{args.host}",
        )
        self.name, self.seed = bps.worker_name(), bps.worker_seed()
        self.optimizer = bps.DistributedOptimizer(
            self.optimizer,
            named_parameters=self.net.named_parameters(),
            algorithm=json.loads(args.algorithm),
            compression_params=json.loads(args.compression),
        )
        self.saved = 0

    def stepped(self) -> None:
        if self.args.host:
            return
        driver = self.optimizer.compression_state.driver
        (lane,) = driver._lanes.values()
        done = lane.participant.round - 1
        if lane.is_idle and done > self.saved:  # then the anchor is that of this round
            save(self.folder, done, driver.state["anchor"])
            self.saved = done


class TorchftDiLoCo(Worker):
    """torchft's DiLoCo over Gloo; each worker is a replica group of its own."""

    def connect(self) -> None:
        from torchft import Manager, ProcessGroupGloo
        from torchft.local_sgd import DiLoCo

        own = socket.gethostname()  # the address
        self.store = dist.TCPStore(own, 0, is_master=True, wait_for_workers=False)
        self.healed, self.done = False, 0
        self.manager = Manager(
            ProcessGroupGloo(_TIMEOUT),
            load_state_dict=self.load,
            state_dict=lambda: {
                "model": self.net.state_dict(),
                "optimizer": self.optimizer.state_dict(),
            },
            min_replica_size=1,
            use_async_quorum=False,
            timeout=_TIMEOUT,
            rank=0,
            world_size=1,
            store_addr=own,
            store_port=self.store.port,
            lighthouse_addr=self.args.url,
            replica_id=f"site{self.args.host}",
            hostname=own,
            init_sync=False,
        )
        outer = torch.optim.SGD(self.net.parameters(), **_OUTER)
        every = self.args.every
        DiLoCo(
            self.manager, [self.net], self.optimizer, outer, every, use_bucketization=True
        ).__enter__()

    def load(self, state: dict[str, Any]) -> None:
        """Continue from another worker's state; the own local steps are lost."""
        self.net.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.healed = True

    def stepped(self) -> None:
        if self.steps % self.args.every:
            return
        done, committed = self.manager.current_step(), self.manager.current_step() > self.done
        if committed and not self.healed:
            self.count(done, self.args.every)
        if committed and self.manager.participating_rank() == 0:
            self.save(done)
        self.done, self.healed = done, False


class Ddp(Worker):
    """DistributedDataParallel under torchrun. All workers go on from the last checkpoint.

    The workers share the folder of the checkpoints, and reading them costs no traffic.
    """

    def connect(self) -> None:
        dist.init_process_group("gloo")
        self.model = torch.nn.parallel.DistributedDataParallel(self.net)
        self.checkpoint = self.folder / "checkpoint"
        if self.checkpoint.exists():
            state = torch.load(self.checkpoint)
            self.steps = state["steps"]
            self.net.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        dist.barrier()  # before the next checkpoint is written

    def stepped(self) -> None:
        if self.steps % _CHECKPOINT or dist.get_rank():
            return
        state = {"model": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**state, "steps": self.steps}, self.folder / "part")
        (self.folder / "part").rename(self.checkpoint)
        done = self.steps // _CHECKPOINT
        for rank in range(dist.get_world_size()):
            self.count(done, _CHECKPOINT, f"site{rank}")
        self.save(done)


def lighthouse(args: argparse.Namespace) -> None:
    """Run torchft's server."""
    from torchft.coordination import LighthouseServer

    wait = int(1000 * args.grace)  # its default, 0.1 s, leaves workers out even if none is slow
    server = LighthouseServer(f"[::]:{args.port}", min_replicas=1, join_timeout_ms=wait)
    while server:
        time.sleep(60)


def bucket(args: argparse.Namespace) -> None:
    """Create the bucket when the store is up."""
    import boto3
    from botocore.exceptions import EndpointConnectionError

    client = boto3.client("s3")
    while True:
        try:
            client.create_bucket(Bucket=args.url.split("/")[2])
            return
        except EndpointConnectionError:
            time.sleep(_POLL)


def watch(args: argparse.Namespace) -> None:
    """Record all rounds of a mailbox."""
    from gluon_gc.mailbox import objects
    from gluon_gc.mailbox.store import Store

    store, done = Store(args.url), 1
    while True:
        name = objects.result_name("difference", done)
        data = store.get(name)
        if data is None:
            time.sleep(_POLL)
            continue
        for each in objects.unpack(name, data).header["counted"]:
            counted = {"worker": each["worker"], "steps": round(each["weight"] / BATCH)}
            append(args.folder / "rounds.jsonl", {"round": done, **counted, "bytes": each["bytes"]})
        done += 1


def store(args: argparse.Namespace) -> None:
    """Print the median seconds of each operation of a store, with a payload of --bytes."""
    from gluon_gc.mailbox.store import Store

    box, payload = Store(args.url), os.urandom(args.bytes)
    names = [f"probe/{i:08d}" for i in range(20)]
    operations: dict[str, Callable[[str], object]] = {
        "put": lambda name: box.put(name, payload),
        "get": box.get,
        "list": lambda name: box.list("probe/"),
    }
    found = {}
    for operation, call in operations.items():
        seconds: list[float] = []
        for name in names:
            begin = time.perf_counter()
            call(name)
            seconds.append(time.perf_counter() - begin)
        found[operation] = statistics.median(seconds)
    box.delete(names)
    print(json.dumps(found))


@torch.no_grad()
def evaluate(args: argparse.Namespace) -> None:
    """Print the validation loss of all saved parameters by round, in nats per byte."""
    windows = validation_windows(load_text(0, 1), _WINDOWS, CONTEXT, 0, 1)
    model, losses = network(), {}
    for file in args.folder.glob("anchor-*.pt"):
        model.load_state_dict(torch.load(file))
        losses[int(file.stem.partition("-")[2])] = loss_of(model, windows).item()
    print(json.dumps(losses))


WORKERS = {"alone": Worker, "mailbox": Mailbox, "torchft": TorchftDiLoCo, "ddp": Ddp}
HELPERS = {f.__name__: f for f in (lighthouse, bucket, watch, store, evaluate)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", choices=[*WORKERS, *HELPERS])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url", default="", help="of the store or of torchft's lighthouse")
    parser.add_argument("--port", type=int, default=0, help="of torchft's lighthouse")
    parser.add_argument("--host", type=int, default=0)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds of a step")
    parser.add_argument("--every", type=int, default=1, help="torchft's sync_every")
    parser.add_argument("--algorithm", default="{}")
    parser.add_argument("--compression", default="{}")
    parser.add_argument("--grace", type=float, default=2.0)
    parser.add_argument("--keep", type=int, default=10, help="rounds between saved states")
    parser.add_argument("--bytes", type=int, default=0, help="of a payload")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.program in HELPERS:
        HELPERS[args.program](args)
    else:
        WORKERS[args.program](args).train()


if __name__ == "__main__":
    main()
