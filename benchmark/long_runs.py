"""Compares DDP with local steps over long trainings of the language model: loss and bytes.

It runs example/pytorch/language_model.py as benchmark/language_model.py does, over links without a
limit, and resumes as that does. The seconds are not of interest here.

    python benchmark/long_runs.py --only ^outer --seeds 1
    python benchmark/long_runs.py [--workers N] [--seeds N] [--only REGEX] [--finished]

The first command compares settings of the outer step. OUTER has those that the second one uses.
--steps and --eval-every should be multiples of 10, 30 and 100.
"""

from __future__ import annotations

import math
from itertools import product

from language_model import (
    BASELINE,
    ONEBIT,
    SPARSE_LOCO,
    Method,
    last_loss,
    local_steps,
    matching,
    parse_arguments,
    results,
    rows,
    show,
)

SWEPT = ((1.0, 0.0), (1.0, 0.3), (0.7, 0.5), (0.6, 0.7), (0.4, 0.7), (0.5, 0.9), (0.7, 0.9))
"""outer_lr and outer_momentum."""
OUTER = {10: (0.4, 0.7), 30: (0.6, 0.7), 100: (0.7, 0.5)}
"""By H, the best of SWEPT; with H = 100, (1.0, 0.3) is better by 0.006 with AdamW."""
BLOCKWISE = "--compressor blockwise --blockwise-bits {} --blockwise-hadamard true --ef vanilla"
STARTS = (60, 210)
"""Values of `start`, the number of first steps that average parameters."""
COMPRESSIONS = {
    "uncompressed": "",
    "onebit": ONEBIT,
    "4 bits": BLOCKWISE.format(4),
    "2 bits": BLOCKWISE.format(2),
}
OPTIMIZERS = {"AdamW": "", "Muon": "--optimizer muon"}


def _method(every: int, lr: float, mu: float, compression: str = "") -> Method:
    return local_steps(every, f"--outer-lr {lr} --outer-momentum {mu} {compression}")


def _optimizer(name: str) -> str:
    """Return the optimizer of a method; its name ends with it."""
    return name.rpartition(", ")[2]


def swept() -> dict[str, Method]:
    """Return the methods of the sweep."""
    return {
        f"outer {lr} and {mu}, H = {every}": _method(every, lr, mu)
        for every in OUTER
        for lr, mu in SWEPT
    }


def compared() -> dict[str, Method]:
    """Return the methods of the table."""
    found = {
        f"local_steps {every}, {name}": _method(every, *OUTER[every], compression)
        for every in OUTER
        for name, compression in COMPRESSIONS.items()
    }
    for every, start, name in product(OUTER, STARTS, ("uncompressed", "4 bits")):
        more = f"{COMPRESSIONS[name]} --start {start}"
        found[f"local_steps {every}, start {start}, {name}"] = _method(every, *OUTER[every], more)
    return {**found, "SparseLoCo 30": _method(30, 1.0, 0.0, SPARSE_LOCO)}


def main() -> None:
    arguments = parse_arguments(
        __doc__,
        rates=[math.inf],
        steps=2100,
        eval_every=300,
        seeds=2,
        workers=2,
        only="^(local_steps|SparseLoCo)",
        results="build/long_runs",
        training="--width 64 --depth 4 --heads 2 --context 64 --batch-size 16 --lr 4e-3",
    )
    methods = {
        f"{name}, {optimizer}": Method(f"{method.arguments} {chosen}")
        for optimizer, chosen in OPTIMIZERS.items()
        for name, method in {BASELINE: Method(), **compared(), **swept()}.items()
    }
    wanted = matching(methods, arguments.only)
    baselines = {name: f"{BASELINE}, {name}" for name in map(_optimizer, wanted)}
    there = results({**{name: methods[name] for name in baselines.values()}, **wanted}, arguments)
    table: list[dict[str, object]] = []
    for optimizer, baseline in baselines.items():
        own = {run: found for run, found in there.items() if _optimizer(run.name) == optimizer}
        losses = {run.seed: last_loss(found) for run, found in own.items() if run.name == baseline}
        table += rows(own, losses, [])
    show(table, arguments.csv)


if __name__ == "__main__":
    main()
