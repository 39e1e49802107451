"""The process in its cluster: init, shutdown, ranks, and push-pull of single tensors."""

from __future__ import annotations

import itertools
import sys
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Union

import mxnet as mx
import numpy as np
from mxnet.gluon import Parameter, ParameterDict
from mxnet.ndarray import NDArray

from .. import env
from ..compression import CompressionParams, byteps, warn_of_ignored
from ..launch import places
from ..launch.leaving import failure
from ..log import warn_of_misspelt
from ..plan import Tensor, require_on_nonfinite
from .exchange import CompressingKVStore
from .gradient import legacy, params_for
from .kvstore import GluonGCHorovod, GluonGCLocal, GluonGCMachine, GluonGCParameterServer
from .suspension import Suspended, all_fit


class _Declared(NamedTuple):
    """What `byteps_declare_tensor` was told."""

    params: CompressionParams = CompressionParams()
    on_nonfinite: Optional[str] = None


_CONNECTED = {
    backend.type: backend for backend in (GluonGCParameterServer, GluonGCHorovod, GluonGCMachine)
}
_default: Optional[CompressingKVStore] = None
_declared: Dict[str, _Declared] = {}
_nameless = itertools.count(1)  # tensors that got a name here
_suspended: Optional[Suspended] = None
_goes_on = False  # whether all workers go on as they were before `suspend`


def create_kvstore(kvstore: Union[None, str, CompressingKVStore] = None) -> CompressingKVStore:
    """The backend that a name means.

    Parameters
    ----------
    kvstore : None, "local", "dist_sync", "horovod" or a backend object
        None: the parameter server if the environment describes one (`env.distributed`), Horovod
        if horovodrun or mpirun started this process, the memory that they share if all workers
        are one machine's, else local. A process has one connection, which all trainers share.

    Raises
    ------
    ConfigurationError
        The environment says that there are other workers, but not how to reach them.
    ValueError
        Another name.
    TypeError
        An object that is not a backend.
    """
    if isinstance(kvstore, CompressingKVStore):
        return kvstore
    if kvstore is None:
        kvstore = _of_environment()
    if not isinstance(kvstore, str):
        raise TypeError(
            "kvstore must be 'local', 'dist_sync', 'horovod' or a CompressingKVStore, "
            f"got {kvstore!r}"
        )
    if kvstore == "local":
        return GluonGCLocal()
    if kvstore == "dist_sync" and env.shares_machine():
        kvstore = "machine"
    if kvstore not in _CONNECTED:
        raise ValueError(f"kvstore must be 'local', 'dist_sync' or 'horovod', got '{kvstore}'")
    backend = _CONNECTED[kvstore]
    store = backend.connected or backend()
    if kvstore == "horovod" and not env.is_set("HOROVOD_RANK"):
        _require_all(store)
    return store


def _of_environment() -> str:
    """The name of the backend that the environment describes."""
    if env.distributed():
        return "dist_sync"
    if env.under_horovod():
        return "horovod"
    if env.shares_machine():
        return "machine"
    place = None if env.is_worker() else places.find()
    if place is not None and place.size > 1:
        raise env.ConfigurationError(
            f"{place}, but MXNet's workers need servers or Horovod: start them with bpslaunch or "
            "horovodrun"
        )
    places.require_alone()
    return "local"


def _require_all(store: CompressingKVStore) -> None:
    """Refuse a Horovod that knows nothing of the workers that mpirun has started."""
    place = places.find()
    if place is not None and place.size != store.num_workers:
        raise env.ConfigurationError(
            f"{place}, but Horovod has {store.num_workers}: start the workers with horovodrun, or "
            "build Horovod with MPI"
        )


def init(lazy: bool = True) -> None:
    """Join the cluster that the environment describes; alone, be a cluster of one.

    Once joined, an uncaught exception ends the process at once, so that the others hear of it.
    Calling it again does nothing.

    Parameters
    ----------
    lazy : bool
        Ignored: BytePS's workers meet their servers at the first tensor if it is true; here they
        always do it at once.

    Raises
    ------
    ConfigurationError
        A DMLC or BYTEPS variable is missing or wrong.
    ConnectionError
        The scheduler cannot be reached.
    """
    global _default, _goes_on
    if _default is not None:
        return
    store = _default = create_kvstore()
    suspended, _goes_on = _suspended, all_fit(store, _suspended)
    if suspended is not None:
        store.when_declared = lambda names: suspended.give_back(store, names, _goes_on)
    if _default.local_rank == 0:  # the others of its machine were given the same variables
        warn_of_misspelt()


def shutdown() -> None:
    """Finish what is under way and leave the cluster, when all workers have come here.

    Called while an exception is in flight, as in a ``finally`` block, it leaves at once: the others
    end, and say why.
    """
    global _default, _nameless, _suspended
    store, _default, _suspended = _default, None, None
    _declared.clear()
    _nameless = itertools.count(1)
    if store is None:
        return
    why = failure(sys.exc_info()[1])
    if why:
        store.abandon(why)
    else:
        store.close()


def suspend() -> None:
    """Leave the cluster when all workers have come here, to `resume` in another.

    What compression carries over is kept, and summed over all workers.
    """
    global _suspended
    leaving = _default is None or failure(sys.exc_info()[1])
    suspended = None if leaving else Suspended(_default)
    shutdown()
    _suspended = suspended


def resume(num_workers: int, num_servers: int, global_rank: int = -1) -> None:
    """Join a cluster of another size, whose scheduler and servers are new.

    Trainers go on with it at their next step: parameters are broadcast from the root rank. If all
    workers are those that were there, with their ranks, they go on bit for bit. Else, where W
    workers are now W', each who was there has 1 / min(W, W') of the sum of all residuals, and of
    all momenta, and who is new starts from zero, as servers do.

    Parameters
    ----------
    num_workers, num_servers : int
        Instead of DMLC_NUM_WORKER and DMLC_NUM_SERVER. One machine's worker then trains by itself,
        unless BYTEPS_FORCE_DISTRIBUTED is set.
    global_rank : int
        Instead of DMLC_WORKER_ID; -1: as before.
    """
    env.resize(num_workers, num_servers, None if global_rank == -1 else global_rank)
    init()


def goes_on() -> bool:
    """Whether all workers go on as they were before `suspend`."""
    return _goes_on


def default_kvstore() -> CompressingKVStore:
    """The backend that `init` chose; RuntimeError before `init`."""
    if _default is None:
        raise RuntimeError("gluon_gc has not been initialized; call bps.init() first")
    return _default


def rank() -> int:
    """This worker's number, from 0 to `size` - 1: DMLC_WORKER_ID and BYTEPS_LOCAL_RANK."""
    return default_kvstore().rank


def size() -> int:
    """Number of workers."""
    return default_kvstore().num_workers


def local_rank() -> int:
    """This worker's number on its machine."""
    return default_kvstore().local_rank


def local_size() -> int:
    """Number of workers on this machine."""
    return default_kvstore().local_size


def byteps_declare_tensor(
    name: str, on_nonfinite: Optional[str] = None, **compression_params: Any
) -> None:
    """Name a tensor that `byteps_push_pull` will exchange.

    Parameters
    ----------
    name : str
        The same on all workers, which must declare their tensors in the same order.
    on_nonfinite : None, "raise", "skip" or "propagate"
        What happens where it has a NaN or an infinity on any worker, as `DistributedTrainer` has
        it; "skip" makes the result zeros, on all workers. None: "raise" if the tensor is
        compressed, or else "propagate".
    **compression_params
        As `DistributedTrainer` takes them, or in BytePS's spelling, byteps_compressor_type and its
        like (`gluon_gc.compression.byteps`). Momentum needs byteps_momentum_mu.
    """
    spelled = byteps.translate(compression_params)
    params = spelled.parse().require_chosen()
    if on_nonfinite is not None:
        require_on_nonfinite(on_nonfinite)
    warn_of_ignored(spelled.params)
    _declared.setdefault(name, _Declared(params, on_nonfinite))


def byteps_push_pull(
    tensor: NDArray,
    version: int = 0,
    priority: int = 0,
    name: Optional[str] = None,
    is_average: bool = True,
) -> None:
    """Replace `tensor` by its sum or average over all workers; returns at once.

    Parameters
    ----------
    tensor : NDArray
        Any shape; as many elements of the same dtype whenever the name is used.
    version : int
        Ignored, as in BytePS.
    priority : int
        Larger ones are sent first.
    name : str, optional
        Which tensor this is, on all workers. Each call without one is of another tensor, "noname.1"
        and so on in the order of the calls, for which memory is kept: name what comes again.
    is_average : bool
        Average if true, else sum.

    Raises
    ------
    ValueError
        The name was used with another number of elements or dtype.
    MXNetError
        When the result is waited for: it is not finite, and was declared to be refused then.
    """
    store = default_kvstore()
    if name is None:
        name = f"noname.{next(_nameless)}"
    key = f"byteps.{name}"
    declared = _declared.get(name, _Declared())
    if not store.declared(key):
        store.declare([_described(tensor, key, name, declared)])
    store.gradient_scale = 1.0 / store.num_workers if is_average else 1.0
    store.pushpull(key, tensor, priority=priority)
    if declared.on_nonfinite == "skip" and np.dtype(tensor.dtype).kind == "f":
        _make_zero_unless_finite(*legacy([tensor]))


def _described(tensor: NDArray, key: str, name: str, declared: _Declared) -> Tensor:
    params = params_for(tensor, declared.params)
    otherwise = "propagate" if params.compressor is None else "raise"
    dtype, how = np.dtype(tensor.dtype).name, declared.on_nonfinite or otherwise
    return Tensor(key, tensor.size, dtype, params, called=f"tensor '{name}'", on_nonfinite=how)


def _make_zero_unless_finite(tensor: NDArray) -> None:
    finite = mx.nd.multi_all_finite(tensor, num_arrays=1)
    row = tensor.reshape((1, -1))
    mx.nd.where(finite, row, mx.nd.zeros_like(row), out=row)


def broadcast_parameters(
    params: Union[ParameterDict, Mapping[str, Any], Sequence[Any]], root_rank: int = 0
) -> None:
    """Overwrite parameters on all workers with those of one, bit for bit.

    Parameters
    ----------
    params : ParameterDict, dict or list
        Of Parameters or NDArrays, initialized, the same on all workers.
    root_rank : int
        The worker that has the right ones.
    """
    if isinstance(params, (dict, ParameterDict)):
        params = [params[name] for name in sorted(params.keys())]
    copies = [p.list_data() if isinstance(p, Parameter) else [p] for p in params]
    default_kvstore().broadcast_copies(copies, root_rank)
