"""The backends as KVStores of MXNet, for gluon.Trainer and `mx.kv.create`."""

from __future__ import annotations

import itertools
from typing import Any, Mapping, Sequence, Union

import mxnet as mx
import numpy as np
from mxnet.gluon import trainer
from mxnet.kvstore import KVStoreBase
from mxnet.ndarray import NDArray

from ...compression import CompressionParams, parse, warn_of_ignored
from ...exchange.plan import Tensor
from ..exchange.exchange import Exchange
from ..exchange.gradient import Job, legacy, params_for
from .horovod.backend import Horovod
from .local import Local
from .one_machine.backend import OneMachine
from .parameter_server.backend import ParameterServer

Arrays = Union[NDArray, Sequence[NDArray]]


class CompressingKVStore(KVStoreBase):
    """A `KVStoreBase` plug-in whose `pushpull` compresses.

    All calls are collective: every worker makes them with the same keys in the same order.
    `pushpull` is asynchronous: it returns at once, and reading the arrays waits for the result.
    Each store has its own keys, even if several stores share a backend.

    Parameters
    ----------
    exchange : Exchange
        The backend that sums the gradients.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self._params = CompressionParams()
        self._tensors: dict[str, str] = {}  # by key, the tensor's name in the exchange

    @property
    def type(self) -> str:
        """The name of the backend."""
        return self.exchange.type

    @property
    def rank(self) -> int:
        """The rank of this worker."""
        return self.exchange.rank

    @property
    def num_workers(self) -> int:
        """The number of workers."""
        return self.exchange.num_workers

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """Set the compression of keys that are broadcast after this call.

        Parameters
        ----------
        compression_params : mapping
            As `DistributedTrainer` takes them.

        Raises
        ------
        ValueError
            A value is wrong. "momentum", "auto", and "ef" "corrected" or "sparse" are wrong, too: a
            plain Trainer does not tell its store the momentum, all gradients of a step, or the
            learning rate.
        """
        self._params = (
            parse(compression_params).require_chosen().require_no_optimizer().require_no_inner()
        )
        warn_of_ignored(compression_params)

    def broadcast(self, key: Any, value: NDArray, out: Arrays, priority: int = 0) -> None:
        """Copy rank 0's `value` to `out`, and declare a gradient of its size and dtype as `key`.

        Raises
        ------
        ValueError
            The key was broadcast before. Nothing was sent.
        """
        if str(key) in self._tensors:
            raise ValueError(
                f"key {key!r} was broadcast before: give each Trainer a store of its own"
            )
        exchange = self.exchange
        result = value.as_nd_ndarray().copy()
        exchange.broadcast([result], root_rank=0)
        for array in legacy(_as_list(out)):
            result.copyto(array)
        names = (f"key.{key}.{number}" for number in itertools.count())
        tensor = Tensor(
            next(name for name in names if not exchange.declared(name)),
            value.size,
            np.dtype(value.dtype).name,
            params_for(value, self._params),
            index=len(self._tensors),
            called=f"the gradient of key {key}",
            on_nonfinite="propagate" if self._params.compressor is None else "raise",
        )
        exchange.declare([tensor])
        self._tensors[str(key)] = tensor.name

    def pushpull(self, key: Any, value: Any, out: Any | None = None, priority: int = 0) -> None:
        """Sum each value over contexts and workers.

        Parameters
        ----------
        key : key or list of keys
            The keys were broadcast before.
        value : NDArray or list of NDArray, or with a list of keys, a list of them
            One array for each context.
        out : same type as value, optional
            The arrays that receive the sum. By default, the sum overwrites `value`.
        priority : int
            The priority of the first chunk. Later chunks have lower priorities.

        Raises
        ------
        KeyError
            A key was not broadcast.
        ValueError
            The number of elements or the dtype of a value differs from the broadcast one.
        """
        keys, values, outs = [key], [value], [out]
        if isinstance(key, (list, tuple)):
            keys, values = list(key), list(value)
            outs = list(out) if out is not None else [None] * len(keys)
        gradients = {}
        for key, arrays, targets in zip(keys, values, outs):
            if str(key) not in self._tensors:
                raise KeyError(f"key {key!r} was not broadcast")
            name, arrays = self._tensors[str(key)], _as_list(arrays)
            targets = arrays if targets is None else _as_list(targets)
            gradients[name] = self.exchange.channels.gradient(name, arrays, targets)
        self.exchange.start(Job(gradients), priority)

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Return False for "optimizer": the optimizer runs on the workers, not in the store."""
        if capability.lower() == KVStoreBase.OPTIMIZER:
            return False
        raise ValueError(f"Unknown capability: {capability}")


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


@KVStoreBase.register
class GluonGCLocal(CompressingKVStore):
    """The KVStore of one process, without a network. See `Local`."""

    def __init__(self) -> None:
        super().__init__(Local())


@KVStoreBase.register
class GluonGCParameterServer(CompressingKVStore):
    """The KVStore over MXNet's parameter server. See `ParameterServer`."""

    def __init__(self) -> None:
        super().__init__(ParameterServer.connection())


@KVStoreBase.register
class GluonGCHorovod(CompressingKVStore):
    """The KVStore over Horovod. See `Horovod`."""

    def __init__(self) -> None:
        super().__init__(Horovod.connection())


@KVStoreBase.register
class GluonGCMachine(CompressingKVStore):
    """The KVStore of one machine's workers. See `OneMachine`."""

    def __init__(self) -> None:
        super().__init__(OneMachine.connection())


def accept_names() -> None:
    """Let gluon.Trainer create our stores by name, with mx.kv.create. The Module API refuses them.

    If parameters have one context, both ignore each name without "dist", even a registered one.
    """
    create = trainer._create_kvstore
    names = [store.__name__.lower() for store in CompressingKVStore.__subclasses__()]

    def is_our_name(kvstore: Any) -> bool:
        return isinstance(kvstore, str) and kvstore.lower() in names

    def create_ours(kvstore: Any, *others: Any) -> Any:
        return create(mx.kv.create(kvstore) if is_our_name(kvstore) else kvstore, *others)

    def refuse_ours(kvstore: Any, *others: Any) -> Any:
        if is_our_name(kvstore) or isinstance(kvstore, CompressingKVStore):
            name = kvstore if isinstance(kvstore, str) else type(kvstore).__name__
            raise ValueError(
                f"kvstore {name} is for gluon.Trainer, not for the Module API: pass kvstore=None "
                "and bps.DistributedOptimizer(optimizer)"
            )
        return create(kvstore, *others)

    trainer._create_kvstore = create_ours
    mx.model._create_kvstore = mx.module.module._create_kvstore = refuse_ours
