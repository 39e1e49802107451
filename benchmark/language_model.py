"""Compares methods that train the language model: validation loss, bytes, and seconds per step.

It runs example/pytorch/language_model.py. Each worker has its own network namespace. For each
method and seed, the model is trained over links without a limit, which gives losses and bytes. The
loss does not depend on the rate of the links. So another run at each rate measures the seconds of a
step; it is short, unless the bytes of a step change during training. It needs root, iproute2, and
PyTorch in the environment of --torch-python; torchft's row needs torchft 0.2.0 there.

    python benchmark/language_model.py [--workers N] [--rates 100M,20M] [--only REGEX]
        [--csv FILE] [--plot FILE]

The folder --results has a file for each run. A run that is there, with the same settings, is not
repeated. Workers share this machine's processors, so that their computing takes longer than on
machines of their own.
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
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence

import numpy as np
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
    period : int
        The number of steps between two exchanges. 0: the bytes of a step change during training, so
        that only the time of a whole training says how long a step takes.
    script : Path
        The worker of the peer.
    """

    arguments: str = ""
    peer: str = ""
    period: int = 1
    script: Path = PEER


def _local_steps(every: int, more: str = "") -> Method:
    return Method(f"--algorithm local_steps --every {every} {more}", period=every)


AVERAGING = "--outer-lr 1 --outer-momentum 0"
_ZERO_ONE = "--algorithm zero_one_adam --var-update-scaler 4"
METHODS: Dict[str, Method] = {
    BASELINE: Method(),
    "DDP fp16": Method(peer="fp16"),
    "DDP PowerSGD 4": Method(peer="powersgd"),
    "torchft DiLoCo 20": Method("--every 20", peer="torchft", period=20),
    "onebit": Method(ONEBIT),
    "topk 0.01": Method("--compressor topk --k 0.01 --ef vanilla"),
    "blockwise 4 bits": Method("--compressor blockwise --blockwise-hadamard true --ef vanilla"),
    "onebit_adam": Method(f"--algorithm onebit_adam --freeze-step 60 {ONEBIT}", period=0),
    "zero_one_adam": Method(f"{_ZERO_ONE} --var-freeze-step 60 {ONEBIT}", period=0),
    "zero_one_adam, local steps": Method(
        f"{_ZERO_ONE} --var-freeze-step 30 --local-step-scaler 60 --local-step-clipper 4 {ONEBIT}",
        period=0,
    ),
    "powersgd 4": Method("--algorithm powersgd --rank 4 --start 10"),
    "powersgd 4, fp16": Method("--algorithm powersgd --rank 4 --start 10 --fp16-pushpull"),
    "local_steps 20": _local_steps(20),
    "local_steps 5, averages, onebit": _local_steps(5, f"{AVERAGING} {ONEBIT}"),
    "local_steps 10, averages, onebit": _local_steps(10, f"{AVERAGING} {ONEBIT}"),
    "local_steps 30, onebit": _local_steps(30, ONEBIT),
    "local_steps 30, onebit, overlap": _local_steps(
        30, f"{ONEBIT} --fragments 3 --overlap 5 --mix 0.5"
    ),
    "SparseLoCo 30": _local_steps(30, f"{SPARSE_LOCO} {AVERAGING}"),
}
PEERS = (BASELINE, "torchft")
"""The names of methods of other libraries begin with one of these."""


class Run(NamedTuple):
    """A training run.

    Attributes
    ----------
    method : Method
    seed : int
    rate : float
        The rate of the links in bits per second.
    steps, eval_every : int
    """

    method: Method
    seed: int
    rate: float
    steps: int
    eval_every: int


def train(run: Run, arguments: argparse.Namespace, log: Path) -> Dict[str, Any]:
    """Train; returns the records of the log, and the bytes that a worker had sent by then."""
    method, workers = run.method, arguments.workers
    script = [str(method.script), method.peer] if method.peer else [str(EXAMPLE)]
    numbers = {"steps": run.steps, "eval-every": run.eval_every, "seed": run.seed, "sample": 0}
    options = [f"--{name}={number}" for name, number in numbers.items()]
    words = [*script, *options, *shlex.split(f"{arguments.training} {method.arguments}")]
    settings = {"words": words[1:], "workers": workers, "rate": run.rate}
    result = log.with_suffix(".json")
    if result.exists():
        found = json.loads(result.read_text())
        if found["settings"] == settings:
            return found
    logging = ["--logging-file", str(log.resolve())]
    with Network(workers, run.rate) as network:
        with Processes(network, arguments.timeout, arguments.torch_python) as processes:
            started = processes.start_workers("torch", workers, 0, lambda _: [*words, *logging])
            sent = []
            begins = range(run.eval_every, run.steps + run.eval_every, run.eval_every)
            lines = [f"step {min(step, run.steps)} of" for step in begins]
            for line in ("training", *lines):
                read_line(started[0], line)
                sent.append(statistics.mean(link.sent for link in network.traffic().values()))
            for worker in started:
                worker.communicate()
                if worker.returncode:
                    raise RuntimeError(f"a worker ended with {worker.returncode}")
    after = [count - sent[0] for count in sent[1:]]
    found = {"settings": settings, "records": read_log(str(log)), "sent_bytes": after}
    result.write_text(json.dumps(found))
    return found


def measure(name: str, arguments: argparse.Namespace) -> Curve:
    """Train with one method and all seeds, and measure its seconds per step at each rate."""
    folder = Path(arguments.results)
    folder.mkdir(parents=True, exist_ok=True)
    stem, method = re.sub(r"\W+", "-", name), METHODS[name]
    runs = [
        train(
            Run(method, seed, math.inf, arguments.steps, arguments.eval_every),
            arguments,
            folder / f"{stem}-{seed}.jsonl",
        )
        for seed in range(arguments.seeds)
    ]
    return Curve(
        name,
        not name.startswith(PEERS),
        [record["step"] for record in runs[0]["records"]],
        [[record["validation_loss"] for record in run["records"]] for run in runs],
        [statistics.mean(count) / 1e6 for count in zip(*(run["sent_bytes"] for run in runs))],
        {
            rate: seconds(method, rate, arguments, folder / f"{stem}-{rate / 1e6:g}M.jsonl")
            for rate in arguments.rates
        },
    )


def seconds(method: Method, rate: float, arguments: argparse.Namespace, log: Path) -> float:
    """Measure the seconds per step at a rate. Only the second half of a short run counts."""
    if method.period == 0:
        run, untimed = Run(method, 0, rate, arguments.steps, arguments.eval_every), 0
    else:
        steps = method.period * math.ceil(arguments.timed_steps / method.period)
        run, untimed = Run(method, 0, rate, 2 * steps, steps), 1
    records = train(run, arguments, log)["records"][untimed:]
    return sum(record["seconds"] for record in records) / (run.steps - untimed * run.eval_every)


def rows(curves: Sequence[Curve]) -> Iterator[Dict[str, object]]:
    """Yield the table's rows, one for each method.

    "loss then" is the loss at equal time: when the fastest method ends its last step.
    """
    last = {c.method: statistics.mean(losses[-1] for losses in c.losses) for c in curves}
    for curve in curves:
        seeds = sorted(losses[-1] for losses in curve.losses)
        loss = last[curve.method]
        row = {
            "method": curve.method,
            "loss": f"{loss:.4f}",
            "range of seeds": f"{seeds[-1] - seeds[0]:.4f}",
            f"- {BASELINE}": f"{loss - last[BASELINE]:+.4f}" if BASELINE in last else "",
            "kB per step": f"{1e3 * curve.megabytes[-1] / curve.steps[-1]:.1f}",
        }
        for rate, seconds in curve.seconds.items():
            end = min(c.steps[-1] * c.seconds[rate] for c in curves)
            row[f"s per step, {rate / 1e6:g} Mbit/s"] = f"{seconds:.4f}"
            row[f"loss then, {rate / 1e6:g} Mbit/s"] = _loss_at(curve, end / seconds)
        yield row


def _loss_at(curve: Curve, step: float) -> str:
    """Return the mean loss at a step between two evaluations, or "" before the first one."""
    if step < curve.steps[0]:
        return ""
    means = np.mean(curve.losses, axis=0)
    return f"{np.interp(step, curve.steps, means):.4f}"


def parse_arguments(description: str, **defaults: Any) -> argparse.Namespace:
    """Parse the command line. `defaults` replace those of some options."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rates", type=rates, default="100M,20M", help="of the links, bit/s")
    parser.add_argument("--steps", type=int, default=300, help="steps of each training run")
    parser.add_argument(
        "--eval-every", type=int, default=60, help="steps between evaluations, a multiple of all H"
    )
    parser.add_argument("--seeds", type=int, default=3, help="training runs of each method")
    parser.add_argument(
        "--timed-steps", type=int, default=10, help="smallest number of steps to time"
    )
    parser.add_argument(
        "--training",
        default="--width 256 --depth 4 --heads 4 --context 128 --batch-size 4 --lr 1e-3",
        help="arguments of example/pytorch/language_model.py",
    )
    parser.add_argument("--only", default="", help="methods whose name this expression matches")
    parser.add_argument(
        "--torch-python", default=sys.executable, help="the Python that has PyTorch"
    )
    parser.add_argument("--timeout", type=int, default=3600, help="seconds for one run")
    parser.add_argument("--results", default="build/language_model", help="folder of the results")
    parser.add_argument("--csv", help="also write the table here")
    parser.add_argument("--plot", help="also draw the losses here")
    parser.set_defaults(**defaults)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments(__doc__)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    curves: List[Curve] = []
    names = [name for name in METHODS if re.search(arguments.only, name)]
    if not names:
        sys.exit(f"--only {arguments.only} matches no method of: {'; '.join(METHODS)}")
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            curves.append(measure(name, arguments))
        except PermissionError as error:
            sys.exit(str(error))
        except (RuntimeError, TimeoutError) as error:
            print(f"{name}: {error}", file=sys.stderr)
    if not curves:
        sys.exit("there are no results")
    table = list(rows(curves))
    for number, row in enumerate(table):
        print_row(row, first=number == 0)
    if arguments.csv:
        write_csv(table, arguments.csv)
    if arguments.plot:
        draw(curves, arguments.plot)


if __name__ == "__main__":
    main()
