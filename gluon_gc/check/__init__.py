"""What `python -m gluon_gc check` looks at: installation, machine, network and variables.

A module for each of them has a function that yields `Finding`s.
"""

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
