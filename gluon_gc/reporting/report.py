"""Report: what one worker reports about the steps since its last report."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median
from typing import Iterable, Mapping, Sequence, Tuple

Norms = Tuple[float, float]
"""The norms of a residual and of a gradient, or of an error and of an exact average."""

_WORST = 3  # tensors that a report names
_MATTERS = 0.1  # of a step: the shortest wait for another worker that a report mentions


@dataclass(frozen=True)
class Report:
    """The numbers of one worker, as averages over the steps since its last report.

    `FIELDS` of `gluon_gc.exchange.statistics` defines the bytes, and the seconds of compression,
    waits and decompression, which may overlap.

    Attributes
    ----------
    step : int
        The number of the last step.
    worker : int
        The rank of the worker.
    step_seconds : float
        The duration of a step.
    compute_seconds, exchange_seconds : float
        The parts of a step in which no exchange is under way, and in which one is.
    compress_seconds, wait_seconds, decompress_seconds : float
    pushed_bytes, pulled_bytes : float
        The bytes of the worker's payloads, and of the averages that it gets, in a step.
    ratio : float, optional
        The bytes of the uncompressed tensors / pushed_bytes. None: nothing was sent.
    residual_ratio : float, optional
        The norm of the residual after the last step / the norm of this worker's gradient in it,
        over all tensors with error feedback. With an algorithm: of the vectors that it averages.
        None: no such tensor was exchanged.
    worst : mapping of str to float
        The largest residual ratios of single tensors.
    waited_for : int, optional
        The worker that the others waited for, if they lost more than a tenth of a step.
    error : float, optional
        The norm of the difference between the average and the exact average / the norm of the exact
        average. None: it was not measured.
    """

    step: int
    worker: int
    step_seconds: float
    compute_seconds: float
    exchange_seconds: float
    compress_seconds: float
    wait_seconds: float
    decompress_seconds: float
    pushed_bytes: float
    pulled_bytes: float
    ratio: float | None = None
    residual_ratio: float | None = None
    worst: Mapping[str, float] = field(default_factory=dict)
    waited_for: int | None = None
    error: float | None = None

    def values(self) -> dict[str, float]:
        """Return the numbers that are known, by name, without those of single tensors."""
        others = ("step", "worker", "worst")
        return {
            name: value
            for name, value in vars(self).items()
            if name not in others and value is not None
        }

    def line(self) -> str:
        """Return the report as a line of text."""
        parts = [
            f"worker {self.worker}, step {self.step}: {self.step_seconds:.3g} s a step "
            f"(compute {self.compute_seconds:.3g}, exchange {self.exchange_seconds:.3g}: "
            f"compress {self.compress_seconds:.3g}, wait {self.wait_seconds:.3g}, "
            f"decompress {self.decompress_seconds:.3g})",
            f"sent {_bytes(self.pushed_bytes)}, received {_bytes(self.pulled_bytes)}",
        ]
        if self.ratio is not None:
            parts[-1] += f", ratio {self.ratio:.3g}"
        if self.residual_ratio is not None:
            worst = ", ".join(f"{name} {ratio:.3g}" for name, ratio in self.worst.items())
            parts.append(f"residual / gradient {self.residual_ratio:.3g} (largest: {worst})")
        if self.error is not None:
            parts.append(f"error of the average {self.error:.3g}")
        if self.waited_for is not None:
            parts.append(f"the others waited for worker {self.waited_for}")
        return "; ".join(parts)


def _bytes(number: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} B"


def largest_ratios(parts: Iterable[tuple[str, Norms]]) -> dict[str, float]:
    """Return the largest ratios of tensors, given their names and the norms of their parts."""
    tensors: dict[str, list[Norms]] = {}
    for name, norms in parts:
        tensors.setdefault(name, []).append(norms)
    ratios = {name: ratio_of(of_tensor) for name, of_tensor in tensors.items()}
    known = {name: ratio for name, ratio in ratios.items() if ratio is not None}
    return {name: known[name] for name in sorted(known, key=lambda name: -known[name])[:_WORST]}


def ratio_of(parts: Iterable[Norms]) -> float | None:
    """Return one norm divided by the other, given those of parts of vectors.

    Parts with a NaN or an infinity are left out. None: no part is left, or the other norm is 0, as
    that of an unused gradient.
    """
    finite = [norms for norms in parts if all(map(math.isfinite, norms))]
    if not finite:
        return None
    one, other = (math.hypot(*norms) for norms in zip(*finite))
    return one / other if other else None


def waited_for(waits: Sequence[float]) -> int | None:
    """Return the worker that the others waited for; None if no wait matters.

    `waits` are the shares of a step that the workers waited, by rank.
    """
    if len(waits) < 2:
        return None
    least, *others = sorted(range(len(waits)), key=lambda rank: waits[rank])
    lost = median(waits[rank] for rank in others) - waits[least]
    return least if lost > _MATTERS else None
