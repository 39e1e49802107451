"""Starts the workers of a run with PyTorch (job.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.neutral.mailbox import runs
from tests.neutral.mailbox.runs import ENVIRONMENT, Worker
from tests.processes import heed_interrupts
from tests.torch import forked, scripts

JOB = Path(__file__).with_name("job.py")


class Workers(runs.Workers):
    def start(self, name: str, **config: Any) -> Worker:
        """Start a worker by forking a process that has imported PyTorch."""
        (worker,) = self.start_site(name, 1, **config)
        return worker

    def start_site(self, name: str, size: int, **config: Any) -> list[Worker]:
        """Start a site of several workers. Without a launcher's variables, if it is only one."""
        places = forked.places(size) if size > 1 else [{}]
        context = forked.server(frozenset(scripts.environ().items()))
        started = []
        for rank, place in enumerate(places):
            file = f"{name}.{rank}" if rank else name
            out = self.folder / f"{file}.out"
            out.touch()
            environment = {**scripts.environ(), **ENVIRONMENT, **self.variables, **place}
            arguments = environment, str(out), self._config(name, config)
            process = context.Process(target=_work, args=arguments)
            process.start()
            started.append(Worker(self.folder, file, process))
        self.workers += started
        return started

    def start_python(self, name: str, **config: Any) -> Worker:
        """Start a worker as a user does."""
        with open(self.folder / f"{name}.out", "w") as out:
            process = subprocess.Popen(
                [sys.executable, str(JOB), json.dumps(self._config(name, config))],
                env={**scripts.environ(), **ENVIRONMENT, **self.variables},
                stdout=out,
                stderr=subprocess.STDOUT,
                preexec_fn=heed_interrupts,
            )
        return self._started(name, process)


def _work(environment: dict[str, str], out: str, config: dict[str, Any]) -> None:
    """Be a worker, in a forked process."""
    from tests.torch.mailbox import job

    forked.become(environment, out)
    getattr(job, config.get("job", "work"))(config)
