"""Compares compressed collectives of fully_shard on the language model: loss, bytes and seconds.

Each worker has its own network namespace. For each method and seed, the model is trained over links
without a limit, which gives losses and bytes. A short run at each rate gives the seconds of a step.
Bytes and seconds are those of training steps, without evaluations. It needs root, iproute2, and
PyTorch in the environment of --torch-python.

    python benchmark/fsdp.py [--workers N] [--rates 100M] [--only REGEX] [--csv FILE]

The options are those of benchmark/language_model.py.
"""

from __future__ import annotations

import argparse
import math
import re
import signal
import statistics
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping

from language_model import Method, Run, parse_arguments, seconds, train
from processes import HERE
from table import print_row, write_csv

BASELINE = "float32"
SCRIPT = HERE / "fsdp_worker.py"
METHODS: Dict[str, Method] = {
    name: Method(peer=peer, script=SCRIPT)
    for name, peer in {
        BASELINE: "fp32",
        "bfloat16": "bf16",
        "gradients 4 bits": "scatter",
        "gradients 4 bits, differences 4 bits": "both",
        "gradients 4 bits, differences 4 bits, residuals 8 bits": "both-small",
        "gradients 4 bits, parameters 8 bits": "both-bytes",
        "bfloat16, gradients 4 bits, differences 4 bits": "both-bf16",
    }.items()
}


def measure(name: str, arguments: argparse.Namespace) -> Dict[str, Any]:
    """Return the final losses of all seeds, the bytes of a step, and its seconds by rate."""
    folder, stem = Path(arguments.results), re.sub(r"\W+", "-", name)
    folder.mkdir(parents=True, exist_ok=True)
    losses, sent = [], []
    for seed in range(arguments.seeds):
        run = Run(METHODS[name], seed, math.inf, arguments.steps, arguments.eval_every)
        record = train(run, arguments, folder / f"{stem}-{seed}.jsonl")["records"][-1]
        losses.append(record["validation_loss"])
        sent.append(record["pushed_bytes"] / record["step"])
    by_rate = {
        rate: seconds(METHODS[name], rate, arguments, folder / f"{stem}-{rate / 1e6:g}M.jsonl")
        for rate in arguments.rates
    }
    return {"losses": losses, "bytes": statistics.mean(sent), "seconds": by_rate}


def row(name: str, found: Mapping[str, Any], baseline: Mapping[str, Any]) -> Dict[str, object]:
    """Return a method's row of the table. Losses are compared with the baseline seed by seed."""
    pairs = zip(found["losses"], baseline["losses"])
    compared = {
        "method": name,
        "loss": f"{statistics.mean(found['losses']):.4f}",
        f"- {BASELINE}, by seed": " ".join(f"{one - other:+.4f}" for one, other in pairs),
        "kB per step": f"{found['bytes'] / 1e3:.0f}",
        f"of {BASELINE}'s": f"{found['bytes'] / baseline['bytes']:.3f}",
    }
    for rate, taken in found["seconds"].items():
        compared[f"s per step, {rate / 1e6:g} Mbit/s"] = f"{taken:.3f}"
    return compared


def main() -> None:
    arguments = parse_arguments(__doc__, rates="100M", results="build/fsdp")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    names = [name for name in METHODS if name == BASELINE or re.search(arguments.only, name)]
    table: List[Dict[str, object]] = []
    baseline: Dict[str, Any] = {}
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        found = measure(name, arguments)
        baseline = baseline or found
        table.append(row(name, found, baseline))
        print_row(table[-1], first=len(table) == 1)
    if arguments.csv:
        write_csv(table, arguments.csv)


if __name__ == "__main__":
    main()
