"""Starts the workers of a run with MXNet (job.py)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.mxnet.cluster.cluster import nursery, of_no_cluster
from tests.neutral.mailbox import runs
from tests.neutral.mailbox.runs import ENVIRONMENT, Worker

JOB = Path(__file__).with_name("job.py")


class Workers(runs.Workers):
    def start(self, name: str, **config: Any) -> Worker:
        """Start a worker by forking a process that has imported MXNet."""
        command = [sys.executable, str(JOB), json.dumps(self._config(name, config))]
        environment = {**of_no_cluster(), **ENVIRONMENT, **self.variables}
        log = self.folder / f"{name}.out"
        return self._started(name, nursery().start(command, environment, log))
