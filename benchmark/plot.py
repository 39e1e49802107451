"""Draws the results of benchmark/cluster.py."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

STYLES: Dict[str, Dict[str, str]] = {
    "MXNet and Horovod as they are": {"color": "tab:gray", "marker": "s"},
    "gluon_gc on MXNet's parameter server": {"color": "tab:blue", "marker": "o"},
    "gluon_gc on Horovod": {"color": "tab:orange", "marker": "D"},
}


def draw(table: Sequence[Mapping[str, Any]], path: str) -> None:
    """Draw one panel per rate. Each method is a dot at its seconds per step, on a log axis."""
    rates = sorted({row["Mbit/s"] for row in table})
    names = list(dict.fromkeys(row["method"] for row in table))
    size = (5.5 * len(rates) + 1, 0.27 * len(names) + 1.5)
    figure, panels = plt.subplots(1, len(rates), figsize=size, sharey=True, squeeze=False)
    for panel, rate in zip(panels[0], rates):
        of_rate = {row["method"]: row for row in table if row["Mbit/s"] == rate}
        for group, style in STYLES.items():
            rows = [row for name, row in of_rate.items() if _group(name) == group]
            seconds, places = (
                [row["seconds"] for row in rows],
                [names.index(row["method"]) for row in rows],
            )
            panel.plot(seconds, places, linestyle="", label=group, **style)
            for row, place in zip(rows, places):
                panel.annotate(
                    _label(row),
                    (row["seconds"], place),
                    (7, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8,
                )
        panel.set(
            xscale="log",
            xlabel="seconds per step, and speed-up over MXNet fp32",
            title=f"links of {rate:g} Mbit/s",
        )
        panel.set_yticks(range(len(names)), names)
        panel.grid(axis="x", alpha=0.3)
        panel.margins(x=0.25, y=0.03)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].invert_yaxis()
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="lower center", ncols=len(STYLES))
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    # The file is in the repository, so text stays text and nothing may differ from run to run.
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "network"}):
        figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


def _group(method: str) -> str:
    """Return a method's key in STYLES. Names of gluon_gc's methods have a comma."""
    _, comma, backend = method.partition(", ")
    others, server, horovod = STYLES
    return others if not comma else server if backend == "server" else horovod


def _label(row: Mapping[str, Any]) -> str:
    """Return a row's seconds and its speed-up over uncompressed MXNet."""
    speed_up = row["x MXNet fp32"]
    return f"{row['seconds']:.3g} s" + (f", {speed_up:.3g}×" if speed_up else "")
