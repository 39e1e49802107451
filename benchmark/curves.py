"""Draws the results of benchmark/language_model.py."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Sequence

_SHOWN = 1.0  # nats above the target


class Curve(NamedTuple):
    """A training run.

    Attributes
    ----------
    method : str
    ours : bool
        Whether it is a method of gluon_gc.
    seconds : list of float
        The seconds since the start of training when the loss was measured, without evaluations.
    losses : list of float
        The validation losses.
    """

    method: str
    ours: bool
    seconds: list[float]
    losses: list[float]


def draw(panels: Mapping[str, Sequence[Curve]], target: float | None, path: str) -> None:
    """Draw the loss against seconds, in a panel for each rate of the links.

    The lines of PyTorch's and torchft's methods are dashed. A dotted line is the target, DDP's
    last loss. Losses far above it are outside of the picture.
    """
    import figures  # matplotlib is not needed for the table alone
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullLocator

    methods = {curve.method: None for curves in panels.values() for curve in curves}
    colors = {method: f"C{number}" for number, method in enumerate(methods)}
    figure, axes = plt.subplots(
        1, len(panels), figsize=(4 + 3 * len(panels), 4.8), sharey=True, squeeze=False
    )
    lines: dict[str, Any] = {}
    for axis, (rate, curves) in zip(axes[0], panels.items()):
        for method, ours, seconds, losses in curves:
            style = "-" if ours else "--"
            (lines[method],) = axis.plot(seconds, losses, style, color=colors[method], marker=".")
        if target is not None:
            lines["DDP's last loss"] = axis.axhline(target, color="gray", linestyle=":", zorder=0)
            axis.set_ylim(top=target + _SHOWN)
        axis.set(title=f"links of {rate}", xlabel="seconds of training (logarithmic)", xscale="log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_locator(NullLocator())
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("validation loss in nats per byte")
    figure.tight_layout(rect=(0, 0.2, 1, 1))
    title = "dashed: other libraries, solid: gluon_gc"
    entries = lines.values(), lines.keys()
    figure.legend(*entries, title=title, loc="lower center", ncols=3, frameon=False)
    figures.save(figure, path, "language model")
