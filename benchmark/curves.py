"""Draws the results of benchmark/language_model.py."""

from __future__ import annotations

from typing import Dict, Iterator, List, NamedTuple, Sequence, Tuple

import numpy as np


class Curve(NamedTuple):
    """The results of one method.

    Attributes
    ----------
    method : str
    ours : bool
        Whether it is a method of gluon_gc.
    steps : list of int
        The steps after which the loss was measured.
    losses : list of list of float
        For each seed, the validation loss after these steps.
    megabytes : list of float
        The megabytes that a worker had sent after these steps.
    seconds : dict of float to float
        The seconds of a step, by the rate of the links in bits per second.
    """

    method: str
    ours: bool
    steps: List[int]
    losses: List[List[float]]
    megabytes: List[float]
    seconds: Dict[float, float]


def _panels(curves: Sequence[Curve]) -> Iterator[Tuple[str, List[np.ndarray]]]:
    """Yield the label of each panel's horizontal axis, and the positions on it, by curve."""
    yield "steps", [np.array(curve.steps) for curve in curves]
    yield "megabytes sent by a worker", [np.array(curve.megabytes) for curve in curves]
    for rate in curves[0].seconds:
        seconds = [np.array(curve.steps) * curve.seconds[rate] for curve in curves]
        yield f"seconds on links of {rate / 1e6:g} Mbit/s", seconds


def draw(curves: Sequence[Curve], path: str) -> None:
    """Draw the loss against steps, megabytes and seconds.

    A line is the mean of the seeds, and the area around it is their range. The lines of other
    libraries are dashed.
    """
    import figures  # matplotlib is not needed for the table alone
    import matplotlib.pyplot as plt

    panels = list(_panels(curves))
    figure, axes = plt.subplots(1, len(panels), figsize=(4.5 * len(panels) + 2, 4.5), sharey=True)
    for axis, (label, positions) in zip(axes, panels):
        for curve, places in zip(curves, positions):
            losses = np.array(curve.losses)
            style = "-" if curve.ours else "--"
            axis.plot(places, losses.mean(axis=0), style, marker=".", label=curve.method)
            axis.fill_between(places, losses.min(axis=0), losses.max(axis=0), alpha=0.2)
        axis.set(xlabel=label, xscale="linear" if label == "steps" else "log")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("validation loss in nats per byte")
    axes[-1].legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.tight_layout()
    figures.save(figure, path, "language model")
