"""SLURM's variables: a process's rank in its step, and the first machine of the step.

srun starts the processes of a step, and describes the step to each. A batch script has
SLURM_PROCID=0 and the job's SLURM_NTASKS too, so only the variables of a step show that a process
is one of several.
"""

from __future__ import annotations

import re

from ... import env
from ...env import ConfigurationError

_PSEUDO_STEPS = 2**32 - 16  # the lowest step number of batch scripts and interactive shells
_FIRST_PORT, _PORTS = 15000, 15000  # below the ports that Linux uses for outgoing connections
_STEPS = 101  # steps of a job with ports of their own: later ones get ports of the next job
_HOST = r"(?:[^,\[\]\s]|\[[^\[\]]+\])+"


def is_step() -> bool:
    """Whether srun has started this process."""
    step = env.get("SLURM_STEP_ID")
    numbered = step is not None and step < _PSEUDO_STEPS
    return numbered or env.is_set("SLURM_STEP_NUM_TASKS") or bool(env.get("SLURM_PROCID"))


def tasks_variable() -> str:
    """The name of the variable with the number of the step's processes."""
    of_step = "SLURM_STEP_NUM_TASKS"
    return of_step if env.is_set(of_step) else "SLURM_NTASKS"


def tasks_here() -> int | None:
    """The number of the step's processes on this machine; None if SLURM does not set it."""
    node, text = env.get("SLURM_NODEID"), env.get("SLURM_STEP_TASKS_PER_NODE")
    counts = _counts(text) if text else []
    return counts[node] if node is not None and node < len(counts) else None


def first_host(of_step: bool) -> str | None:
    """The first machine of the step or the job; None if SLURM names no machine."""
    names = ["SLURM_STEP_NODELIST"] if of_step else []
    for name in (*names, "SLURM_JOB_NODELIST"):
        hosts = env.get(name)
        if hosts is None:
            continue
        if not re.fullmatch(f"{_HOST}(,{_HOST})*", hosts):
            raise ConfigurationError(f"{name} must be a list of hosts, got {hosts!r}")
        first = re.match(_HOST, hosts)[0]
        return re.sub(r"\[([^,\-\]]+)[^\]]*\]", r"\1", first)
    return None


def port(of_step: bool) -> int | None:
    """A port derived from the numbers of the job and the step; None outside of a job."""
    job, step = env.get("SLURM_JOB_ID"), env.get("SLURM_STEP_ID") if of_step else 0
    return None if job is None else _FIRST_PORT + (_STEPS * job + (step or 0)) % _PORTS


def _counts(text: str) -> list[int]:
    """The numbers in a text such as "2(x3),1", which means 2, 2, 2, 1; none for other texts."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            return []
        counts += [int(match[1])] * int(match[2] or 1)
    return counts
