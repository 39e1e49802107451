"""Prints a benchmark's table row by row as Markdown, and writes it as CSV."""

from __future__ import annotations

import csv
from typing import Mapping, Sequence


def print_row(row: Mapping[str, object], first: bool) -> None:
    """Print a row; before the first one, print the header."""
    if first:
        print("|", " | ".join(row), "|\n" + "|---" * len(row) + "|")
    print("|", " | ".join(str(value) for value in row.values()), "|", flush=True)


def write_csv(table: Sequence[Mapping[str, object]], path: str) -> None:
    """Write all rows to a file. All must have the same columns."""
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, table[0])
        writer.writeheader()
        writer.writerows(table)
