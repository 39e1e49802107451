"""Finding: what a check has found, and how to mend it."""

from __future__ import annotations

from dataclasses import dataclass

GOOD, WARNING, ERROR = "good", "warning", "error"


@dataclass(frozen=True)
class Finding:
    """One line of the report. `remedy` is empty if the level is GOOD."""

    level: str
    about: str
    text: str
    remedy: str = ""
