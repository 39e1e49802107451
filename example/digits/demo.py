"""Train the digits uncompressed and with one-bit gradients on a small cluster, and compare them.

A scheduler, a server and two workers on this machine train each setting with three seeds. The
script fails if a run fails, if one-bit training loses accuracy, or if it sends too many bytes.
"""

import sys
from typing import Dict, List

from picture import draw_loss
from runs import ROOT, Cluster, summary, train

OUTPUT = ROOT / "build" / "demo"
CLUSTER = Cluster(workers=2, servers=1)
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


def print_table(rows: Dict[str, Dict[str, float]]) -> None:
    """Print one line per setting."""
    print(
        f"\nMeans of {len(SEEDS)} seeds, {CLUSTER.workers} workers, {CLUSTER.servers} server; "
        "bytes are those of one worker's messages.\n"
    )
    print(f"{'':14}{'validation':>12}{'pushed':>14}{'pulled':>14}{'training':>10}")
    print(f"{'':14}{'accuracy':>12}{'bytes/step':>14}{'bytes/step':>14}{'seconds':>10}")
    for name, row in rows.items():
        print(
            f"{name:14}{row['accuracy']:>12.2%}{row['pushed']:>14,.0f}{row['pulled']:>14,.0f}"
            f"{row['seconds']:>10.1f}"
        )
    print(
        "\nThe seconds were measured on this machine's loopback, which is fast: there, fewer "
        "bytes save no time."
    )


def broken_claims(plain: Dict[str, float], onebit: Dict[str, float]) -> List[str]:
    """Return a message for each of the demo's claims that these results contradict."""
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
                f"onebit {way} {onebit[way]:,.0f} bytes per step, more than "
                f"1/{MIN_SAVING} of {plain[way]:,.0f}"
            )
    return broken


def main() -> None:
    print(
        f"Training on handwritten digits: {CLUSTER.workers} workers, {CLUSTER.servers} server and "
        f"a scheduler, all on this machine;\n{len(SEEDS)} runs per setting: {', '.join(SETTINGS)}.",
        flush=True,
    )
    runs = {
        name: [train(name, arguments, seed, CLUSTER, OUTPUT) for seed in SEEDS]
        for name, arguments in SETTINGS.items()
    }
    rows = {name: summary(of_setting) for name, of_setting in runs.items()}
    print_table(rows)
    picture = OUTPUT / "demo.png"
    draw_loss(runs, picture)
    print(f"Loss against steps and against bytes: {picture.relative_to(ROOT)}")
    broken = broken_claims(rows["uncompressed"], rows["onebit"])
    if broken:
        sys.exit("demo: " + "; ".join(broken))
    saving = rows["uncompressed"]["pushed"] / rows["onebit"]["pushed"]
    print(
        f"One-bit gradients need {saving:.0f} times fewer bytes each way, and the accuracy is "
        f"at most {100 * MAX_ACCURACY_LOSS:.1f} point lower."
    )


if __name__ == "__main__":
    main()
