"""Training across sites: rounds of local steps through an object store.

The workers need not reach each other, and may start, crash, lag or leave at any moment. All have
the same bits after each round. docs/design/mailbox.md explains the protocol.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from typing import Any, Mapping

from .. import env
from ..algorithms.base import Algorithm
from ..options import require_arguments
from .run import Run, Site
from .signals import exit_at_sigterm

__all__ = [
    "Run",
    "Site",
    "connect",
    "current",
    "disconnect",
    "report_loss",
    "rounds",
    "worker_name",
    "worker_seed",
]

SETTINGS = ("min_workers", "grace", "keep", "samples_per_step", "worker_name", "site")
_current: Run | None = None


def requested(url: str | None, settings: Mapping[str, Any]) -> str | None:
    """The URL that bps.init was given, or that of the environment; None without a mailbox.

    TypeError if a setting is unknown, or if there are settings of a mailbox, but none.
    """
    require_arguments(settings, (*SETTINGS, "timeout", "mailbox", "lazy"), "bps.init")
    url = url or env.get("GLUON_GC_MAILBOX")
    if settings and not url:
        raise TypeError(f"{next(iter(settings))} is for runs with a mailbox, which is missing")
    return url


def connect(url: str, framework: str, **settings: Any) -> Run:
    """Make this process a worker of a run, until `disconnect` or its end; see `Run`.

    At SIGTERM and Ctrl-C, the worker puts what it has and leaves. After an error, it only leaves.
    """
    global _current
    url = os.fspath(url)
    own = {name: value for name, value in settings.items() if name != "site"}
    if _current is None:
        _current = Run(url, framework, **settings)
        _current.given = url, own
        atexit.register(_leave_at_exit)
        exit_at_sigterm()
    elif _current.given[0] != url or own not in ({}, _current.given[1]):
        raise RuntimeError(
            f"this process is a worker of the run at {_current.url}: call bps.shutdown() before it "
            f"joins the run at {url}, or with other settings"
        )
    return _current


def require_algorithm(algorithm: Algorithm | None) -> None:
    """Raise ValueError if there is a run whose rounds an optimizer or trainer would not make."""
    if algorithm is None and _current is not None:
        raise ValueError(
            "algorithm must be {'name': 'local_steps', ...} with a mailbox, got None: nothing "
            "would be averaged with the other workers of the run"
        )


def require_no_run(call: str) -> None:
    """Raise RuntimeError if this process is a worker of a run, which has no such call."""
    if _current is not None:
        raise RuntimeError(
            f"bps.{call} is for clusters, but this process is a worker of the run at "
            f"{_current.url}: workers join and leave a run without it"
        )


def require_current() -> Run:
    """The run of this process. RuntimeError if it is not a worker of one."""
    if _current is None:
        raise RuntimeError("this process has no mailbox: call bps.init(mailbox=URL) first")
    return _current


def worker_name() -> str:
    """This worker's name in its run, which is another one after each start.

    The workers of a site have one name. RuntimeError without a mailbox.
    """
    return require_current().worker


def worker_seed() -> int:
    """A number from 0 to 2^32 - 1 that depends on `worker_name`, as a seed for shuffling data."""
    return require_current().seed


def rounds() -> int:
    """The number of rounds that the run has made, as far as this worker knows.

    It goes on when workers start again, so that learning rates and the end of training can depend
    on it. All workers of a site call this together.
    """
    return require_current().rounds


def report_loss(loss: float) -> None:
    """Show this loss to those who watch the run, with this worker's next round.

    In a site, it is that of worker 0, or of each shard's worker.
    """
    require_current().report_loss(loss)


def current() -> Run | None:
    """The run of this process, if it is a worker of one."""
    return _current


def disconnect() -> None:
    """Leave the run, if this process is a worker of one.

    The worker puts what it has, unless this is called in a ``finally`` or ``except`` block that an
    error has reached: the parameters may be wrong then. Ctrl-C and sys.exit are no errors.
    """
    _leave(sys.exc_info()[1])


def _leave(error: BaseException | None) -> None:
    global _current
    run, _current = _current, None
    atexit.unregister(_leave_at_exit)
    if run is not None:
        run.close(puts=isinstance(error, StopIteration) or not isinstance(error, Exception))


def _leave_at_exit() -> None:
    interactive = hasattr(sys, "ps1")  # an earlier error does not end a session
    with suppress(KeyboardInterrupt, SystemExit):  # of signals meanwhile: the process ends anyway
        _leave(None if interactive else getattr(sys, "last_value", None))


def _forget() -> None:
    """In a process that this one has forked, be no worker."""
    global _current
    _current = None


os.register_at_fork(after_in_child=_forget)
