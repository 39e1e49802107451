"""Train the digits with PyTorch, uncompressed and with one-bit gradients, and compare them.

Two workers under torchrun on this machine train each setting with three seeds. The script fails if
a run fails, if one-bit training loses accuracy, or if it sends too many bytes.
"""

import sys
from typing import Dict, List

from runs import ROOT, summary, train

OUTPUT = ROOT / "build" / "demo-torch"
WORKERS = 2
SEEDS = (0, 1, 2)
SETTINGS = {
    "uncompressed": [],
    "onebit": [
        *("--compressor", "onebit", "--onebit-scaling"),
        *("--ef", "vanilla", "--compress-momentum", "nesterov"),
    ],
}
MIN_ACCURACY = 0.95
MAX_ACCURACY_LOSS = 0.01
MIN_SAVING = 20


def broken_claims(plain: Dict[str, float], onebit: Dict[str, float]) -> List[str]:
    """Return a message for each of the demo's claims that these results contradict."""
    broken = []
    if min(plain["accuracy"], onebit["accuracy"]) <= MIN_ACCURACY:
        broken.append(f"an accuracy is not above {MIN_ACCURACY:.0%}")
    if onebit["accuracy"] < plain["accuracy"] - MAX_ACCURACY_LOSS:
        broken.append(f"onebit loses more than {100 * MAX_ACCURACY_LOSS:.1f} point of accuracy")
    for way in ("pushed", "pulled"):
        if onebit[way] * MIN_SAVING > plain[way]:
            broken.append(f"onebit {way} more than 1/{MIN_SAVING} of the bytes")
    return broken


def main() -> None:
    rows = {
        name: summary([train(name, arguments, seed, WORKERS, OUTPUT) for seed in SEEDS])
        for name, arguments in SETTINGS.items()
    }
    print(f"\nMeans of {len(SEEDS)} seeds, {WORKERS} workers; bytes of gradients per step.\n")
    print(f"{'':14}{'accuracy':>10}{'sent':>14}{'received':>12}{'seconds':>9}")
    for name, row in rows.items():
        print(
            f"{name:14}{row['accuracy']:>10.2%}{row['pushed']:>14,.0f}{row['pulled']:>12,.0f}"
            f"{row['seconds']:>9.1f}"
        )
    broken = broken_claims(rows["uncompressed"], rows["onebit"])
    if broken:
        sys.exit("demo: " + "; ".join(broken))
    saving = rows["uncompressed"]["pushed"] / rows["onebit"]["pushed"]
    print(
        f"\nOne-bit gradients are {saving:.0f} times smaller, and the accuracy is at most "
        f"{100 * MAX_ACCURACY_LOSS:.1f} point lower."
    )


if __name__ == "__main__":
    main()
