"""Train the digits with every compressor, and write the results to docs/benchmarks/convergence.md.

A scheduler, 2 servers and 4 workers on this machine train each setting with three seeds. COMMON
has the arguments that all settings share. The script fails if a setting's accuracy is more than one
point below that of uncompressed training.
"""

import sys
from pathlib import Path
from typing import Dict, List

from picture import draw_accuracy
from runs import ROOT, Cluster, Run, summary, train

PAGE = ROOT / "docs" / "benchmarks" / "convergence.md"
PICTURE = ROOT / "docs" / "benchmarks" / "convergence.svg"
BEGIN, END = "<!-- begin: written by compare.py -->", "<!-- end -->"
OUTPUT = ROOT / "build" / "compare"
CLUSTER = Cluster(workers=4, servers=2)
SEEDS = (0, 1, 2)
COMMON = ["--num-epochs", "40", "--lr", "0.02", "--momentum", "0.5"]
FEEDBACK = ["--ef", "vanilla", "--compress-momentum", "nesterov"]
STREAM = ["--compressor-seed", "2020"]
SETTINGS = {
    "uncompressed": [],
    "fp16": ["--fp16-pushpull"],
    "onebit": ["--compressor", "onebit", "--onebit-scaling", *FEEDBACK],
    "topk 0.01": ["--compressor", "topk", "--k", "0.01", *FEEDBACK],
    "randomk 0.01": ["--compressor", "randomk", "--k", "0.01", *STREAM, *FEEDBACK],
    "dithering linear": ["--compressor", "dithering", "--k", "2", *STREAM, *FEEDBACK],
    "dithering natural": [
        *("--compressor", "dithering", "--k", "2", "--partition", "natural"),
        *STREAM,
        *FEEDBACK,
    ],
    "bytegrad": ["--compressor", "bytegrad", *FEEDBACK],
    "dgc 0.001": [
        *("--compressor", "dgc", "--k", "0.001", "--dgc-warmup-epochs", "5"),
        *("--compress-momentum", "nesterov"),
        *STREAM,
    ],
}
MAX_ACCURACY_LOSS = 0.01


def table(runs: Dict[str, List[Run]]) -> str:
    """Return the Markdown table. It compares each setting with the first one."""
    rows = {name: summary(of_setting) for name, of_setting in runs.items()}
    plain = next(iter(rows.values()))
    lines = [
        "| | accuracy | of the seeds | points | pushed, bytes a step | pulled | in all |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        seeds = sorted(run[-1]["validation_accuracy"] for run in runs[name])
        points = 100 * (row["accuracy"] - plain["accuracy"])
        saving = (plain["pushed"] + plain["pulled"]) / (row["pushed"] + row["pulled"])
        lines.append(
            f"| {name} | {row['accuracy']:.2%} | {seeds[0]:.2%} to {seeds[-1]:.2%} "
            f"| {points:+.2f} | {row['pushed']:,.0f} | {row['pulled']:,.0f} "
            f"| 1/{saving:.1f} |"
        )
    return "\n".join(lines)


def section(runs: Dict[str, List[Run]]) -> str:
    """Return the text between the markers of the page."""
    return f"""
Made by `python example/digits/compare.py`: {CLUSTER.workers} workers, {CLUSTER.servers} servers,
{len(SEEDS)} seeds, and for all settings `{" ".join(COMMON)}`.

{table(runs)}

![Validation accuracy against the bytes that a worker pushed and pulled]({PICTURE.name})
"""


def write_section(page: Path, text: str) -> None:
    """Replace the text between the markers of a page."""
    head, rest = page.read_text().split(BEGIN)
    page.write_text(head + BEGIN + "\n" + text + END + rest.split(END)[1])


def broken_claims(rows: Dict[str, Dict[str, float]]) -> List[str]:
    """Return a message for each setting that loses more accuracy than MAX_ACCURACY_LOSS."""
    plain = next(iter(rows.values()))["accuracy"]
    return [
        f"{name} accuracy {row['accuracy']:.2%} is more than {100 * MAX_ACCURACY_LOSS:.1f} points "
        f"below {plain:.2%}"
        for name, row in rows.items()
        if row["accuracy"] < plain - MAX_ACCURACY_LOSS
    ]


def main() -> None:
    runs = {
        name: [train(name, [*COMMON, *arguments], seed, CLUSTER, OUTPUT) for seed in SEEDS]
        for name, arguments in SETTINGS.items()
    }
    draw_accuracy(runs, PICTURE)
    write_section(PAGE, section(runs))
    print(f"\n{table(runs)}\n\nWritten to {PAGE.relative_to(ROOT)}")
    broken = broken_claims({name: summary(of_setting) for name, of_setting in runs.items()})
    if broken:
        sys.exit("; ".join(broken))


if __name__ == "__main__":
    main()
