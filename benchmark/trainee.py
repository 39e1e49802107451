"""A small training script that soak.py and the tests' `kill_matrix` disturb.

Like the examples with --resume auto, it resumes from the last complete checkpoint in FOLDER.
Worker r writes the number of steps done to FOLDER/steps.r, and finally the checksum of its weights
to FOLDER/sum.r.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import gluon_gc as bps

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "example"))

from common.checkpoint import Checkpoints
from common.checksum import parameter_checksum
from common.last_checkpoint import last_checkpoint

_HELD_STEP = 3  # the step, counted from 0, in which the phase "step" waits
_PHASES = ("broadcast", "step", "saving", "shutdown")


class Gate:
    """Holds a worker in a given phase of its first start, so that it can be killed there.

    Worker r creates FOLDER/at.r when it reaches the phase. One worker waits there for FOLDER/go.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._open = os.environ.get("GLUON_GC_RESTARTS", "0") != "0"

    def __call__(self, phase: str) -> None:
        if self._open or phase != self._args.phase:
            return
        self._open = True
        (self._args.folder / f"at.{bps.rank()}").touch()
        while bps.rank() == self._args.held and not (self._args.folder / "go").exists():
            time.sleep(0.02)

    def before_states_are_in_place(self) -> None:
        """Gate the moment when the states are written but still have their temporary name."""
        replace = os.replace

        def gated(old: str, new: str) -> None:
            if str(new).endswith(f".states.{bps.rank()}"):
                self("saving")
            replace(old, new)

        os.replace = gated


def write(file: Path, text: str) -> None:
    """Write a file atomically: readers see it complete or not at all."""
    part = file.with_name(f"{file.name}.part")
    part.write_text(text)
    part.rename(file)


def step(net: gluon.Block, trainer: gluon.Trainer, number: int, gate: Gate) -> None:
    """Train one step on data that depend only on the step and the worker."""
    random = np.random.default_rng((number, bps.rank()))
    with autograd.record():
        loss = (net(mx.nd.array(random.standard_normal((8, 100)))) ** 2).mean()
    loss.backward()
    if number == _HELD_STEP:
        gate("step")
    trainer.step(1)


def _way(args: argparse.Namespace) -> dict[str, Any]:
    """Return the trainer's arguments for the averaged arrays and their compression."""
    onebit = {"compressor": "onebit", "ef": "vanilla"}
    if args.local_steps is None:
        return {"compression_params": {**onebit, "momentum": "nesterov"}}
    algorithm = {"name": "local_steps", "every": args.local_steps}
    return {"compression_params": {**onebit, "scaling": True}, "algorithm": algorithm}


def last_step(args: argparse.Namespace) -> int:
    """Return the number of steps to do; the file FOLDER/steps overrides the argument."""
    file = args.folder / "steps"
    return int(file.read_text()) if file.exists() else args.steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--period", type=int, default=2, help="steps between checkpoints")
    parser.add_argument(
        "--local-steps", type=int, metavar="H", help="exchange every H steps, not in every step"
    )
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step")
    parser.add_argument(
        "--phase", choices=_PHASES, help="where to hold a worker, at the first start"
    )
    parser.add_argument("--held", type=int, help="the rank of the worker to hold")
    args = parser.parse_args()
    gate = Gate(args)
    gate.before_states_are_in_place()
    bps.init()
    rank = bps.rank()
    mx.random.seed(1)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(40, in_units=100, activation="relu"), gluon.nn.Dense(10, in_units=40))
    net.initialize(mx.init.Xavier())
    point = last_checkpoint(str(args.folder), "net", args.steps)
    if point.params:
        net.load_parameters(point.params)
    gate("broadcast")
    bps.broadcast_parameters(net.collect_params())
    trainer = bps.DistributedTrainer(
        net.collect_params(), "sgd", {"learning_rate": 0.05, "momentum": 0.9}, **_way(args)
    )
    if point.states:
        trainer.load_states(point.trainer_states(rank))
    checkpoints = Checkpoints(str(args.folder), "net", args.period, rank)
    done = point.epoch
    while done < last_step(args):
        step(net, trainer, done, gate)
        done += 1
        checkpoints.save(net, trainer, done, last=done == last_step(args))
        write(args.folder / f"steps.{rank}", str(done))
        time.sleep(args.pause)
    write(args.folder / f"sum.{rank}", parameter_checksum(net))
    gate("shutdown")
    bps.shutdown()


if __name__ == "__main__":
    main()
