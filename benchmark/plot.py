"""Draws the table of benchmark/cluster.py."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import figures
import matplotlib.pyplot as plt
from matplotlib.patches import Patch

COLORS: dict[str, str] = {
    "MXNet, Horovod and PyTorch": "tab:gray",
    "gluon_gc for MXNet": "tab:blue",
    "gluon_gc for PyTorch": "tab:orange",
}


def draw(table: Sequence[Mapping[str, Any]], path: str) -> None:
    """Draw one panel for each rate, with a bar for each method: its seconds a step."""
    rates = sorted({row["Mbit/s"] for row in table})
    names = list(dict.fromkeys(row["method"] for row in table))
    size = (4.5 * len(rates) + 3, 0.24 * len(names) + 1.3)
    figure, panels = plt.subplots(1, len(rates), figsize=size, sharey=True, squeeze=False)
    for panel, rate in zip(panels[0], rates):
        rows = [row for row in table if row["Mbit/s"] == rate]
        bars = panel.barh(
            [names.index(row["method"]) for row in rows],
            [row["seconds"] for row in rows],
            color=[COLORS[_group(row["method"])] for row in rows],
        )
        panel.bar_label(bars, [f"{row['seconds']:.2g} s" for row in rows], padding=3, fontsize=8)
        panel.set(title=f"Seconds a step on links of {rate:g} Mbit/s")
        panel.set_yticks(range(len(names)), names)
        panel.margins(x=0.12, y=0.01)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].invert_yaxis()
    legend = [Patch(color=color, label=group) for group, color in COLORS.items()]
    panels[0][-1].legend(handles=legend, loc="lower right", frameon=False)
    figure.tight_layout()
    figures.save(figure, path, "network")


def _group(method: str) -> str:
    """The color's group of a method; the names of gluon_gc's methods have a comma."""
    _, comma, backend = method.partition(", ")
    peers, mxnet, torch = COLORS
    return peers if not comma else torch if backend == "torch" else mxnet
