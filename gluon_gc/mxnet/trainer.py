"""DistributedTrainer: gluon.Trainer whose gradients travel compressed."""

from __future__ import annotations

import itertools
import numbers
import warnings
from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

import mxnet as mx
from mxnet.gluon import Parameter, Trainer
from mxnet.ndarray import NDArray
from mxnet.optimizer import Optimizer

from .. import env
from ..agreement import Facts
from ..compression import byteps, parse, warn_of_ignored
from ..compression.momentum import has_nesterov, require_linear
from ..log import logger
from ..options import checked_epoch
from ..plan import Tensor, require_on_nonfinite, travels_compressed
from . import freshness, runtime, saving, stats, summary, trace, trainer_facts
from .algorithm import AlgorithmFrontEnd
from .algorithm_arguments import checked, require_fitting_compression
from .amp import AgreedLossScaler
from .automatic import Automatic
from .exchange import CompressingKVStore
from .gradient import Gradient, sums_of
from .learning_rates import LearningRates
from .momentum import LINEAR, Momentum, momentum_of, switched_off
from .operators import clip_factor
from .optimizer import DistributedOptimizer
from .parameters import Parameters, broadcast_initial, in_order_of_backward, tensor_of
from .separation import separate
from .totals import total

_numbers = itertools.count()  # of trainers, equal on all workers, which make them in one order


class DistributedTrainer(Trainer):
    """Applies an optimizer to parameters, with gradients averaged over all workers.

    Every worker makes its trainers, and calls their methods, in the same order.

    Parameters
    ----------
    params : ParameterDict, dict or list
        The parameters to optimize, as in gluon.Trainer. A Parameter's attribute
        ``compression_params`` (a dict, or None: not compressed) wins over the argument below. So do
        BytePS's, ``byteps_compressor_type`` and its like (`gluon_gc.compression.byteps`); without
        that one they add to the argument.
    optimizer : str or Optimizer
        As in gluon.Trainer. Where a compressor applies its momentum, the trainer's updates apply
        none; the object is not changed.
    optimizer_params : dict, optional
        As in gluon.Trainer; not changed.
    root_rank : int
        The worker whose initial parameters all others get.
    compression_params : dict, optional
        How gradients are compressed; `gluon_gc.compression.options` lists the keys.
    kvstore : None, "local", "dist_sync" or a CompressingKVStore
        What carries them; None: chosen from the environment.
    on_nonfinite : str
        What happens where a gradient has a NaN or an infinity on any worker, or what travels
        uncompressed has one in its sum (as where float16 overflows). "raise": an MXNetError that
        names the parameter and the step, on all workers, when the result is next waited for.
        "skip": all workers leave the step out, which they wait for in every step. "propagate":
        nothing. Whichever it is, what compression carries over for that chunk starts again from
        zero: the worker's momentum and residual, and the residual of the aggregator; other
        workers' go on.
    max_grad_norm : float, optional
        Clips this worker's own gradient, summed over its contexts and divided by the batch size,
        to this l2 norm over all parameters, before momentum and compression. The average over
        workers has no larger one then. `allreduce_grads` clips before `update` divides.
    update_on_kvstore : None or False
        As gluon.Trainer's: the optimizer always runs on the workers.
    algorithm : None, str or dict, optional
        How the workers average: a name of `gluon_gc.algorithms.registry`, or a dict of "name" and
        options. None: they average every gradient in every step. With an algorithm,
        compression_params say how its vectors travel, and the optimizer keeps its momentum.

    Raises
    ------
    ValueError, TypeError, KeyError
        Wrong compression_params, max_grad_norm or algorithm, or what does not go with the
        algorithm; before anything is sent.
    RuntimeError
        `init` was not called.
    """

    def __init__(
        self,
        params: Parameters,
        optimizer: Union[str, Optimizer],
        optimizer_params: Optional[Mapping[str, Any]] = None,
        root_rank: int = 0,
        compression_params: Optional[Mapping[str, Any]] = None,
        kvstore: Union[None, str, CompressingKVStore] = None,
        on_nonfinite: str = "raise",
        max_grad_norm: Optional[float] = None,
        update_on_kvstore: Optional[bool] = None,
        algorithm: Union[None, str, Mapping[str, Any]] = None,
    ) -> None:
        if update_on_kvstore:
            raise ValueError(
                f"update_on_kvstore must be None or False, got {update_on_kvstore!r}: the "
                "optimizer runs on the workers, and servers only sum"
            )
        require_on_nonfinite(on_nonfinite)
        self._on_nonfinite = on_nonfinite
        if max_grad_norm is not None:
            _check_positive("max_grad_norm", max_grad_norm)
        self._max_grad_norm = None if max_grad_norm is None else float(max_grad_norm)
        parsed = checked(algorithm, on_nonfinite, max_grad_norm, compression_params)
        if isinstance(optimizer, DistributedOptimizer):
            optimizer = optimizer._optimizer
            warning = "DistributedTrainer averages by itself: unwrapped DistributedOptimizer"
            warnings.warn(warning, stacklevel=2)
        if not isinstance(optimizer, Optimizer):
            optimizer = mx.optimizer.create(optimizer, **(optimizer_params or {}))
            optimizer_params = None
        mu, nesterov = momentum_of(optimizer) if parsed is None else (None, False)
        of_optimizer = mu, nesterov, type(optimizer).__name__
        self._compression = parse(compression_params, *of_optimizer)
        self._own_store = kvstore is not None
        self._store = (
            runtime.create_kvstore(kvstore) if self._own_store else runtime.default_kvstore()
        )
        if not 0 <= root_rank < self._store.num_workers:
            raise ValueError(
                f"root_rank must be in [0, {self._store.num_workers}), got {root_rank}"
            )
        super().__init__(params, optimizer, optimizer_params, kvstore=None)
        self._last_first = in_order_of_backward(self._params, params)
        own = [byteps.of_parameter(param, compression_params) for param in self._params]
        told = {i: spelled for i, spelled in enumerate(own) if spelled is not None}
        if parsed is not None:
            require_fitting_compression(parsed.name, *(spelled.params for spelled in told.values()))
        self._overrides = {i: spelled.parse(*of_optimizer) for i, spelled in told.items()}
        warn_of_ignored(compression_params, *(spelled.params for spelled in told.values()))
        compressions = [self._compression, *self._overrides.values()]
        self._automatic = Automatic()
        self._number = next(_numbers)
        self._algorithm: Optional[AlgorithmFrontEnd] = None
        if parsed is not None:
            self._algorithm = AlgorithmFrontEnd(
                parsed,
                f"trainer{self._number}",
                self._params,
                lambda i: self._overrides.get(i, self._compression),
                on_nonfinite,
            )
        self._momentum: Optional[Momentum] = None
        if mu is not None and any(params.mu is not None for params in compressions):
            require_linear(optimizer, LINEAR)
            self._momentum = Momentum(mu)
        self._nesterov = {
            i: has_nesterov(self._overrides.get(i), self._compression, nesterov)
            for i in range(len(self._params))
        }
        self._root_rank = root_rank
        self._declared: Dict[int, Tensor] = {}
        self._in_place: Dict[str, Gradient] = {}  # those that can be used again
        self._momentum_after: Set[int] = set()  # gradients whose compressor applies no momentum
        self._learning_rates = LearningRates()
        self._epoch: Optional[int] = None
        self._nonfinite = 0  # results so far that were not finite
        self._skipped = False  # whether the last step is left out
        self._stale = ""  # the first stale gradient that the last step took for a new one
        self._unused = False  # whether no update has used the averages yet
        self._updated = False  # whether there was an update
        self._warned = False  # of averages that no update used
        self._steps = 0  # so far, as a checkpoint says
        traced = env.get("BYTEPS_TRACE_ON") and self._number == 0
        if traced:
            trace.writable(str(self._store.local_rank))
        broadcast_initial(self._params, self._broadcast)
        self._trace = trace.Trace(str(self._store.local_rank)) if traced else None

    # Parameters

    def _broadcast(self, params: Sequence[Parameter]) -> None:
        copies = [(f"parameter {param.name}", param.list_data()) for param in params]
        self._store.broadcast_copies(copies, self._root_rank)

    def _init_kvstore(self) -> None:
        """gluon.Trainer's hook: our store was made in the constructor, and holds no weights."""
        self._update_on_kvstore = False
        self._kv_initialized = True

    def _init_params(self) -> None:
        """gluon.Trainer's hook: parameters were broadcast in the constructor."""
        self._params_to_init = []

    def _follow_cluster(self) -> None:
        """After `resume`, go on with the new cluster."""
        if self._own_store or self._store is runtime.default_kvstore():
            return
        keeps_parameters = self._algorithm is not None and self._algorithm.begun
        if keeps_parameters:
            self._algorithm.require_same_workers(runtime.goes_on())
        self._store = runtime.default_kvstore()
        self._declared.clear()
        self._nonfinite = 0
        self._momentum_after.clear()
        if not runtime.goes_on():  # these are equal on all workers, and a new one has none
            self._learning_rates.last.clear()
            if self._momentum is not None:
                self._momentum.clear()
        if not keeps_parameters:
            broadcast_initial(self._params, self._broadcast)

    # A step

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Average the gradients over all workers and update the parameters; returns at once.

        With an algorithm, the optimizer applies this worker's own gradients, divided by batch_size.
        The algorithm decides whether the workers average vectors in this step.

        Parameters
        ----------
        batch_size : int
            Of this worker. Gradients are divided by batch_size * size() before momentum and
            compression.
        ignore_stale_grad : bool
            Whether gradients may be stale, which backward has not made since the last step; the
            same on all workers. A stale gradient counts as zeros. A parameter whose gradient is
            fresh on any context of any worker is updated on all of them. If it is fresh nowhere,
            nothing is exchanged for the parameter, and its weight, residual and momentum stay as
            they are. The workers agree on what is fresh, so that this waits for them. With an
            algorithm, each worker decides by itself: it does not update a parameter whose gradient
            is stale on all of its contexts, but the algorithm averages it like all others.

        Raises
        ------
        ValueError, TypeError
            batch_size is not a positive number; nothing was sent.
        UserWarning
            A gradient of this worker is stale, and that is not to be ignored; nothing was sent.
        """
        _check_positive("batch_size", batch_size)
        if not ignore_stale_grad:
            freshness.require_fresh(self._params)
        if self._algorithm is not None:
            self._step_of_algorithm(batch_size, ignore_stale_grad)
            return
        self._reduce(batch_size, ignore_stale_grad)
        self._apply(1.0, ignore_stale_grad)

    def allreduce_grads(self, ignore_stale_grad: bool = False) -> None:
        """Average the gradients over all workers, without dividing by the batch size.

        `update` does that; in between, gradients may be looked at or changed.

        Parameters
        ----------
        ignore_stale_grad : bool
            As in `step`. Otherwise a stale gradient is averaged like any other.

        Raises
        ------
        RuntimeError
            The trainer has an algorithm, whose steps are made by `step`.
        """
        if self._algorithm is not None:
            self._algorithm.refuse_call("allreduce_grads")
        self._reduce(1, ignore_stale_grad)

    def update(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Update the parameters from the gradients that `allreduce_grads` left.

        Parameters
        ----------
        batch_size : int
            Of this worker; gradients are divided by it.
        ignore_stale_grad : bool
            As in `step`; `allreduce_grads` must have been given the same.

        Raises
        ------
        ValueError, TypeError
            batch_size is not a positive number; or stale gradients are to be ignored, but
            `allreduce_grads` has averaged one.
        UserWarning
            A gradient is stale, and that is not to be ignored.
        RuntimeError
            The trainer has an algorithm, whose steps are made by `step`.
        """
        if self._algorithm is not None:
            self._algorithm.refuse_call("update")
        _check_positive("batch_size", batch_size)
        if ignore_stale_grad and self._stale:
            raise ValueError(
                f"the gradient of {self._stale} was stale when it was averaged: call "
                "allreduce_grads(ignore_stale_grad=True) before update(..., ignore_stale_grad=True)"
            )
        self._apply(1.0 / batch_size, ignore_stale_grad)

    def set_epoch(self, epoch: int) -> None:
        """Tell compressors with a warm-up which epoch it is, counted from 0; all workers alike.

        Until it is called they compress as after the warm-up.
        """
        self._epoch = checked_epoch(epoch)
        self._store.set_epoch(self._names(), self._epoch)

    def _reduce(self, batch_size: int, ignore_stale_grad: bool) -> None:
        self._follow_cluster()
        self._steps += 1
        scaler = self._amp_loss_scaler
        shared = {
            "algorithm": None,
            "ignore_stale_grad": bool(ignore_stale_grad),
            "max_grad_norm": self._max_grad_norm,
            "AMP": scaler is not None,
        }
        about = [("the trainer", shared)]
        indices = self._exchanged(ignore_stale_grad, about)
        if scaler is not None and scaler.check([self._params[i] for i in indices], about):
            self._skipped = True  # on all workers
            return
        self._declare_all("step", about)
        if self._unused and self._updated and not self._warned:
            self._warn_of_unused(indices)
        ratios = self._ratios(indices)
        if separate(self._store, self._names(indices), ratios):
            self._moved(self._names())
        gradients = [self._params[i].list_grad() for i in indices]
        if indices:
            self._exchange(self._gathered(indices, gradients), self._scale / batch_size, ratios)
        if scaler is not None:
            self._scale = 1.0  # the loss scale is divided out
        self._skipped = self._on_nonfinite == "skip" and self._found_nonfinite()
        self._unused = bool(indices) and not self._skipped
        if self._skipped:
            return
        for i, arrays in zip(indices, gradients):
            if i in self._momentum_after:
                self._momentum.add_to_gradient(i, arrays, self._nesterov[i])

    def _step_of_algorithm(self, batch_size: int, ignore_stale_grad: bool) -> None:
        self._follow_cluster()
        self._declare_all("step")
        self._steps += 1
        freshness.renew_on_all_contexts(self._params)
        self._algorithm.step(lambda: self._apply(1.0 / batch_size, ignore_stale_grad))

    def _exchanged(self, ignore_stale_grad: bool, about: Facts) -> List[int]:
        """The parameters whose gradients are to be exchanged, in the order of backward."""
        indices = [i for i in self._last_first if self._params[i].grad_req != "null"]
        if not ignore_stale_grad:
            self._stale = freshness.first_stale(self._params)
            return indices
        self._stale = ""
        name = f"trainer{self._number}.fresh"
        fresh = freshness.fresh_anywhere(self._store, name, self._params, about)
        return [i for i in indices if fresh[i]]

    def _ratios(self, indices: Sequence[int]) -> Dict[str, float]:
        """By what the store calls these parameters, previous learning rates over the next one."""
        ratios = self._learning_rates.ratios(self._optimizer, indices)
        return {self._declared[i].name: ratio for i, ratio in ratios.items()}

    def _exchange(
        self, gradients: Mapping[str, Gradient], scale: float, ratios: Mapping[str, float]
    ) -> None:
        store = self._store
        store.gradient_scale = scale / store.num_workers
        store.exchange(gradients, factor=self._clip_factor(gradients, scale), ratios=ratios)

    def _warn_of_unused(self, indices: Sequence[int]) -> None:
        """Say that compression keeps something of gradients that no update has used."""
        kept = (i for i in indices if self._declared[i].params.keeps_state)
        first = next((i for i in kept if not self._travels_plain(i)), None)
        if first is not None:
            self._warned = True
            logger.warning(
                "allreduce_grads() is called again, but update() was not: the residual or momentum "
                "of %s has a gradient that no update has used. Decide before allreduce_grads() "
                "whether to leave a step out, or pass on_nonfinite='skip' to the trainer",
                self._params[first].name,
            )

    def _gathered(
        self, indices: Sequence[int], gradients: Sequence[Sequence[NDArray]]
    ) -> Dict[str, Gradient]:
        """Gradients by what the store calls them."""
        gathered = {}
        for i, arrays in zip(indices, gradients):
            name = self._declared[i].name
            gradient = self._in_place.get(name)
            if gradient is None or not gradient.is_of(arrays):
                gradient = self._store.gradient(name, arrays, arrays)
                if gradient.is_of(arrays):
                    self._in_place[name] = gradient
            gathered[name] = gradient
        return gathered

    def _clip_factor(self, gradients: Mapping[str, Gradient], scale: float) -> Optional[NDArray]:
        """What clips scale * gradients, those that are no integers."""
        if self._max_grad_norm is None:
            return None
        floating = [tensor.name for tensor in self._declared.values() if tensor.floating]
        arrays = sums_of([gradients[name] for name in floating if name in gradients])
        return clip_factor(arrays, scale, self._max_grad_norm)

    def _found_nonfinite(self) -> bool:
        """Whether a result is not finite, alike on all workers; waits for it."""
        before, self._nonfinite = self._nonfinite, self._store.nonfinite(self._names())
        return self._nonfinite > before

    def _apply(self, rescale: float, ignore_stale_grad: bool) -> None:
        if self._skipped:
            freshness.use_up(self._params)
        else:
            self._update_parameters(rescale, ignore_stale_grad)
            self._unused = False
            self._updated = True
        if self._trace is not None:
            self._trace.next_step()

    def _update_parameters(self, rescale: float, ignore_stale_grad: bool) -> None:
        self._optimizer.rescale_grad = rescale
        self._init_kvstore()
        if self._momentum is None:
            self._update(ignore_stale_grad)
            return
        for i, param in enumerate(self._params):
            if param.grad_req != "null":
                wd, nesterov = self._optimizer._get_wd(i), self._nesterov[i]
                self._momentum.add_weight_decay(
                    i, wd, param.list_data(), param.list_grad(), rescale, nesterov
                )
        with switched_off(self._optimizer):
            self._update(ignore_stale_grad)

    # Gradients

    def _declare_all(self, call: str, about: Facts = ()) -> List[int]:
        """The indices of the parameters that have gradients, all of them known to the store.

        If some are new, the workers compare the call, the facts `about` the trainer, the optimizer
        and the parameters.
        """
        indices = [i for i in self._last_first if self._params[i].grad_req != "null"]
        if self._algorithm is not None:
            self._begin_algorithm(call, indices)
            return indices
        new = [i for i in indices if i not in self._declared]
        tensors = [
            tensor_of(
                f"trainer{self._number}.{i}",
                self._params[i],
                i,
                self._overrides.get(i, self._compression),
                self._on_nonfinite,
            )
            for i in new
        ]
        if tensors:
            gradients = [self._params[i].list_grad()[0] for i in new]
            tensors = self._automatic.settled(self._store, tensors, gradients)
            facts = [*about, *self._facts(indices, new)]
            self._store.declare(tensors, about=facts, call=call)
            self._declared.update(zip(new, tensors))
            self._log_summary()
            self._moved([tensor.name for tensor in tensors])
            if self._momentum is not None:
                self._momentum_after.update(
                    i
                    for i, tensor in zip(new, tensors)
                    if tensor.params.mu is None or self._travels_plain(i)
                )
        return indices

    def _begin_algorithm(self, call: str, indices: Sequence[int]) -> None:
        """Have the algorithm ready in the store; all workers call this."""
        if not self._algorithm.begun_in(self._store, indices):
            about = "the trainer", {"algorithm": self._algorithm.described}
            facts = [about, *self._facts(indices, indices)]
            self._algorithm.begin(self._store, indices[::-1], call, facts)
            self._log_summary()
            self._moved(self._names())

    def _facts(self, indices: Sequence[int], new: Sequence[int]) -> Facts:
        """What workers compare of the optimizer of some parameters, and of those that are new."""
        return [
            *trainer_facts.of_optimizer(self._optimizer, indices),
            *trainer_facts.of_parameters(self._optimizer, {i: self._params[i] for i in new}),
        ]

    def _moved(self, names: Collection[str]) -> None:
        """Some of these tensors have new messages: let them go on in this epoch and step."""
        if self._epoch is not None:
            self._store.set_epoch(names, self._epoch)
        if self._on_nonfinite == "skip":
            self._nonfinite = self._store.nonfinite(self._names())

    def _travels_plain(self, index: int) -> bool:
        minimum = env.get("BYTEPS_MIN_COMPRESS_BYTES")
        return not travels_compressed(self._declared[index], minimum)

    def _names(self, indices: Optional[Sequence[int]] = None) -> Set[str]:
        """What the store calls these parameters, or all that it knows."""
        if self._algorithm is not None:
            return {tensor.name for tensor in self._algorithm.tensors.values()}
        return {self._declared[i].name for i in (self._declared if indices is None else indices)}

    def _traveling(self) -> Dict[Tuple[int, str], Tensor]:
        """By the parameter's number and the kind of the round, "" without an algorithm."""
        if self._algorithm is not None:
            return self._algorithm.tensors
        return {(i, ""): tensor for i, tensor in self._declared.items()}

    def _log_summary(self) -> None:
        if self._store.rank == 0:
            logger.info("%s", "; ".join(self._summary()))

    def __repr__(self) -> str:
        return "\n  ".join(self._summary())

    def _summary(self) -> List[str]:
        """What it is, and what travels compressed how."""
        optimizer = type(self._optimizer).__name__
        head = f"{type(self).__name__}: {optimizer}, {summary.of_store(self._store)}"
        noun = "gradient"
        if self._algorithm is not None:
            head, noun = f"{head}, algorithm {self._algorithm.described}", "vector"
        names = self._names()
        if names:
            return [head, *summary.of_tensors(self._store, names, noun)]
        return [head, f"no {noun}s yet: {summary.of_params(self._compression)}"]

    def compression_stats(self, reset: bool = False) -> Dict[str, Any]:
        """What one step moves and takes, by parameter name under "tensors", and in all: "total".

        With an algorithm, "tensors" has the vectors of its rounds, such as "difference of w". All
        numbers are then averages over rounds.

        Each is a dict of raw_bytes (of the gradient), pushed_bytes and pulled_bytes (of the
        messages that this worker sends and receives), ratio (raw_bytes / pushed_bytes, None where
        nothing is sent, as by workers of one machine that share memory), bits_per_element (of what
        is pushed), and compress_seconds, wait_seconds and decompress_seconds: averages of the steps
        so far. Chunks are at work at the same time, so the seconds add up to more than a step
        takes. Waits until all steps are done.

        "total" has exposed_seconds too, which is the most that training waits for: the time from
        when the last gradient of a step begins to be compressed, or copied if it travels
        uncompressed, until all averages are written to the gradients. What is done before, backward
        hides; the next step's forward may begin with those parameters that are updated already.
        With `max_grad_norm` nothing begins before all gradients are made, and where a machine has
        several workers, a tensor begins when they have summed it. An average of the steps so far,
        64 at most.

        Parameters
        ----------
        reset : bool
            Whether the next averages are of later steps alone.
        """
        tensors = {
            f"{kind} of {self._params[i].name}" if kind else self._params[i].name: tensor
            for (i, kind), tensor in self._traveling().items()
        }
        return stats.of_step(self._store, tensors, reset)

    # AMP: amp.init_trainer sets this attribute

    @property
    def _amp_loss_scaler(self) -> Optional[AgreedLossScaler]:
        return self.__dict__.get("_agreed_loss_scaler")

    @_amp_loss_scaler.setter
    def _amp_loss_scaler(self, scaler: Any) -> None:
        if self._algorithm is not None:
            self._algorithm.refuse_call("amp.init_trainer")
        name = f"trainer{self._number}.overflow"
        self._agreed_loss_scaler = AgreedLossScaler(
            scaler, lambda flag, about: total(self._store, name, flag, "step", about)
        )

    # Checkpoints

    def save_states(self, fname: str) -> None:
        """Save the optimizer's state with this worker's residuals and momentum.

        With an algorithm, its state and this worker's own parameters are in the file as well.

        Residuals differ between workers, so each saves its own file. What the servers of a
        cluster carry over is in that of rank 0. A file of that name is replaced once the new one
        is whole and on disk, and left as it is if anything fails; `gluon_gc.checkpoint` has the
        format.
        """
        saving.save(self, fname)

    def load_states(self, fname: Union[str, Sequence[str]], strict: bool = True) -> None:
        """Go on from what `save_states` saved; all workers call it, each with its own file.

        Nothing is used before all workers have checked all they load. Parameters are told by
        their names; if these differ, but shapes and dtypes agree, by their order, with a warning.
        How many servers there are, and how gradients are cut into chunks, may change. Of a file
        that gluon.Trainer saved the optimizer's state is loaded, with a warning; what compression
        carries over starts from zero. Load only what you trust: the optimizer's part is MXNet's
        pickle, which can run code.

        Parameters
        ----------
        fname : str or list of str
            This worker's file. If not strict: or those of all workers, in any order, on every
            worker, whose number may have been another. Each then goes on with an even share of the
            sum of all residuals, and of momenta, so that these sums stay what they were.
        strict : bool
            If not, parameters that are not in the file start from zero, and those that are not
            here are ignored; the log says which.

        Raises
        ------
        ValueError
            A file is of other parameters, another compression, rank, step or number of workers; it
            is damaged, or not one of `save_states`. Nothing has changed then.
        RuntimeError
            Another worker refuses its file, or has one of another step. Nothing has changed then.
        """
        saving.load(self, fname, strict)


def _check_positive(name: str, value: Any) -> None:
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {value!r} ({type(value).__name__})")
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be > 0 and finite, got {value!r}")
