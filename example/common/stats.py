"""The table of what the gradients' way took, which ``--stats`` prints when training has ended."""

import os
from typing import Any, Dict, Iterator, List, Optional

WIDTH = 100
# Key of a dict in compression_stats(), heading in two lines, format, factor.
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
    """Return each name without the words that all begin with, cut on the left to fit `width`."""
    common = os.path.commonprefix(names)
    common = common[: common.rfind("_") + 1] if len(names) > 1 else ""
    short = {name: name[len(common) :] for name in names}
    return {name: s if len(s) <= width else "…" + s[1 - width :] for name, s in short.items()}


def _rows(stats: Dict[str, Any]) -> Iterator[List[str]]:
    """Yield the cells of the headings and of each line, the names as they are."""
    yield ["", *(column[1] for column in COLUMNS)]
    yield ["tensor", *(column[2] for column in COLUMNS)]
    by_bytes = sorted(stats["tensors"].items(), key=lambda item: -item[1]["raw_bytes"])
    for name, values in [*by_bytes, ("total", stats["total"])]:
        yield [name, *(_cell(values[key], form, factor) for key, _, _, form, factor in COLUMNS)]


def _cell(value: Optional[float], form: str, factor: float) -> str:
    """Return a number as it is printed; "-" if there is none, as no ratio where nothing is sent."""
    return "-" if value is None else f"{value * factor:{form}}"


def stats_table(stats: Dict[str, Any]) -> str:
    """Return the table, at most 100 characters wide, the largest tensors first.

    Parameters
    ----------
    stats : dict
        As `DistributedTrainer.compression_stats` returns it.
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
    if "exposed_seconds" in stats["total"]:  # of MXNet's trainer
        exposed = 1e3 * stats["total"]["exposed_seconds"]
        lines.append(
            f"Exposed: {exposed:.2f} ms, from the last gradient to the last average of all."
        )
    title = (
        "A step of this worker: averages so far. Tensors are at work at the same time, so their\n"
        "milliseconds add up to more than a step takes.\n"
    )
    return "\n".join([title, *(line.rstrip() for line in lines)])
