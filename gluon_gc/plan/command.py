"""python -m gluon_gc plan: predicts how much compression would speed up training."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from typing import Any

from .. import env
from ..auto.choice import Link, Topology
from ..auto.prediction import OPTIMIZERS, RANKS, Job, codecs, methods, predictions
from ..launch.rank import launchers
from .front_end import planning
from .model import Shapes, matrices, shapes_of
from .quantities import number, rate, seconds
from .report import Report

_DESCRIPTION = """\
Predicts the speed-up of each compressor and algorithm over DistributedDataParallel. Start it like
training, with torchrun or another launcher: it measures the links and the compressors for some
seconds. On one machine, --rate and --workers describe the network."""


def add(commands: Any) -> None:
    """Add the command to the subparsers of `python -m gluon_gc`."""
    parser = commands.add_parser(
        "plan",
        help="predict how much compression would speed up training on this network",
        description=_DESCRIPTION,
        allow_abbrev=False,
    )
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--model", help="torchvision:NAME, or a file: .safetensors, .pt or .pth")
    model.add_argument("--parameters", type=number, help="their number, such as 124M")
    parser.add_argument("--rate", type=rate, help="of each machine's link, such as 100Mbit")
    parser.add_argument("--workers", type=int, help="of the job, with --rate")
    parser.add_argument("--per-machine", type=int, default=1, help="workers, with --rate")
    parser.add_argument(
        "--step-seconds", type=seconds, default=0.0, help="of the script's step on one worker"
    )
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd", help="default: sgd")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", metavar="FILE", help="draw the steps too (matplotlib)")
    parser.set_defaults(run=partial(_checked, parser))


def _checked(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    try:
        return _run(options)
    except ValueError as error:
        parser.error(str(error))


def _run(options: argparse.Namespace) -> int:
    _check(options)
    worker = launchers.of_bpslaunch() or launchers.find()
    launched = worker is not None and worker.size > 1
    if not launched and options.rate is None:
        raise ValueError(
            "nothing has started several workers, so that there is no link to measure: start it "
            "like training, with torchrun or another launcher, or give --rate and --workers"
        )
    torch = planning()
    shapes: Shapes = {}
    if not launched or worker.rank == 0:
        shapes = shapes_of(options.model) if options.model else matrices(options.parameters)
    if not launched:
        return _started_here(options)
    several = methods(options.optimizer)
    found = torch.measure(codecs(several), RANKS)
    if found is None:
        return 0
    job = _job(options, found)
    report = Report(
        sum(map(math.prod, shapes.values())),
        len(shapes),
        options.workers or found.workers,
        job.topology.machines,
        job.measured,
        options.rate is not None,
        options.step_seconds,
        found.sharing,
        found.crowding,
        env.cores(),
        predictions(several, shapes, job),
    )
    print(json.dumps(report.json()) if options.json else "\n".join(report.lines()), flush=True)
    if options.plot:
        report.draw(options.plot)
    return 0


def _check(options: argparse.Namespace) -> None:
    """Raise ValueError if options contradict each other."""
    workers, per_machine = options.workers, options.per_machine
    if (options.rate is None) != (workers is None):
        raise ValueError("--rate and --workers belong together: give both, or neither")
    if options.rate is None and per_machine != 1:
        raise ValueError("--per-machine needs --rate and --workers; else the launcher says it")
    if workers is not None and (per_machine < 1 or workers % per_machine or workers <= per_machine):
        raise ValueError(
            "--workers must be a multiple of --per-machine, for at least 2 machines, got "
            f"{workers} and {per_machine}"
        )
    if options.plot and find_spec("matplotlib") is None:
        raise ValueError(f"--plot {options.plot} needs matplotlib, which is not installed")


def _started_here(options: argparse.Namespace) -> int:
    """Run this command in processes of this machine, which measure over its loopback interface."""
    processes = max(2, options.per_machine, min(options.workers, env.cores()))
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    words = [sys.executable, *launcher, "-m", "gluon_gc", *options.arguments]
    return subprocess.run(words, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode


def _job(options: argparse.Namespace, found: Any) -> Job:
    """Return the job of the options; without --rate, the one that has measured."""
    measured, topology, inside = found.measured, found.topology, None
    if options.rate is not None:
        topology = Topology(options.workers // options.per_machine, servers=0)
        inner = Topology(options.per_machine, servers=0)
        inside = (measured, inner) if options.per_machine > 1 else None
        more = topology.passes / found.topology.passes  # messages that a worker sends
        link = Link(
            *(
                cost._replace(message=cost.message * more, rate=min(cost.rate, options.rate))
                for cost in measured.link
            )
        )
        measured = type(measured)(link, measured.kernels)
    return Job(
        topology,
        measured,
        found.products,
        found.crowding,
        options.step_seconds,
        processors_busy=not found.gpu,
        inside=inside,
    )
