"""Lets gluon.Trainer take our stores by name.

Where parameters have one context, it makes no store of a name without "dist" in it, known or not.
"""

from __future__ import annotations

from typing import Any, Collection

import mxnet as mx
from mxnet.gluon import trainer


def heed(names: Collection[str]) -> None:
    """Have gluon.Trainer make the stores of these names, as mx.kv.create does."""
    create = trainer._create_kvstore
    lower = [name.lower() for name in names]

    def create_ours(kvstore: Any, *others: Any) -> Any:
        if isinstance(kvstore, str) and kvstore.lower() in lower:
            kvstore = mx.kv.create(kvstore)
        return create(kvstore, *others)

    trainer._create_kvstore = create_ours
