"""The memory of algorithms that the guide on Adam states."""

import re
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[1] / "docs" / "guides" / "adam.md"
ALGORITHMS = {
    "no algorithm": None,
    "onebit_adam": {"name": "onebit_adam", "freeze_step": 2},
    "zero_one_adam": {"name": "zero_one_adam", "var_freeze_step": 2},
    "local_steps": {"name": "local_steps", "every": 1},
}


class Memory(NamedTuple):
    """Bytes for a float32 parameter."""

    kept: float
    in_a_round: float
    on_servers: float


def stated():
    """Return the rows of the table, by algorithm."""
    rows = re.findall(r"^\| `?([\w ]+?)`? \| (\d+) \| (\d+) \| (\d+) \|$", PAGE.read_text(), re.M)
    return {name: Memory(*map(float, numbers)) for name, *numbers in rows}
