"""Reports of a training run: one line for each worker, in the log and elsewhere."""

from .report import Norms, Report
from .reporter import Measured, Reporter, Settings, replace_reporter

__all__ = ["Measured", "Norms", "Report", "Reporter", "Settings", "replace_reporter"]
