"""Lets gluon.Trainer take gluon_gc's KVStores by name.

If parameters have one context, gluon.Trainer ignores each name without "dist", even a registered
one.
"""

from __future__ import annotations

from typing import Any, Collection

import mxnet as mx
from mxnet.gluon import trainer


def heed(names: Collection[str]) -> None:
    """Let gluon.Trainer create the stores of these names with mx.kv.create."""
    create = trainer._create_kvstore
    lower = [name.lower() for name in names]

    def create_ours(kvstore: Any, *others: Any) -> Any:
        if isinstance(kvstore, str) and kvstore.lower() in lower:
            kvstore = mx.kv.create(kvstore)
        return create(kvstore, *others)

    trainer._create_kvstore = create_ours
