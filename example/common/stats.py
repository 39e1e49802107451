"""The table of bytes and times per tensor that ``--stats`` prints at the end of training."""

import os
from typing import Any, Dict, Iterator, List, Optional

WIDTH = 100
# Key of a tensor's dict in compression_stats(), heading in two lines, format, factor.
COLUMNS = (
    ("raw_bytes", "raw", "bytes", ",.0f", 1),
    ("pushed_bytes", "pushed", "bytes", ",.0f", 1),
    ("pulled_bytes", "pulled", "bytes", ",.0f", 1),
    ("ratio", "ratio", "", ",.1f", 1),
    ("bits_per_element", "bits/", "element", ".2f", 1),
    ("compress_seconds", "compress", "ms", ".2f", 1e3),
    ("wait_seconds", "wait", "ms", ".2f", 1e3),
    ("decompress_seconds", "decom-", "press ms", ".2f", 1e3),
)


def short_names(names: List[str], width: int) -> Dict[str, str]:
    """Strip the prefix that all names share, and cut names on the left to fit `width`."""
    common = os.path.commonprefix(names)
    common = common[: common.rfind("_") + 1] if len(names) > 1 else ""
    short = {name: name[len(common) :] for name in names}
    return {name: s if len(s) <= width else "…" + s[1 - width :] for name, s in short.items()}


def _rows(stats: Dict[str, Any]) -> Iterator[List[str]]:
    """Yield the cells of the headings and of each line, with full names."""
    yield ["", *(column[1] for column in COLUMNS)]
    yield ["tensor", *(column[2] for column in COLUMNS)]
    by_bytes = sorted(stats["tensors"].items(), key=lambda item: -item[1]["raw_bytes"])
    for name, values in [*by_bytes, ("total", stats["total"])]:
        yield [name, *(_cell(values[key], form, factor) for key, _, _, form, factor in COLUMNS)]


def _cell(value: Optional[float], form: str, factor: float) -> str:
    """Format a number. None, such as the ratio of a tensor that is not sent, becomes "-"."""
    return "-" if value is None else f"{value * factor:{form}}"


def stats_table(stats: Dict[str, Any]) -> str:
    """Return the table with the largest tensors first, at most 100 characters wide.

    Parameters
    ----------
    stats : dict
        The result of `DistributedTrainer.compression_stats`.
    """
    rows = list(_rows(stats))
    widths = [2 + max(map(len, cells)) for cells in list(zip(*rows))[1:]]
    names = short_names(list(stats["tensors"]), WIDTH - sum(widths))
    first = max(len(names.get(row[0], row[0])) for row in rows)
    lines = [
        names.get(name, name).ljust(first)
        + "".join(cell.rjust(width) for cell, width in zip(cells, widths))
        for name, *cells in rows
    ]
    lines.insert(-1, "-" * len(lines[-1]))
    if "exposed_seconds" in stats["total"]:  # only MXNet's trainer measures this
        exposed = 1e3 * stats["total"]["exposed_seconds"]
        lines.append(f"Exposed: {exposed:.2f} ms from the last gradient to the last average.")
    title = (
        "Averages per step of this worker. Tensors travel in parallel, so the sum of their times\n"
        "is longer than a step.\n"
    )
    return "\n".join([title, *(line.rstrip() for line in lines)])
