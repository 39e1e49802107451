"""python -m gluon_gc plan: predicts how much compression would speed up training."""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import replace
from typing import Any

from .. import env
from ..auto.choice import Link, Measured, Topology
from ..auto.prediction import RANKS, Job, codecs, methods, predictions
from ..launch.cli import supervisor
from ..launch.cli.output import print_line
from ..launch.cli.tasks import local_tasks
from ..launch.rank import launchers
from .front_end import planning
from .model import Shapes, matrices, shapes_of
from .report import Report


def run(options: argparse.Namespace) -> int:
    """Predict and print, or start the workers that do so. Return the exit code.

    ValueError: the arguments name no model, or nothing can be measured.
    """
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
        return _run_here(options)
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
        8 * (options.rate or job.machine_rate),
        options.rate is not None,
        8 * job.machine_rate,
        options.step_seconds,
        found.sharing,
        job.crowding,
        env.cores(),
        predictions(several, shapes, job),
    )
    print_line(json.dumps(report.json()) if options.json else "\n".join(report.lines()))
    if options.plot:
        report.draw(options.plot)
    return 0


def _run_here(options: argparse.Namespace) -> int:
    """Run this command in processes of this machine, which measure over its loopback interface."""
    processes = max(2, options.per_machine, min(options.workers, env.cores()))
    command = [sys.executable, "-m", "gluon_gc", *options.arguments]
    tasks = [replace(task, bare=True) for task in local_tasks(command, processes, servers=0)]
    return supervisor.run(lambda _: tasks)


def _job(options: argparse.Namespace, found: Any) -> Job:
    """Return the job of the options; without --rate, the one that has measured."""
    measured, topology, crowding = found.measured, found.topology, found.crowding
    if options.rate is not None:
        if options.per_machine == 1:
            crowding = 1.0
        local_size = options.per_machine
        topology = Topology(options.workers // local_size, 0, local_size)
        more = topology.passes / found.topology.passes  # messages that a worker sends
        own_rate = options.rate / local_size  # a machine's workers share its link
        link = Link(
            *(
                cost._replace(message=cost.message * more, rate=min(cost.rate, own_rate))
                for cost in measured.link
            )
        )
        inner = measured.link if local_size > 1 else None
        measured = Measured(link, measured.kernels, inner)
    return Job(
        topology,
        measured,
        found.products,
        crowding,
        found.copying,
        options.step_seconds,
        processors_busy=not found.gpu,
    )
