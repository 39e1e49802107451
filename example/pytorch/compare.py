"""Train the digits with PyTorch and several compressors, and write a table of the docs.

Four workers on this machine train each setting with three seeds. COMMON has the arguments that all
settings share. The script fails if a setting's accuracy is more than half a point below that of
plain DistributedDataParallel.
"""

import sys
from typing import Dict, List

from runs import ROOT, Run, summary, train

PAGE = ROOT / "docs" / "benchmarks" / "pytorch.md"
BEGIN, END = "<!-- begin: written by compare.py -->", "<!-- end -->"
OUTPUT = ROOT / "build" / "compare-torch"
WORKERS = 4
SEEDS = (0, 1, 2)
COMMON = ["--num-epochs", "40", "--lr", "0.02", "--momentum", "0.5"]
FEEDBACK = ["--ef", "vanilla", "--compress-momentum", "nesterov"]
SETTINGS = {
    "DistributedDataParallel": [],
    "onebit": ["--compressor", "onebit", "--onebit-scaling", *FEEDBACK],
    "topk 0.01": ["--compressor", "topk", "--k", "0.01", *FEEDBACK],
    "dgc 0.01": [
        *("--compressor", "dgc", "--k", "0.01", "--dgc-warmup-epochs", "5"),
        *("--compress-momentum", "nesterov", "--compressor-seed", "2020"),
    ],
}
MAX_ACCURACY_LOSS = 0.005


def table(runs: Dict[str, List[Run]]) -> str:
    """Return the Markdown table. It compares each setting with the first one."""
    rows = {name: summary(of_setting) for name, of_setting in runs.items()}
    plain = next(iter(rows.values()))
    lines = [
        "| | accuracy | range of the seeds | points | bytes sent | bytes received |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        seeds = sorted(run[-1]["validation_accuracy"] for run in runs[name])
        points = 100 * (row["accuracy"] - plain["accuracy"])
        lines.append(
            f"| {name} | {row['accuracy']:.2%} | {seeds[0]:.2%} to {seeds[-1]:.2%} "
            f"| {points:+.2f} | {row['pushed']:,.0f} | {row['pulled']:,.0f} |"
        )
    return "\n".join(lines)


def section(runs: Dict[str, List[Run]]) -> str:
    """Return the text between the markers of the page."""
    return f"""
Made by `python example/pytorch/compare.py`: {WORKERS} workers, {len(SEEDS)} seeds, and
`{" ".join(COMMON)}` for all settings. Bytes are those of a worker's payloads in a step; the first
line has the size of the gradients.

{table(runs)}

"""


def broken_claims(runs: Dict[str, List[Run]]) -> List[str]:
    """Return a message for each setting that loses more accuracy than MAX_ACCURACY_LOSS."""
    rows = {name: summary(of_setting)["accuracy"] for name, of_setting in runs.items()}
    plain = next(iter(rows.values()))
    return [
        f"{name} accuracy {accuracy:.2%} is more than {100 * MAX_ACCURACY_LOSS:.1f} points below "
        f"{plain:.2%}"
        for name, accuracy in rows.items()
        if accuracy < plain - MAX_ACCURACY_LOSS
    ]


def main() -> None:
    runs = {
        name: [train(name, [*COMMON, *arguments], seed, WORKERS, OUTPUT) for seed in SEEDS]
        for name, arguments in SETTINGS.items()
    }
    head, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(head + BEGIN + "\n" + section(runs) + END + rest.split(END)[1])
    print(f"\n{table(runs)}\n\nWritten to {PAGE.relative_to(ROOT)}")
    broken = broken_claims(runs)
    if broken:
        sys.exit("; ".join(broken))


if __name__ == "__main__":
    main()
