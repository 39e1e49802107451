"""Draws loss or accuracy against the bytes that a worker sent and received."""

from pathlib import Path
from typing import Any, Dict, List

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import MultipleLocator, PercentFormatter

COLOURS = {"uncompressed": "#b0461e", "onebit": "#1f5fa8"}
WINDOW = 11  # steps of the running mean; the loss of a single batch is too noisy


def _loss_curves(runs: List[List[Dict[str, Any]]]) -> np.ndarray:
    """Return the running mean of the loss at every step, shape (runs, steps)."""
    losses = np.array([np.concatenate([record["step_loss"] for record in run]) for run in runs])
    padded = np.pad(losses, ((0, 0), (WINDOW - 1, 0)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, WINDOW, axis=1)
    return windows.mean(axis=2)


def _megabytes(run: List[Dict[str, Any]], steps: int) -> np.ndarray:
    """Return the megabytes pushed and pulled after each step, shape (steps,)."""
    total = (run[-1]["pushed_bytes"] + run[-1]["pulled_bytes"]) / 1e6
    return np.arange(1, steps + 1) * total / steps


def _style(axes: Any) -> None:
    axes.grid(True, color="#dddddd")
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: Any, path: Path) -> None:
    """Write a picture. An SVG keeps text as text and is the same in every run."""
    figure.tight_layout()
    if path.suffix == ".svg":
        with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": path.name}):
            figure.savefig(path, metadata={"Date": None})
    else:
        figure.savefig(path, dpi=150)
    plt.close(figure)


def draw_loss(runs: Dict[str, List[List[Dict[str, Any]]]], path: Path) -> None:
    """Draw training loss against steps and against bytes.

    Parameters
    ----------
    runs : dict
        The logs of each setting's runs, by the setting's name.
    path : Path
        The file to write.
    """
    figure, (by_step, by_byte) = plt.subplots(1, 2, figsize=(11, 4.4), sharey=True)
    for name, of_setting in runs.items():
        curves = _loss_curves(of_setting)
        steps = curves.shape[1]
        for axes, x in (
            (by_step, np.arange(1, steps + 1)),
            (by_byte, _megabytes(of_setting[0], steps)),
        ):
            axes.fill_between(
                x,
                curves.min(axis=0),
                curves.max(axis=0),
                color=COLOURS[name],
                alpha=0.18,
                linewidth=0,
            )
            axes.plot(x, curves.mean(axis=0), color=COLOURS[name], linewidth=1.8, label=name)
        by_byte.annotate(
            f"{x[-1]:,.0f} MB",
            (x[-1], curves.mean(axis=0)[-1]),
            color=COLOURS[name],
            xytext=(-14, 0),
            textcoords="offset points",
            ha="right",
            va="center",
        )
    by_byte.set_xscale("log")
    by_byte.xaxis.set_major_formatter("{x:,g}")
    by_step.set_yscale("log")
    by_step.set_title("Loss against steps")
    by_step.set_xlabel("step")
    by_step.set_ylabel("training loss (cross-entropy, log scale)")
    by_byte.set_title("Loss against bytes")
    by_byte.set_xlabel("pushed and pulled by one worker (MB, log scale)")
    for axes in (by_step, by_byte):
        _style(axes)
    seeds = len(next(iter(runs.values())))
    by_step.legend(
        frameon=False,
        alignment="left",
        title=f"running mean over {WINDOW} steps,\n{seeds} seeds: mean and range",
    )
    _save(figure, path)


def draw_accuracy(runs: Dict[str, List[List[Dict[str, Any]]]], path: Path) -> None:
    """Draw the mean and range of each setting's validation accuracy against bytes, per epoch.

    Parameters
    ----------
    runs : dict
        The logs of each setting's runs, by the setting's name.
    path : Path
        The file to write.
    """
    figure, axes = plt.subplots(figsize=(8, 4.6))
    for name, of_setting in runs.items():
        accuracy = np.array([[r["validation_accuracy"] for r in run] for run in of_setting])
        moved = np.mean(
            [[r["pushed_bytes"] + r["pulled_bytes"] for r in run] for run in of_setting], axis=0
        )
        (line,) = axes.plot(moved / 1e6, accuracy.mean(axis=0), linewidth=1.6, label=name)
        low, high = accuracy.min(axis=0), accuracy.max(axis=0)
        axes.fill_between(moved / 1e6, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.yaxis.set_major_locator(MultipleLocator(0.05))
    axes.set_ylim(0.8, 1)
    axes.set_xlabel("pushed and pulled by one worker (MB, log scale)")
    axes.set_ylabel("validation accuracy")
    seeds = len(next(iter(runs.values())))
    axes.legend(frameon=False, loc="lower right", title=f"{seeds} seeds: mean and range")
    _style(axes)
    _save(figure, path)
