"""Reports of a training run: one line for each worker, in the log and in other places."""

from .report import Report
from .reporter import Measured, Reporter, Settings

__all__ = ["Measured", "Report", "Reporter", "Settings"]
