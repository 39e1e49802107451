"""Compares compressed collectives of fully_shard on the language model: loss, bytes and seconds.

Each worker has its own network namespace. With each method, the model is trained over links of each
rate, and with further seeds over links without a limit. Bytes and seconds are those of training
steps, without evaluations. It needs root, iproute2, and PyTorch in the environment of
--torch-python.

    python benchmark/fsdp.py [--workers N] [--rates 100M] [--only REGEX] [--csv FILE]

The options are those of benchmark/language_model.py. A run in --results is not repeated.
"""

from __future__ import annotations

import statistics
import sys
from typing import Iterator, Mapping, Sequence

from language_model import (
    Found,
    Method,
    Run,
    by_method,
    last_loss,
    matching,
    megabits,
    parse_arguments,
    results,
    seconds_per_step,
    show,
    timed,
)
from processes import HERE

BASELINE = "float32"
SCRIPT = HERE / "fsdp_worker.py"
METHODS: dict[str, Method] = {
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


def rows(there: Mapping[Run, Found], rates: Sequence[float]) -> Iterator[dict[str, object]]:
    """Yield the table's rows, one for each method. Losses are compared seed by seed."""
    methods = by_method(there)
    losses = {
        name: {run.seed: last_loss(found) for run, found in own.items()}
        for name, own in methods.items()
    }
    sent = {name: _bytes_per_step(own) for name, own in methods.items()}
    for name, own in methods.items():
        differences = [
            f"{loss - losses[BASELINE][seed]:+.4f}"
            for seed, loss in losses[name].items()
            if seed in losses[BASELINE]
        ]
        row: dict[str, object] = {
            "method": name,
            "loss": f"{statistics.mean(losses[name].values()):.4f}",
            f"- {BASELINE}, by seed": " ".join(differences),
            "kB per step": f"{sent[name] / 1e3:.0f}",
            f"of {BASELINE}'s": f"{sent[name] / sent[BASELINE]:.3f}",
        }
        for rate in rates:
            found = timed(own, rate)
            row[f"s per step, {megabits(rate)}"] = f"{seconds_per_step(found):.3f}" if found else ""
        yield row


def _bytes_per_step(own: Mapping[Run, Found]) -> float:
    """Return the mean bytes that a worker sends in a step."""
    last = [found["records"][-1] for found in own.values()]
    return statistics.mean(record["pushed_bytes"] / record["step"] for record in last)


def main() -> None:
    arguments = parse_arguments(__doc__, rates="100M", results="build/fsdp", seeds=3, only="")
    there = results(matching(METHODS, f"^{BASELINE}$|{arguments.only}"), arguments)
    if BASELINE not in by_method(there):
        sys.exit(f"{BASELINE}, with which all methods are compared, has no finished run")
    show(list(rows(there, arguments.rates)), arguments.csv)


if __name__ == "__main__":
    main()
