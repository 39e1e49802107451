"""Draws what benchmark/cluster.py measured."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402


def draw(table: Sequence[Mapping[str, Any]], path: str) -> None:
    """One panel a rate: seconds a step of each method, on a logarithmic axis."""
    rates = sorted({row["Mbit/s"] for row in table})
    names = list(dict.fromkeys(row["method"] for row in table))
    size = (5.5 * len(rates) + 1, 0.27 * len(names) + 1)
    figure, panels = plt.subplots(1, len(rates), figsize=size, sharey=True, squeeze=False)
    for panel, rate in zip(panels[0], rates):
        of_rate = {row["method"]: row["seconds"] for row in table if row["Mbit/s"] == rate}
        seconds = [of_rate.get(name, 0) for name in names]
        ours = ["," in name for name in names]
        colours = ["tab:blue" if own else "tab:gray" for own in ours]
        bars = panel.barh(names, seconds, color=colours)
        panel.bar_label(bars, [f" {s:.3g}" for s in seconds], fontsize=8)
        panel.set(xscale="log", xlabel="seconds a step", title=f"{rate:g} Mbit/s")
        panel.margins(x=0.15)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].invert_yaxis()
    figure.tight_layout()
    figure.savefig(path)
