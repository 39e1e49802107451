"""Frees the messages of trainers that no worker uses any more.

Python frees a trainer at another time on each worker, but all workers must withdraw its tensors
together. They do so when another trainer declares its own.
"""

from __future__ import annotations

import gc

import mxnet as mx
import numpy as np

from .exchange import Exchange
from .totals import total

_MOST = 64  # owners that are looked at together, the oldest first


def withdraw_dropped(exchange: Exchange, call: str) -> None:
    """Withdraw the tensors of owners that no worker has any more; all workers call this.

    It waits for all exchanges, unless there is only one owner.
    """
    owners = list(exchange.owners.items())[:_MOST]
    if len(exchange.owners) < 2:
        return
    exchange.agree(call, [("the process", {"trainers": [name for name, _ in owners]})])
    gc.collect()  # a trainer refers to itself
    dropped = np.zeros(_MOST, np.float32)
    dropped[: len(owners)] = [owner() is None for _, owner in owners]
    on_workers = total(exchange, "dropped", mx.nd.array(dropped), call).asnumpy()
    for (name, _), workers in zip(owners, on_workers):
        if workers == exchange.num_workers:
            del exchange.owners[name]
            tensors = exchange.channels.tensors
            exchange.withdraw([tensor for tensor in tensors if tensor.startswith(f"{name}.")])
