"""Train the digits uncompressed and with one-bit gradients on a small cluster, and compare the two.

Starts scheduler, server and workers on this machine, three times for each setting. Fails if a run
does, or if one-bit training does not keep its accuracy while sending far less.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for example/common

from common.log import read_log
from picture import draw

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUTPUT = ROOT / "build" / "demo"
WORKERS, SERVERS = 2, 1
SEEDS = (0, 1, 2)
SETTINGS = {
    "uncompressed": [],
    "onebit": [
        "--compressor",
        "onebit",
        "--onebit-scaling",
        "--ef",
        "vanilla",
        "--compress-momentum",
        "nesterov",
    ],
}
MIN_ACCURACY = 0.95
MAX_ACCURACY_LOSS = 0.01
MIN_SAVING = 20

Run = List[Dict[str, Any]]  # the records that train.py logs, one an epoch


def train(name: str, seed: int) -> Run:
    """Run train.py on a cluster of this machine and return its log; exit if it fails."""
    log = OUTPUT / f"{name}-{seed}.jsonl"
    cluster = ["--local", "-n", str(WORKERS), "-s", str(SERVERS)]
    script = [
        str((HERE / "train.py").relative_to(ROOT)),
        *SETTINGS[name],
        "--seed",
        str(seed),
        "--logging-file",
        str(log.relative_to(ROOT)),
    ]
    print(f"\n$ bpslaunch {' '.join(cluster)} python {' '.join(script)}", flush=True)
    command = [sys.executable, "-m", "bpslaunch", *cluster, sys.executable, *script]
    quiet = {"PYTHONWARNINGS": "ignore::FutureWarning", **os.environ}  # MXNet's, about NumPy
    done = subprocess.run(command, cwd=ROOT, env=quiet, check=False)
    if done.returncode != 0:
        sys.exit(f"demo: the {name} run with seed {seed} failed with exit code {done.returncode}")
    return read_log(str(log))


def summary(runs: List[Run]) -> Dict[str, float]:
    """Return the means over runs of what the table shows."""

    def mean(value) -> float:
        return sum(value(run) for run in runs) / len(runs)

    def steps(run: Run) -> int:
        return sum(len(record["step_loss"]) for record in run)

    return {
        "accuracy": mean(lambda run: run[-1]["validation_accuracy"]),
        "pushed": mean(lambda run: run[-1]["pushed_bytes"] / steps(run)),
        "pulled": mean(lambda run: run[-1]["pulled_bytes"] / steps(run)),
        "seconds": mean(lambda run: sum(record["seconds"] for record in run)),
    }


def print_table(rows: Dict[str, Dict[str, float]]) -> None:
    """Print one line a setting."""
    print(
        f"\nMeans of {len(SEEDS)} seeds, {WORKERS} workers, {SERVERS} server; bytes are those of "
        "the messages of one worker.\n"
    )
    print(f"{'':14}{'validation':>12}{'pushed':>14}{'pulled':>14}{'training':>10}")
    print(f"{'':14}{'accuracy':>12}{'bytes/step':>14}{'bytes/step':>14}{'seconds':>10}")
    for name, row in rows.items():
        print(
            f"{name:14}{row['accuracy']:>12.2%}{row['pushed']:>14,.0f}{row['pulled']:>14,.0f}"
            f"{row['seconds']:>10.1f}"
        )
    print(
        "\nThe seconds are those of this machine's loopback, which is no slow network: on it, "
        "fewer bytes save no time."
    )


def broken_claims(plain: Dict[str, float], onebit: Dict[str, float]) -> List[str]:
    """Return what the demo claims and these numbers do not bear out."""
    broken = [
        f"{name} accuracy {row['accuracy']:.2%} is not above {MIN_ACCURACY:.0%}"
        for name, row in (("uncompressed", plain), ("onebit", onebit))
        if row["accuracy"] <= MIN_ACCURACY
    ]
    if onebit["accuracy"] < plain["accuracy"] - MAX_ACCURACY_LOSS:
        broken.append(
            f"onebit accuracy {onebit['accuracy']:.2%} is more than "
            f"{100 * MAX_ACCURACY_LOSS:.1f} points below {plain['accuracy']:.2%}"
        )
    for way in ("pushed", "pulled"):
        if onebit[way] * MIN_SAVING > plain[way]:
            broken.append(
                f"onebit {way} {onebit[way]:,.0f} bytes a step, more than "
                f"1/{MIN_SAVING} of {plain[way]:,.0f}"
            )
    return broken


def main() -> None:
    OUTPUT.mkdir(parents=True, exist_ok=True)
    print(
        f"Training on handwritten digits: {WORKERS} workers, {SERVERS} server and a scheduler, "
        f"all on this machine;\n{len(SEEDS)} runs of each: {', '.join(SETTINGS)}.",
        flush=True,
    )
    runs = {name: [train(name, seed) for seed in SEEDS] for name in SETTINGS}
    rows = {name: summary(of_setting) for name, of_setting in runs.items()}
    print_table(rows)
    picture = OUTPUT / "demo.png"
    draw(runs, picture)
    print(f"Loss against steps and against bytes: {picture.relative_to(ROOT)}")
    broken = broken_claims(rows["uncompressed"], rows["onebit"])
    if broken:
        sys.exit("demo: " + "; ".join(broken))
    saving = rows["uncompressed"]["pushed"] / rows["onebit"]["pushed"]
    print(
        f"One-bit gradients moved {saving:.0f} times fewer bytes each way, and kept the "
        f"accuracy within {100 * MAX_ACCURACY_LOSS:.1f} point."
    )


if __name__ == "__main__":
    main()
