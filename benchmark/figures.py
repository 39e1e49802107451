"""Saves the figures of the benchmarks, which are in the repository."""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402


def save(figure: plt.Figure, path: str, salt: str) -> None:
    """Save a figure. Text stays text, and the file does not differ from run to run.

    Parameters
    ----------
    figure : Figure
    path : str
        The file, .svg or .png.
    salt : str
        The names of an SVG file's elements depend on it.
    """
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)
