"""Compares methods that train the language model: validation loss against seconds, and bytes.

It runs example/pytorch/language_model.py. Each worker has its own network namespace. With each
method, the model is trained from the first step to the last over links of each rate. Seconds are
those of worker 0's training steps with their exchanges; evaluations do not count. The loss does not
depend on the rate. So further seeds, which only show the range of the losses, are trained over
links without a limit. It needs root, iproute2, and PyTorch in the environment of --torch-python;
torchft's row needs torchft 0.2.0 there.

    python benchmark/language_model.py [--workers N] [--rates 100M,20M] [--only REGEX] [--finished]
        [--csv FILE] [--plot FILE]

The folder --results has a file for each finished run. A run that is there, with the same settings,
is not repeated; one that was interrupted starts again. With --finished, nothing is trained: the
table and the picture show the runs that are there. Workers share this machine's processors, so that
their computing takes longer than on machines of their own.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
import signal
import statistics
import sys
from itertools import accumulate
from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

from curves import Curve, draw
from network import Network, rates
from processes import HERE, Processes, read_line
from table import print_row, write_csv

sys.path.insert(0, str(HERE.parent / "example"))

from common.log import read_log  # noqa: E402

BASELINE = "DDP"
EXAMPLE = HERE.parent / "example" / "pytorch" / "language_model.py"
PEER = HERE / "language_model_worker.py"
ONEBIT = "--compressor onebit --onebit-scaling --ef vanilla"
SPARSE_LOCO = "--compressor blocktopk --value-bits 2 --ef vanilla --ef-decay 0.95"


class Method(NamedTuple):
    """A method of training.

    Attributes
    ----------
    arguments : str
        Arguments of the example.
    peer : str
        A key of PEERS in `script`, or "": the example itself.
    script : Path
        The worker of the peer.
    """

    arguments: str = ""
    peer: str = ""
    script: Path = PEER


def local_steps(every: int, more: str) -> Method:
    """Return local steps with further arguments."""
    return Method(f"--algorithm local_steps --every {every} {more}")


AVERAGING = "--outer-lr 1 --outer-momentum 0"
_MOMENTUM = "--outer-lr 0.7 --outer-momentum 0.5"
_ZERO_ONE = "--algorithm zero_one_adam --var-update-scaler 4"
METHODS: dict[str, Method] = {
    BASELINE: Method(),
    "DDP fp16": Method(peer="fp16"),
    "DDP PowerSGD 4": Method(peer="powersgd"),
    "torchft DiLoCo 20": Method("--every 20", peer="torchft"),
    "onebit": Method(ONEBIT),
    "topk 0.01": Method("--compressor topk --k 0.01 --ef vanilla"),
    "blockwise 4 bits": Method("--compressor blockwise --blockwise-hadamard true --ef vanilla"),
    "onebit_adam": Method(f"--algorithm onebit_adam --freeze-step 60 {ONEBIT}"),
    "zero_one_adam": Method(f"{_ZERO_ONE} --var-freeze-step 60 {ONEBIT}"),
    "zero_one_adam, local steps": Method(
        f"{_ZERO_ONE} --var-freeze-step 30 --local-step-scaler 60 --local-step-clipper 4 {ONEBIT}"
    ),
    "powersgd 4": Method("--algorithm powersgd --rank 4 --start 10"),
    "powersgd 4, fp16": Method("--algorithm powersgd --rank 4 --start 10 --fp16-pushpull"),
    "local_steps 20, outer momentum 0.9": local_steps(20, "--outer-momentum 0.9"),
    "local_steps 5, averages, onebit": local_steps(5, f"{AVERAGING} {ONEBIT}"),
    "local_steps 10, averages, onebit": local_steps(10, f"{AVERAGING} {ONEBIT}"),
    "local_steps 30, onebit": local_steps(30, f"{_MOMENTUM} {ONEBIT}"),
    "local_steps 30, onebit, overlap": local_steps(
        30, f"{_MOMENTUM} {ONEBIT} --fragments 3 --overlap 5 --mix 0.5"
    ),
    "SparseLoCo 30": local_steps(30, f"{SPARSE_LOCO} {AVERAGING}"),
}
PEERS = (BASELINE, "torchft")
"""The names of methods of other libraries begin with one of these."""


PICTURE = "^(DDP|blockwise|zero_one_adam, local|local_steps 5|SparseLoCo)"
"""The methods of the README's picture."""
NEAR = 0.01
"""A method has reached DDP's last loss when its loss is at most this many nats above it."""


class Run(NamedTuple):
    """A training run.

    Attributes
    ----------
    name : str
        The method's.
    method : Method
    seed : int
    rate : float
        The rate of the links in bits per second.
    """

    name: str
    method: Method
    seed: int
    rate: float

    def __str__(self) -> str:
        return f"{self.name}, {megabits(self.rate)}, seed {self.seed}"


Found = Mapping[str, Any]
"""A finished run: its settings, the records of its log, and the bytes that a worker had sent."""


def megabits(rate: float) -> str:
    """Return a rate with its unit."""
    return "no limit" if math.isinf(rate) else f"{rate / 1e6:g} Mbit/s"


def planned(methods: Mapping[str, Method], arguments: argparse.Namespace) -> list[Run]:
    """Return all runs, in their order: seed 0 at each rate, then the other seeds."""
    seeds = [(0, rate) for rate in arguments.rates]
    seeds += [(seed, math.inf) for seed in range(1, arguments.seeds)]
    return [Run(name, methods[name], *each) for each in seeds for name in methods]


def _log(run: Run, arguments: argparse.Namespace) -> Path:
    stem = re.sub(r"\W+", "-", run.name)
    return Path(arguments.results) / f"{stem}-{run.seed}-{run.rate / 1e6:g}M.jsonl"


def _words(run: Run, arguments: argparse.Namespace) -> list[str]:
    method = run.method
    script = [str(method.script), method.peer] if method.peer else [str(EXAMPLE)]
    numbers = {"steps": arguments.steps, "eval-every": arguments.eval_every, "seed": run.seed}
    options = [f"--{name}={number}" for name, number in {**numbers, "sample": 0}.items()]
    return [*script, *options, *shlex.split(f"{arguments.training} {method.arguments}")]


def _settings(run: Run, arguments: argparse.Namespace) -> dict[str, Any]:
    words = _words(run, arguments)[1:]
    return {"words": words, "workers": arguments.workers, "rate": run.rate}


def finished(run: Run, arguments: argparse.Namespace) -> Found | None:
    """Return a run with the same settings that is in --results, or None."""
    result = _log(run, arguments).with_suffix(".json")
    found = json.loads(result.read_text()) if result.exists() else {"settings": None}
    return found if found["settings"] == _settings(run, arguments) else None


def train(run: Run, arguments: argparse.Namespace) -> None:
    """Train, and write the result."""
    log, words = _log(run, arguments), _words(run, arguments)
    log.parent.mkdir(parents=True, exist_ok=True)
    logging, steps = ["--logging-file", str(log.resolve())], arguments.steps
    with Network(arguments.workers, run.rate) as network:
        with Processes(network, arguments.timeout, arguments.torch_python) as processes:
            started = processes.start_workers(
                "torch", arguments.workers, 0, lambda _: [*words, *logging]
            )
            sent = []
            begins = range(arguments.eval_every, steps + arguments.eval_every, arguments.eval_every)
            lines = [f"step {min(step, steps)} of" for step in begins]
            for line in ("training", *lines):
                read_line(started[0], line)
                sent.append(statistics.mean(link.sent for link in network.traffic().values()))
            for worker in started:
                worker.communicate()
                if worker.returncode:
                    raise RuntimeError(f"a worker ended with {worker.returncode}")
    after = [count - sent[0] for count in sent[1:]]
    records = read_log(str(log))
    found = {"settings": _settings(run, arguments), "records": records, "sent_bytes": after}
    whole = log.with_suffix(".new")
    whole.write_text(json.dumps(found))
    whole.replace(log.with_suffix(".json"))  # at once, also if this process is killed


def results(methods: Mapping[str, Method], arguments: argparse.Namespace) -> dict[Run, Found]:
    """Make the runs that are not finished, except with --finished. Return all that are finished.

    A run that fails is reported, and left out.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    runs = planned(methods, arguments)
    for run in runs:
        if arguments.finished or finished(run, arguments):
            continue
        print(f"{run} ...", file=sys.stderr, flush=True)
        try:
            train(run, arguments)
        except PermissionError as error:
            sys.exit(str(error))
        except (RuntimeError, TimeoutError) as error:
            print(f"{run}: {error}", file=sys.stderr)
    found = {run: finished(run, arguments) for run in runs}
    there = {run: each for run, each in found.items() if each is not None}
    if not there:
        sys.exit(f"--results {arguments.results} has no finished run")
    return there


def matching(methods: Mapping[str, Method], only: str) -> dict[str, Method]:
    """Return the methods whose name the expression --only matches; exits if there is none."""
    names = [name for name in methods if re.search(only, name)]
    if not names:
        sys.exit(f"--only {only} matches no method of: {'; '.join(methods)}")
    return {name: methods[name] for name in names}


def by_method(there: Mapping[Run, Found]) -> dict[str, dict[Run, Found]]:
    """Group runs by the name of their method."""
    grouped: dict[str, dict[Run, Found]] = {}
    for run, found in there.items():
        grouped.setdefault(run.name, {})[run] = found
    return grouped


def last_loss(found: Found) -> float:
    """Return a run's last validation loss."""
    return found["records"][-1]["validation_loss"]


def seconds_per_step(found: Found) -> float:
    """Return the mean seconds of a run's steps."""
    records = found["records"]
    return sum(record["seconds"] for record in records) / records[-1]["step"]


def timed(own: Mapping[Run, Found], rate: float) -> Found | None:
    """Return a method's run with seed 0 at a rate, or None."""
    return own.get(next(iter(own))._replace(seed=0, rate=rate))


def curve(name: str, found: Found) -> Curve:
    """Return the loss of a method's run against seconds."""
    records = found["records"]
    return Curve(
        name,
        not name.startswith(PEERS),
        list(accumulate(record["seconds"] for record in records)),
        [record["validation_loss"] for record in records],
    )


def reached(curve: Curve, target: float) -> str:
    """Return when a method has first reached a loss, or how far above it stays."""
    for seconds, loss in zip(curve.seconds, curve.losses):
        if loss <= target + NEAR:
            return f"{seconds:.1f}"
    return f"not reached, {curve.losses[-1] - target:.3f} nats above"


def rows(
    there: Mapping[Run, Found], baseline: Mapping[int, float], rates: Sequence[float]
) -> Iterator[dict[str, object]]:
    """Yield the table's rows, one for each method. `baseline` has DDP's last loss by seed."""
    for name, own in by_method(there).items():
        losses = {run.seed: last_loss(found) for run, found in own.items()}
        differences = [losses[seed] - baseline[seed] for seed in losses.keys() & baseline]
        first = next(iter(own.values()))
        row: dict[str, object] = {
            "method": name,
            "seeds": len(losses),
            "loss": f"{statistics.mean(losses.values()):.4f}",
            "range of seeds": f"{max(losses.values()) - min(losses.values()):.4f}",
            f"- {BASELINE}": f"{statistics.mean(differences):+.4f}" if differences else "",
            "kB per step": f"{first['sent_bytes'][-1] / first['records'][-1]['step'] / 1e3:.1f}",
        }
        for rate in rates:
            found = timed(own, rate)
            row[f"s per step, {megabits(rate)}"] = f"{seconds_per_step(found):.4f}" if found else ""
            row[f"s until {BASELINE}'s loss + {NEAR}, {megabits(rate)}"] = (
                reached(curve(name, found), baseline[0]) if found and 0 in baseline else ""
            )
        yield row


def show(table: Sequence[Mapping[str, object]], path: str | None) -> None:
    """Print the table, and write it as CSV if there is a path."""
    for number, row in enumerate(table):
        print_row(row, first=number == 0)
    if path:
        write_csv(table, path)


def parse_arguments(description: str, **defaults: Any) -> argparse.Namespace:
    """Parse the command line. `defaults` replace those of some options."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rates", type=rates, default="100M,20M", help="of the links, bit/s")
    parser.add_argument("--steps", type=int, default=300, help="steps of each training run")
    parser.add_argument(
        "--eval-every", type=int, default=30, help="steps between evaluations, a multiple of H"
    )
    parser.add_argument("--seeds", type=int, default=1, help="the first one is timed")
    parser.add_argument(
        "--training",
        default="--width 256 --depth 4 --heads 4 --context 128 --batch-size 4 --lr 1e-3",
        help="arguments of example/pytorch/language_model.py",
    )
    parser.add_argument(
        "--only", default=PICTURE, help="methods whose name this expression matches"
    )
    parser.add_argument("--finished", action="store_true", help="train nothing, show what is there")
    parser.add_argument(
        "--torch-python", default=sys.executable, help="the Python that has PyTorch"
    )
    parser.add_argument("--timeout", type=int, default=7200, help="seconds for one run")
    parser.add_argument("--results", default="build/language_model", help="folder of the results")
    parser.add_argument("--csv", help="also write the table here")
    parser.add_argument("--plot", help="also draw the losses here")
    parser.set_defaults(**defaults)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments(__doc__)
    there = results(matching(METHODS, arguments.only), arguments)
    of_baseline = planned({BASELINE: METHODS[BASELINE]}, arguments)
    found = {run: finished(run, arguments) for run in of_baseline}
    baseline = {run.seed: last_loss(each) for run, each in found.items() if each}
    show(list(rows(there, baseline, arguments.rates)), arguments.csv)
    if arguments.plot:
        methods = by_method(there)
        at_rate = {
            megabits(rate): [
                curve(name, each) for name, own in methods.items() if (each := timed(own, rate))
            ]
            for rate in arguments.rates
        }
        panels = {rate: curves for rate, curves in at_rate.items() if curves}
        draw(panels, baseline.get(0), arguments.plot)


if __name__ == "__main__":
    main()
