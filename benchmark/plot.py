"""Draws what benchmark/cluster.py measured."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402


def draw(table: Sequence[Mapping[str, Any]], path: str) -> None:
    """One panel a rate: seconds a step of each method, on a logarithmic axis, and its speed-up."""
    rates = sorted({row["Mbit/s"] for row in table})
    names = list(dict.fromkeys(row["method"] for row in table))
    size = (5.5 * len(rates) + 1, 0.27 * len(names) + 1)
    figure, panels = plt.subplots(1, len(rates), figsize=size, sharey=True, squeeze=False)
    for panel, rate in zip(panels[0], rates):
        of_rate = {row["method"]: row for row in table if row["Mbit/s"] == rate}
        rows = [of_rate.get(name, {}) for name in names]
        seconds = [row.get("seconds", 0) for row in rows]
        ours = ["," in name for name in names]
        colours = ["tab:blue" if own else "tab:gray" for own in ours]
        bars = panel.barh(names, seconds, color=colours)
        panel.bar_label(bars, [_label(row) for row in rows], fontsize=8)
        panel.set(xscale="log", xlabel="seconds a step", title=f"{rate:g} Mbit/s")
        panel.margins(x=0.2, y=0.01)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].invert_yaxis()
    figure.tight_layout()
    figure.savefig(path)


def _label(row: Mapping[str, Any]) -> str:
    """Of a bar: seconds, and how many times as fast as MXNet uncompressed."""
    if not row:
        return ""
    speed_up = row["x MXNet fp32"]
    return f" {row['seconds']:.3g} s" + (f", {speed_up:.3g}×" if speed_up else "")
