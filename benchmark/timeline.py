"""Draws a timeline of a step of all processes in a cluster, from the traces of BYTEPS_TRACE_ON.

    python benchmark/timeline.py FOLDER FILE

FOLDER is BYTEPS_TRACE_DIR. Each process has a band; overlapping operators are drawn in rows.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict, deque
from pathlib import Path
from typing import Iterator, NamedTuple

import figures
import matplotlib.pyplot as plt

KINDS = {
    "compress": ("tab:blue", ("gluon_gc_compress",)),
    "push": ("tab:orange", ("KVStoreDistRowSparsePush",)),
    "sum and compress again": ("tab:green", ("gluon_gc_aggregate",)),
    "pull": ("tab:red", ("KVStoreDistRowSparsePull",)),
    "alltoall": ("tab:orange", ("horovod_alltoall",)),
    "allgather": ("tab:red", ("horovod_allgather",)),
    "decompress": ("tab:purple", ("gluon_gc_decompress",)),
}
"""The kinds of operators drawn: the colour, and the operators' names in MXNet's profiler."""


class Span(NamedTuple):
    """The start and end of an operator, in seconds since 1970 or since the step began."""

    begin: float
    end: float
    kind: str


def spans(trace: Path) -> Iterator[Span]:
    """Yield a trace's spans of the kinds in KINDS.

    Operators of the same name end in the order in which they began.
    """
    kind_of = {name: kind for kind, (_, names) in KINDS.items() for name in names}
    begun: dict[tuple[int, str], deque[float]] = defaultdict(deque)
    for event in json.loads(trace.read_text())["traceEvents"]:
        name = event.get("name")
        if name in kind_of and event["ph"] == "B":
            begun[event["pid"], name].append(event["ts"] / 1e6)
        elif name in kind_of and event["ph"] == "E":
            yield Span(begun[event["pid"], name].popleft(), event["ts"] / 1e6, kind_of[name])


def rows(of_process: list[Span]) -> Iterator[tuple[Span, int]]:
    """Yield each span with the first row in which no other span overlaps it."""
    free: list[float] = []
    for span in sorted(of_process):
        row = next((i for i, until in enumerate(free) if until <= span.begin), len(free))
        free[row:] = [span.end, *free[row + 1 :]]
        yield span, row


def draw(traces: dict[str, list[Span]], file: str) -> None:
    """Draw one band per process; time 0 is the start of the first operator of any process."""
    start = min(span.begin for each in traces.values() for span in each)
    bands = {name: list(rows(each)) for name, each in traces.items()}
    height = sum(2 + max(row for _, row in band) for band in bands.values())
    figure, axes = plt.subplots(figsize=(10, 0.12 * height + 1))
    top, ticks = 0, []
    for band in bands.values():
        depth = 1 + max(row for _, row in band)
        for span, row in band:
            seconds = 1e3 * (span.begin - start), 1e3 * (span.end - span.begin)
            axes.broken_barh([seconds], (top + row, 0.8), color=KINDS[span.kind][0], linewidth=0)
        ticks.append(top + depth / 2)
        top += depth + 1
    axes.set_yticks(ticks, list(bands))
    axes.set_xlabel("milliseconds")
    axes.margins(x=0.01, y=0.01)
    axes.invert_yaxis()
    axes.spines[["top", "right", "left"]].set_visible(False)
    drawn = {span.kind for each in traces.values() for span in each}
    handles = [plt.Rectangle((0, 0), 1, 1, color=KINDS[kind][0]) for kind in KINDS if kind in drawn]
    names = [kind for kind in KINDS if kind in drawn]
    figure.legend(handles, names, loc="lower center", ncols=len(names), frameon=False)
    figure.tight_layout(rect=(0, 0.6 / figure.get_figheight() * 0.5, 1, 1))
    figures.save(figure, file, "timeline")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="BYTEPS_TRACE_DIR")
    parser.add_argument("file", help="the picture to write, .svg or .png")
    arguments = parser.parse_args()
    files = sorted(arguments.folder.rglob("comm.json"))
    traces = {file.relative_to(arguments.folder).parts[0]: list(spans(file)) for file in files}
    traces = {name: each for name, each in traces.items() if each}
    if not traces:
        parser.error(f"the traces in {arguments.folder} contain no operators to draw")
    draw(traces, arguments.file)


if __name__ == "__main__":
    main()
