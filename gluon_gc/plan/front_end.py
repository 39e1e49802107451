"""The front end that measures: PyTorch's."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def planning() -> Any:
    """Return the module `gluon_gc.torch.planning`. ValueError: PyTorch is not installed."""
    try:
        return import_module("gluon_gc.torch.planning")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ValueError(
            "plan measures with PyTorch's exchange, but PyTorch is not installed: pip install "
            "torch. With MXNet, 'compressor': 'auto' measures in training and logs its choice"
        ) from None
