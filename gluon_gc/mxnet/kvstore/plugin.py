"""The exchanges as MXNet's KVStores, for gluon.Trainer and for `mx.kv.create`."""

from __future__ import annotations

from typing import Any, List, Mapping, Optional, Sequence, Union

import numpy as np
from mxnet.kvstore import KVStoreBase
from mxnet.ndarray import NDArray

from ...compression import CompressionParams, parse, warn_of_ignored
from ...plan import Tensor
from ..exchange import Exchange
from ..gradient import legacy, params_for
from ..job import Job
from .horovod.backend import Horovod
from .local import Local
from .one_machine.backend import OneMachine
from .parameter_server.backend import ParameterServer

Arrays = Union[NDArray, Sequence[NDArray]]


class CompressingKVStore(KVStoreBase):
    """A `KVStoreBase` plug-in whose pushpull compresses.

    All calls are collective: every worker makes them with the same keys in the same order.
    `pushpull` returns at once; the result is there when the arrays are next read.

    Parameters
    ----------
    exchange : Exchange
        It carries the gradients.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self._params = CompressionParams()

    @property
    def type(self) -> str:
        """The name of the backend."""
        return self.exchange.type

    @property
    def rank(self) -> int:
        """This worker's number."""
        return self.exchange.rank

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        return self.exchange.num_workers

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """Compress the keys that are broadcast from now on; see `DistributedTrainer`.

        Raises
        ------
        ValueError
            Also for "momentum", whose value a plain Trainer does not tell, and for "auto".
        """
        self._params = parse(compression_params).require_chosen()
        warn_of_ignored(compression_params)

    def broadcast(self, key: Any, value: NDArray, out: Arrays, priority: int = 0) -> None:
        """Overwrite `out` with rank 0's `value`, and expect gradients of its shape under `key`."""
        exchange = self.exchange
        result = value.as_nd_ndarray().copy()
        exchange.broadcast([result], root_rank=0)
        for array in legacy(_as_list(out)):
            result.copyto(array)
        if not exchange.declared(str(key)):
            tensor = Tensor(
                str(key),
                value.size,
                np.dtype(value.dtype).name,
                params_for(value, self._params),
                index=len(exchange.channels.tensors),
                called=f"the gradient of key {key}",
                on_nonfinite="propagate" if self._params.compressor is None else "raise",
            )
            exchange.declare([tensor])

    def pushpull(self, key: Any, value: Any, out: Optional[Any] = None, priority: int = 0) -> None:
        """Sum each value over contexts and workers, into `out` if given, else in place.

        Parameters
        ----------
        key : key or list of keys
            As `broadcast` got them.
        value : NDArray or list of NDArray; for a list of keys, a list of those
            One array a context.
        out : as value, optional
            The arrays that get the sum; all others keep their values.
        priority : int
            Of the first chunk; later chunks have lower ones.

        Raises
        ------
        KeyError
            A key was not broadcast.
        ValueError
            A value has another number of elements, or another dtype, than was broadcast.
        """
        keys, values, outs = [key], [value], [out]
        if isinstance(key, (list, tuple)):
            keys, values = list(key), list(value)
            outs = list(out) if out is not None else [None] * len(keys)
        gradients = {}
        for name, arrays, targets in zip(keys, values, outs):
            if not self.exchange.declared(str(name)):
                raise KeyError(f"key {name!r} was not declared or broadcast")
            arrays = _as_list(arrays)
            targets = arrays if targets is None else _as_list(targets)
            gradients[str(name)] = self.exchange.channels.gradient(str(name), arrays, targets)
        self.exchange.start(Job(gradients), priority)

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Whether the optimizer can run in the store: no."""
        if capability.lower() == KVStoreBase.OPTIMIZER:
            return False
        raise ValueError(f"Unknown capability: {capability}")


def _as_list(value: Any) -> List[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


@KVStoreBase.register
class GluonGCLocal(CompressingKVStore):
    """One process: see `Local`."""

    def __init__(self) -> None:
        super().__init__(Local())


@KVStoreBase.register
class GluonGCParameterServer(CompressingKVStore):
    """MXNet's parameter server: see `ParameterServer`."""

    def __init__(self) -> None:
        super().__init__(ParameterServer())


@KVStoreBase.register
class GluonGCHorovod(CompressingKVStore):
    """Horovod: see `Horovod`."""

    def __init__(self) -> None:
        super().__init__(Horovod())


@KVStoreBase.register
class GluonGCMachine(CompressingKVStore):
    """The workers of one machine: see `OneMachine`."""

    def __init__(self) -> None:
        super().__init__(OneMachine())
