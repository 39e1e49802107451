"""Frees the messages of trainers that no worker uses any more.

Python frees a trainer at another time on each worker, but all workers must withdraw its tensors
together. They do so when another trainer declares its own.
"""

from __future__ import annotations

import gc

import mxnet as mx
import numpy as np

from ...agreement import Facts
from .exchange import Exchange
from .totals import total

_MOST = 64  # owners that are looked at together, the oldest first


def withdraw_dropped(exchange: Exchange, call: str, about: Facts) -> None:
    """Withdraw the tensors of owners that no worker has any more; all workers call this.

    It waits for all exchanges, unless there is only one owner.

    Parameters
    ----------
    exchange : Exchange
    call : str
        The user's function that needs this, for errors.
    about : Facts
        Facts that must be the same on all workers.
    """
    owners = list(exchange.owners.items())[:_MOST]
    if len(exchange.owners) < 2:
        return
    names = [name for name, _ in owners]
    exchange.agree(call, [*about, ("the process", {"trainers": names})])
    gc.collect()  # a trainer refers to itself
    dropped = np.zeros(_MOST, np.float32)
    dropped[: len(owners)] = [owner() is None for _, owner in owners]
    on_workers = total(exchange, "dropped", mx.nd.array(dropped), call).asnumpy()
    for (name, _), workers in zip(owners, on_workers):
        if workers == exchange.num_workers:
            del exchange.owners[name]
            tensors = exchange.channels.tensors
            exchange.withdraw([tensor for tensor in tensors if tensor.startswith(f"{name}.")])
