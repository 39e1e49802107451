"""Numbers that BytePS computed (tests/neutral/golden), and bounds for comparing with them."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Iterator, NamedTuple

import numpy as np

GOLDEN = Path(__file__).resolve().parents[1] / "golden"

Vectors = Dict[str, np.ndarray]


def _load(name: str) -> Vectors:
    with np.load(GOLDEN / f"{name}.npz") as archive:
        return dict(archive)


def _options(text: str) -> dict[str, str]:
    return dict(part.split("=") for part in text.split(",") if part)


class Compression(NamedTuple):
    """An array, and its values after compression and decompression by BytePS."""

    options: dict[str, str]
    x: np.ndarray
    decoded: np.ndarray


def compressions(compressor: str) -> list[Compression]:
    """Return BytePS's results of a compressor without feedback."""
    vectors = _load(compressor + "_compress")
    return [
        Compression(_options(key.split("|")[1]), vectors["input|" + key.split("|")[2]], decoded)
        for key, decoded in vectors.items()
        if not key.startswith("input|")
    ]


class Run(NamedTuple):
    """Four steps of one tensor with error feedback in BytePS."""

    name: str
    vectors: Vectors

    @property
    def options(self) -> dict[str, str]:
        compressor, feedback = self.name.split("|")[:2]
        name, _, own = compressor.partition(",")
        options = {**_options(own), **_options(feedback)}
        if name == "onebit":
            options["scaling"] = "True"
        if name == "dithering-natural-l2":
            options.update(partition="natural", normalize="l2")
        return options

    @property
    def mu(self) -> float | None:
        return float(self.options["mu"]) if "mu" in self.options else None

    @property
    def size(self) -> int:
        return self.vectors["g0"].size

    def steps(self) -> Iterator[tuple[Vectors, float]]:
        """Yield each step's gradient g, p, decoded d, residual e and momentum m; and its ratio."""
        rates = [0.1, 0.1, 0.05, 0.2] if "lrvar" in self.name else [1.0] * 4
        for step, (previous, rate) in enumerate(zip(rates[:1] + rates, rates)):
            vectors = {n[0]: v for n, v in self.vectors.items() if n[1:] == str(step)}
            yield vectors, previous / rate if self.options["ef"] == "corrected" else 1.0

    def bounded_steps(self) -> Iterator[tuple[Vectors, float, np.ndarray]]:
        """Yield the same with a bound on each element's difference, if the state before was equal.

        BytePS was compiled with fused multiply-adds; our kernels round twice. If the terms of a sum
        cancel, this is many ulp of the sum. So the bound is in ulp of the largest term.
        """
        before = dict.fromkeys("em", np.zeros(self.size, np.float32))
        for expected, ratio in self.steps():
            terms = np.abs([ratio * before["e"], before["m"], *expected.values()]).max(axis=0)
            yield expected, ratio, 2 * np.spacing(terms.astype(np.float32))
            before.update(expected)


def runs(compressor: str) -> list[Run]:
    """Return BytePS's results of a compressor with feedback."""
    vectors: dict[str, Vectors] = {}
    for key, values in _load(compressor + "_feedback").items():
        run, _, name = key.rpartition("|")
        vectors.setdefault(run, {})[name] = values
    return [Run(name, vectors[name]) for name in sorted(vectors)]


def all_runs() -> list[tuple[str, Run]]:
    """Return the runs of all compressors, each with its compressor's name."""
    names = sorted(path.stem[: -len("_feedback")] for path in GOLDEN.glob("*_feedback.npz"))
    return [(name, run) for name in names for run in runs(name)]


def name_of(case: object) -> str | None:
    """Return the name of a parametrised test."""
    return case.name if isinstance(case, Run) else None
