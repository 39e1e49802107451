"""BYTEPS_TRACE_ON: a Chrome trace of some steps of this worker, made by MXNet's profiler."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import mxnet as mx

from . import env


class Trace:
    """Records the steps from BYTEPS_TRACE_START_STEP to BYTEPS_TRACE_END_STEP, both included.

    What earlier and later steps queued on the engine is waited for, and stays out.

    Parameters
    ----------
    local_rank : int
        Which worker of its machine this is: the trace is BYTEPS_TRACE_DIR/local_rank/comm.json.
    """

    def __init__(self, local_rank: int) -> None:
        self._steps = env.traced_steps()
        self._file = Path(env.get("BYTEPS_TRACE_DIR"), str(local_rank), "comm.json")
        self._domain = mx.profiler.Domain("gluon_gc")
        self._step = 0
        self._span: Optional[mx.profiler.Task] = None
        self.next_step()

    def next_step(self) -> None:
        """A step has ended and another begins."""
        if self._span is not None:
            self._span.stop()
            self._span = None
        self._step += 1
        if self._step == self._steps.start:
            mx.nd.waitall()
            self._file.parent.mkdir(parents=True, exist_ok=True)
            operators = dict(profile_symbolic=True, profile_imperative=True)
            mx.profiler.set_config(filename=str(self._file), **operators)
            mx.profiler.set_state("run")
        if self._step in self._steps:
            self._span = self._domain.new_task(f"step {self._step}")
            self._span.start()
        elif self._step == self._steps.stop:
            mx.nd.waitall()
            mx.profiler.set_state("stop")
            mx.profiler.dump()
