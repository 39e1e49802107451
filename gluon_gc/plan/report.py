"""How predictions are shown: as a table with lines for the script, as JSON, and as a figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterator, Sequence

from ..auto.choice import Measured, fastest, gains_enough
from ..auto.prediction import Prediction
from ..compression.auto import PLAIN

_COLUMNS = ("method", "accuracy", "MB sent", "limit s", "exchange s", "hidden s", "step s", "x DDP")
_CROWDED = 1.3  # times that work takes longer than alone, above which the report says so
_COLORS = {"computing": "tab:gray", "waiting for the exchange": "tab:blue"}


@dataclass(frozen=True)
class Report:
    """The predictions, the fastest first, with the facts that they depend on."""

    parameters: int
    tensors: int
    workers: int
    machines: int
    measured: Measured
    rate: float  # bits per second of a machine's link, in each direction
    rate_given: bool  # else it is measured
    used_rate: float  # `rate`, or less: what this machine's workers reach among themselves
    step_seconds: float  # 0: not known
    sharing: int  # workers that shared the processors of a machine when they measured
    crowding: float  # of their processors, see `speed.crowding`
    cores: int
    predictions: Sequence[Prediction]

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text."""
        plain = self._plain
        of_step = "Seconds are those of the exchange: give --step-seconds to add computing"
        if self.step_seconds:
            hides = any(each.hidden for each in self.predictions)
            what = "hides a part" if hides else "needs the processors, so it hides nothing"
            of_step = f"A step computes {self.step_seconds:.3g} s. Backward {what} of an exchange"
        yield (
            f"{self.parameters:,} parameters in {self.tensors} tensors, float32 gradients, "
            f"{self.workers} workers on {self.machines} machines, links of "
            f"{_mbit(self.rate)} ({'given' if self.rate_given else 'measured'})."
        )
        if self.used_rate < 0.99 * self.rate:
            yield (
                f"Workers reach only {_mbit(self.used_rate)} here, on this machine's "
                "loopback interface. Predictions use this rate; start plan like training, on the "
                "machines themselves, to measure theirs."
            )
        yield (
            f"Limit: without compression a machine sends {_number(plain.bytes / 1e6)} MB in a "
            f"step, which take {plain.limit:.3g} s."
        )
        yield f"{of_step}."
        if self.sharing > self.cores or self.crowding > _CROWDED:
            yield (
                f"Processors are shared: {self.sharing} workers measured at the same time on the "
                f"{self.cores} cores of a machine, and maybe other processes ran there. So "
                f"compressing takes {self.crowding:.2g} times as long as alone."
            )
        if self.workers > self.machines:
            yield "The workers of a machine sum their gradients before it sends them (two levels)."
        yield ""
        yield from _aligned([_COLUMNS, *map(_cells, self.predictions)])
        yield ""
        yield from self._advice()

    @property
    def _plain(self) -> Prediction:
        return next(each for each in self.predictions if each.method.name == PLAIN)

    def _advice(self) -> Iterator[str]:
        """Yield the best method of each accuracy, with the lines that a script needs.

        As in "auto", a method that sends less must gain enough to be the better one.
        """
        groups: dict[str, list[Prediction]] = {}
        for each in sorted(self.predictions, key=lambda each: -each.bytes):
            kind = f"{each.method.accuracy}{', local steps' if each.method.every > 1 else ''}"
            groups.setdefault(kind, []).append(each)
        for kind, group in groups.items():
            steps = {PLAIN: self._plain.step, **{each.method.name: each.step for each in group}}
            name = fastest(steps)
            if gains_enough(steps[name], steps[PLAIN]):
                (best,) = (each for each in group if each.method.name == name)
                yield f"{kind}: {name}, {_number(best.speedup, 3)} times as fast as DDP"
                yield from (f"    {line}" for line in _script(best))
            else:
                yield f"{kind}: DistributedDataParallel as it is"

    def json(self) -> dict[str, Any]:
        """Return all values as one object. Rates are in bits per second."""
        facts = {name: value for name, value in vars(self).items() if name != "predictions"}
        link, kernels = self.measured.link, self.measured.kernels
        facts["measured"] = {
            "link": {kind: cost._asdict() for kind, cost in link._asdict().items()},
            "kernels": {name: speed._asdict() for name, speed in kernels.items()},
        }
        rows = [
            {
                "method": each.method.name,
                "accuracy": each.method.accuracy,
                "compression_params": each.method.params,
                "algorithm": each.method.algorithm,
                "every": each.method.every,
                **{key: value for key, value in each._asdict().items() if key != "method"},
            }
            for each in self.predictions
        ]
        return {**facts, "predictions": rows}

    def draw(self, path: str) -> None:
        """Draw the seconds of each method's step to a file such as plan.svg."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 0.3 * len(self.predictions) + 1.3), layout="constrained")
        panel = figure.subplots()
        names = [each.method.name for each in self.predictions]
        computing = [self.step_seconds] * len(names)
        waiting = [max(0.0, each.step - self.step_seconds) for each in self.predictions]
        for (label, color), left, width in zip(
            _COLORS.items(), ([0.0] * len(names), computing), (computing, waiting)
        ):
            panel.barh(names, width, left=left, color=color, label=label)
        panel.invert_yaxis()
        panel.set_xlabel(f"predicted seconds a step at {_mbit(self.rate)}")
        panel.legend(loc="lower right")
        figure.savefig(path)


def _number(value: float, digits: int = 4) -> str:
    """The value without an exponent, unless it is tiny."""
    return f"{value:,.0f}" if value >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def _mbit(rate: float) -> str:
    return f"{_number(rate / 1e6)} Mbit/s"


def _cells(each: Prediction) -> list[str]:
    numbers = (each.limit, each.exchange, each.hidden, each.step)
    return [
        "DDP, uncompressed" if each.method.name == PLAIN else each.method.name,
        each.method.accuracy,
        _number(each.bytes / 1e6),
        *(f"{number:.3g}" for number in numbers),
        _number(each.speedup, 3),
    ]


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield lines of columns; the first two are words, the others numbers."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        words = [cell.ljust(width) for cell, width in zip(row[:2], widths)]
        numbers = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:])]
        yield "  ".join((*words, *numbers))


def _script(each: Prediction) -> list[str]:
    params, algorithm = dict(each.method.params), each.method.algorithm
    if algorithm is None:
        return [
            f"state = bps.CompressionState(model.named_parameters(), {params}, optimizer)",
            "ddp.register_comm_hook(state, bps.compression_hook)",
        ]
    return [
        "optimizer = bps.DistributedOptimizer(",
        "    optimizer, model.named_parameters(),  # without DistributedDataParallel",
        f"    compression_params={params},",
        f"    algorithm={dict(algorithm)})",
    ]
