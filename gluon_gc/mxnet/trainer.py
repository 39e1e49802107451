"""DistributedTrainer: gluon.Trainer whose gradients travel compressed."""

from __future__ import annotations

import itertools
import numbers
import warnings
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

import mxnet as mx
from mxnet.gluon import Parameter, Trainer
from mxnet.optimizer import Optimizer

from .. import env
from ..compression import parse
from ..compression.momentum import require_linear
from ..log import logger
from ..options import checked_epoch
from ..plan import require_on_nonfinite
from . import freshness, runtime, saving, stats, summary, trace
from .algorithm import AlgorithmAveraging
from .algorithm_arguments import checked
from .amp import AgreedLossScaler
from .broadcasts import broadcast_copies
from .compressions import Compressions
from .gradient_averaging import GradientAveraging
from .kvstore import CompressingKVStore
from .momentum import LINEAR, Momentum, momentum_of, switched_off
from .optimizer import DistributedOptimizer
from .optimizer_states import OptimizerStates
from .parameters import Parameters, broadcast_initial, in_order_of_backward
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
        if max_grad_norm is not None:
            _check_positive("max_grad_norm", max_grad_norm)
        parsed = checked(algorithm, on_nonfinite, max_grad_norm, compression_params)
        if isinstance(optimizer, DistributedOptimizer):
            optimizer = optimizer.unwrapped
            warning = "DistributedTrainer averages by itself: unwrapped DistributedOptimizer"
            warnings.warn(warning, stacklevel=2)
        if not isinstance(optimizer, Optimizer):
            optimizer = mx.optimizer.create(optimizer, **(optimizer_params or {}))
            optimizer_params = None
        mu, nesterov = momentum_of(optimizer) if parsed is None else (None, False)
        of_optimizer = mu, nesterov, type(optimizer).__name__
        default = parse(compression_params, *of_optimizer)
        self._own_exchange, self._root_rank = kvstore is not None, root_rank
        exchange = (
            runtime.create_exchange(kvstore) if self._own_exchange else runtime.default_exchange()
        )
        if not 0 <= root_rank < exchange.num_workers:
            raise ValueError(f"root_rank must be in [0, {exchange.num_workers}), got {root_rank}")
        super().__init__(params, optimizer, optimizer_params, kvstore=None)
        number = next(_numbers)
        self._name = f"trainer{number}"
        self._compressions = Compressions(
            compression_params, default, self._params, of_optimizer, parsed and parsed.name
        )
        self._momentum: Optional[Momentum] = None
        if mu is not None and self._compressions.any_momentum:
            require_linear(optimizer, LINEAR)
            self._momentum = Momentum(mu, self._compressions.nesterov)
        common = dict(
            name=self._name,
            exchange=exchange,
            params=self._params,
            last_first=in_order_of_backward(self._params, params),
            compressions=self._compressions,
            on_nonfinite=on_nonfinite,
        )
        self._averaging: Union[GradientAveraging, AlgorithmAveraging] = (
            AlgorithmAveraging(parsed, **common)
            if parsed is not None
            else GradientAveraging(self._momentum, max_grad_norm, **common)
        )
        self._averaging.when_prepared = self._log_summary
        traced = env.get("BYTEPS_TRACE_ON") and number == 0
        if traced:
            trace.writable(str(exchange.local_rank))
        broadcast_initial(self._params, self._broadcast)
        self._trace = trace.Trace(str(exchange.local_rank)) if traced else None

    # Parameters

    def _broadcast(self, params: Sequence[Parameter]) -> None:
        copies = [(f"parameter {param.name}", param.list_data()) for param in params]
        broadcast_copies(self._averaging.exchange, copies, self._root_rank)

    def _init_kvstore(self) -> None:
        """gluon.Trainer's hook: there is no store of weights."""
        self._update_on_kvstore = False
        self._kv_initialized = True

    def _init_params(self) -> None:
        """gluon.Trainer's hook: parameters were broadcast in the constructor."""
        self._params_to_init = []

    def _follow_cluster(self) -> None:
        """After `resume`, go on with the new cluster."""
        if self._own_exchange or self._averaging.exchange is runtime.default_exchange():
            return
        if self._averaging.follow(runtime.default_exchange(), runtime.goes_on()):
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
        self._follow_cluster()
        scale, scaler = self._scale / batch_size, self._amp_loss_scaler
        self._averaging.step(self._optimizer, scale, ignore_stale_grad, scaler, self._apply)
        self._divided_by_loss_scale(scaler)
        self._end_step()

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
        self._averaging.require_every_step("allreduce_grads")
        self._follow_cluster()
        scaler = self._amp_loss_scaler
        self._averaging.average(self._optimizer, self._scale, ignore_stale_grad, scaler)
        self._divided_by_loss_scale(scaler)

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
        self._averaging.require_every_step("update")
        _check_positive("batch_size", batch_size)
        if ignore_stale_grad:
            self._averaging.require_averaged_fresh()
        self._averaging.apply(self._apply, 1.0 / batch_size, ignore_stale_grad)
        self._end_step()

    def set_epoch(self, epoch: int) -> None:
        """Tell compressors with a warm-up the epoch, counted from 0; all workers make this call.

        Until then they compress as after the warm-up.
        """
        self._averaging.set_epoch(checked_epoch(epoch))

    def _divided_by_loss_scale(self, scaler: Optional[AgreedLossScaler]) -> None:
        """Note that averages have no loss scale any more."""
        if scaler is not None and not scaler.has_overflow(self._params):
            self._scale = 1.0

    def _apply(self, rescale: float, ignore_stale_grad: bool) -> None:
        """Update the parameters from their gradients times `rescale`."""
        self._optimizer.rescale_grad = rescale
        self._init_kvstore()
        if self._momentum is None:
            self._update(ignore_stale_grad)
            return
        self._momentum.add_weight_decay(self._optimizer, self._params, rescale)
        with switched_off(self._optimizer):
            self._update(ignore_stale_grad)

    def _end_step(self) -> None:
        if self._trace is not None:
            self._trace.next_step()

    # Reports

    def _log_summary(self) -> None:
        if self._averaging.exchange.rank == 0:
            logger.info("%s", "; ".join(self._summary()))

    def __repr__(self) -> str:
        return "\n  ".join(self._summary())

    def _summary(self) -> List[str]:
        head, *lines = summary.of_trainer(
            self._optimizer, self._averaging, self._compressions.default
        )
        return [f"{type(self).__name__}: {head}", *lines]

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
            for (i, kind), tensor in self._averaging.tensors.items()
        }
        return stats.of_step(self._averaging.exchange, tensors, reset)

    # AMP: amp.init_trainer sets this attribute

    @property
    def _amp_loss_scaler(self) -> Optional[AgreedLossScaler]:
        return self.__dict__.get("_agreed_loss_scaler")

    @_amp_loss_scaler.setter
    def _amp_loss_scaler(self, scaler: Any) -> None:
        self._averaging.require_every_step("amp.init_trainer")
        name = f"{self._name}.overflow"
        self._agreed_loss_scaler = AgreedLossScaler(
            scaler, lambda flag, about: total(self._averaging.exchange, name, flag, "step", about)
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
        saving.save(self._checkpoint("save_states"), fname)

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
        self._follow_cluster()
        self._averaging.recall(saving.chosen(fname))
        saving.load(self._checkpoint("load_states"), fname, strict)
        self._optimizer = self._updaters[0].optimizer

    def _checkpoint(self, call: str) -> saving.Saved:
        indices = self._averaging.prepare(self._optimizer, call)
        optimizer = OptimizerStates(self._updaters, self._params)
        return saving.Saved(self._averaging, self._params, indices, optimizer)


def _check_positive(name: str, value: Any) -> None:
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {value!r} ({type(value).__name__})")
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be > 0 and finite, got {value!r}")
