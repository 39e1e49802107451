"""BYTEPS_TRACE_ON: MXNet's profiler writes a Chrome trace of some steps of this process."""

from __future__ import annotations

import tempfile
from pathlib import Path

import mxnet as mx

from ... import env


def writable(folder: str) -> Path:
    """A folder of BYTEPS_TRACE_DIR, which is created if it is missing."""
    path = Path(env.get("BYTEPS_TRACE_DIR"), folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise env.ConfigurationError(
            f"BYTEPS_TRACE_ON is set, but BYTEPS_TRACE_DIR, {path}, is not writable: {error}"
        ) from None
    return path


class Trace:
    """Records the steps from BYTEPS_TRACE_START_STEP to BYTEPS_TRACE_END_STEP, both included.

    It waits for the operators of earlier steps before the trace, and for those of traced steps at
    its end. If the process ends earlier, MXNet writes the steps so far.
    """

    def __init__(self, folder: str) -> None:
        self._steps = env.traced_steps()
        self._file = writable(folder) / "comm.json"
        self._domain = mx.profiler.Domain("gluon_gc")
        self.step = 0
        self._span: mx.profiler.Task | None = None
        self.next_step()

    def next_step(self) -> None:
        if self._span is not None:
            self._span.stop()
            self._span = None
        self.step += 1
        if self.step == self._steps.start:
            mx.nd.waitall()
            operators = dict(profile_symbolic=True, profile_imperative=True)
            mx.profiler.set_config(filename=str(self._file), **operators)
            mx.profiler.set_state("run")
        if self.step in self._steps:
            self._span = self._domain.new_task(f"step {self.step}")
            self._span.start()
        elif self.step == self._steps.stop:
            mx.nd.waitall()
            self._write()

    def close(self) -> None:
        """Write the steps so far, because no more steps will come."""
        if self._span is not None:
            self._span.stop()
            self._write()

    def _write(self) -> None:
        mx.profiler.set_state("stop")
        mx.profiler.dump()
