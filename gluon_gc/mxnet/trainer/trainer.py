"""DistributedTrainer: a gluon.Trainer that averages compressed gradients over all workers."""

from __future__ import annotations

import itertools
import numbers
import warnings
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

import mxnet as mx
from mxnet.gluon import Parameter, Trainer
from mxnet.ndarray import NDArray
from mxnet.optimizer import Optimizer, Updater

from ... import env
from ...algorithms import gives
from ...compression import parse, warn_of_ignored, warn_of_plain_adam
from ...exchange.plan import require_on_nonfinite
from ...log import logger
from ...options import checked_epoch
from ...reporting import Reporter, Settings, replace_reporter
from ..algorithms.adam import require_adam
from ..algorithms.algorithm import AlgorithmAveraging, checked
from ..byteps import runtime
from ..byteps.optimizer import DistributedOptimizer
from ..engine import trace
from ..kvstore import CompressingKVStore
from ..state import saving
from ..state.optimizer_states import OptimizerStates
from . import freshness, reports
from .amp import AgreedLossScaler
from .averaging import StepArguments
from .equal_weights import broadcast_changed, broadcast_initial
from .gradient_averaging import GradientAveraging
from .momentum import is_half, momentum_of, switched_off
from .parameters import Compressions, Parameters, in_order_of_backward
from .reporter import TrainerReporter

OptimizerParams = Optional[Mapping[str, Any]]
_trainer_numbers = itertools.count()  # equal on all workers: they create trainers in one order


class DistributedTrainer(Trainer):
    """A gluon.Trainer that averages compressed gradients over all workers.

    Each worker is a process that trains on one or more contexts (devices). Without an `algorithm`,
    a step has these stages:

    1. Each worker sums a gradient over its contexts, and divides it by the batch size and the
       number of workers. If machines have several workers, the workers of a machine sum these
       gradients in shared memory first ("hierarchical" in compression_params).
    2. The worker compresses the result to a payload: the bytes that are sent. If the workers of a
       machine have summed, one of them does this.
    3. An aggregator, which is a server or one of the workers, sums the payloads of all workers and
       compresses the sum again. (With dgc or "exchange": "gather", each worker sums all payloads.
       With randomk, payloads are arrays, which are summed like uncompressed gradients.)
    4. Each worker decompresses the result into the gradient, with the same bits on all workers.
    5. Each worker runs the optimizer.

    Large gradients are cut into chunks, and stages 2 to 4 handle each chunk by itself. With error
    feedback, each worker and each aggregator stores the part that a compression lost, the residual,
    and adds it to the input of the next compression.

    All workers must create their trainers, and call the methods of the trainers, in the same order.

    Parameters
    ----------
    params : ParameterDict, dict or list
        The parameters to train, as in gluon.Trainer. If a Parameter has the attribute
        ``compression_params`` (a dict, or None for no compression), the attribute replaces the
        argument of that name. BytePS's attributes of a Parameter, such as ``byteps_ef_type``,
        replace the argument if ``byteps_compressor_type`` is among them; otherwise each changes one
        key of the argument.
    optimizer : str or Optimizer
        As in gluon.Trainer: an Optimizer is used itself, not a copy of it. If the compressor
        applies the momentum ("momentum" in compression_params, or dgc), the optimizer's update
        applies none, but its attribute `momentum` keeps the value.
    optimizer_params : dict, optional
        As in gluon.Trainer; not changed.
    root_rank : int
        The worker whose initial parameters are broadcast to all workers.
    compression_params : dict, optional
        The compressor and its options, such as
        ``{"compressor": "onebit", "scaling": True, "ef": "vanilla"}``.
        `gluon_gc.compression.keys()` returns all keys. None: no compression.
    kvstore : None, "local", "dist_sync", "horovod" or a CompressingKVStore
        The backend that moves payloads between workers. "local": this process is the only worker.
        None: chosen by the environment variables, which can also select shared memory for the
        workers of one machine.
    on_nonfinite : str
        The reaction to a NaN or an infinity in a gradient of any worker, or in the sum of
        uncompressed gradients (float16 may overflow). "raise": all workers raise an MXNetError when
        they next wait for the result; it names the parameter and the step. "skip": all workers
        leave the step out: residuals, momentum and random streams return to their state before it.
        Each step waits for the averages, and the trainer keeps a second copy of residuals and
        momentum. "propagate": no reaction. With "raise" and "propagate", the residual and momentum
        of the affected chunk restart from zero. With a mailbox, both leave this worker out of the
        round, with a warning, and its parameters restart from the anchor.
    max_grad_norm : float, optional
        Each worker clips its own gradient before momentum and compression: if the l2 norm over all
        parameters is larger than max_grad_norm, the gradient is scaled down to it. `step` clips the
        average over the worker's batch. `allreduce_grads()` without a batch size clips the sum over
        the batch, so there max_grad_norm must be larger by the factor batch_size.
    update_on_kvstore : None or False
        For compatibility with gluon.Trainer. The optimizer always runs on the workers.
    algorithm : None, str or dict, optional
        The name of an algorithm in `gluon_gc.algorithms.registry`, or a dict with "name" and its
        options. It decides which vectors the workers average, compressed by compression_params, and
        in which steps. The optimizer applies its own momentum. None: all gradients in every step.
        With local_steps and the compressor "auto", the trainer may choose the option "every" (the
        steps between two averages) after the first steps, unless the dict has it. With powersgd and
        "auto", it chooses in the first step whether gradients are compressed.

    Raises
    ------
    ValueError, TypeError, KeyError
        An argument is wrong, or does not fit the algorithm. Nothing was sent.
    RuntimeError
        `init` was not called.
    """

    def __init__(
        self,
        params: Parameters,
        optimizer: str | Optimizer,
        optimizer_params: Mapping[str, Any] | None = None,
        root_rank: int = 0,
        compression_params: Mapping[str, Any] | None = None,
        kvstore: None | str | CompressingKVStore = None,
        on_nonfinite: str = "raise",
        max_grad_norm: float | None = None,
        update_on_kvstore: bool | None = None,
        algorithm: None | str | Mapping[str, Any] = None,
    ) -> None:
        if update_on_kvstore:
            raise ValueError(
                f"update_on_kvstore must be None or False, got {update_on_kvstore!r}: the "
                "optimizer runs on the workers, and servers only sum"
            )
        require_on_nonfinite(on_nonfinite)
        if max_grad_norm is not None:
            _require_positive("max_grad_norm", max_grad_norm)
        checked_algorithm = checked(algorithm, on_nonfinite, max_grad_norm, compression_params)
        optimizer, optimizer_params = _as_optimizer(optimizer, optimizer_params)
        if checked_algorithm is not None and checked_algorithm.needs_adam:
            require_adam(checked_algorithm.name, optimizer)
        optimizer_info = None, False, ""  # an algorithm's vectors are not the optimizer's gradients
        if checked_algorithm is None:
            optimizer_info = *momentum_of(optimizer), type(optimizer).__name__
        default = parse(compression_params, *optimizer_info)
        exchange = (
            runtime.default_exchange() if kvstore is None else runtime.create_exchange(kvstore)
        )
        self._own_exchange, self._root_rank = not runtime.is_default(exchange), root_rank
        if not 0 <= root_rank < exchange.num_workers:
            raise ValueError(f"root_rank must be in [0, {exchange.num_workers}), got {root_rank}")
        _require_dense_weights(params)
        super().__init__(params, optimizer, optimizer_params, kvstore=None)
        number = next(_trainer_numbers)
        self._name = f"trainer{number}"
        self._compressions = Compressions(
            compression_params, default, self._params, optimizer_info, checked_algorithm
        )
        warn_of_ignored(*self._compressions.written)
        if checked_algorithm is None:
            given = (self._compressions.of(i) for i in range(len(self._params)))
            warn_of_plain_adam(type(optimizer).__name__, given)
        self._momentum = self._compressions.momentum(optimizer)
        shared_args = dict(
            name=self._name,
            exchange=exchange,
            params=self._params,
            last_first=in_order_of_backward(self._params, params),
            compressions=self._compressions,
            on_nonfinite=on_nonfinite,
            when_prepared=self._log_summary,
        )
        self._averaging: GradientAveraging | AlgorithmAveraging
        if checked_algorithm is None:
            self._averaging = GradientAveraging(self._momentum, max_grad_norm, **shared_args)
        else:
            option_given = gives(algorithm, checked_algorithm.chosen_option)
            self._averaging = AlgorithmAveraging(
                checked_algorithm, option_given, self._updaters, **shared_args
            )
        writes_trace = env.get("BYTEPS_TRACE_ON") and number == 0
        if writes_trace:
            trace.writable(str(exchange.local_rank))
        broadcast_initial(self._averaging.exchange, self._params, self._broadcast)
        self._is_first_step = True
        self._trace = trace.Trace(str(exchange.local_rank)) if writes_trace else None

    # Before a step

    def _broadcast(self, params: Sequence[Parameter]) -> None:
        copies = [(f"parameter {param.name}", param.list_data()) for param in params]
        self._averaging.exchange.broadcast_copies(copies, self._root_rank)

    def _follow_cluster(self) -> None:
        """After `bps.suspend` and `bps.resume`, exchange gradients in the new cluster."""
        if self._own_exchange or self._averaging.exchange is runtime.default_exchange():
            return
        if self._averaging.follow(runtime.default_exchange(), runtime.goes_on()):
            self._is_first_step |= not runtime.goes_on()  # it may be the first one of new workers
            broadcast_initial(self._averaging.exchange, self._params, self._broadcast)

    def _start_equal(self) -> None:
        """In the first step, broadcast parameters and states that differ between workers."""
        if self._is_first_step:
            self._is_first_step = False
            averaging = self._averaging
            if averaging.described is None or not averaging.steps:
                broadcast_changed(averaging.exchange, self._params, self._broadcast)
                states = OptimizerStates(self._updaters, self._params)
                averaging.steps = states.start_equal(
                    averaging.exchange, self._root_rank, averaging.steps
                )

    # A step

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Average the gradients over all workers and update the parameters.

        The call queues its work on MXNet's engine and normally returns at once. It waits for the
        other workers in the first step. It waits in every step with ignore_stale_grad=True, with
        on_nonfinite="skip", with AMP, and on Horovod if row-sparse gradients are uncompressed.

        Parameters
        ----------
        batch_size : int
            The number of samples in this worker's batch. Gradients are divided by batch_size *
            size() before momentum and compression, so their sum over all workers is the average.
            float16 averages keep about the scale of the batch's sum if the optimizer has
            multi_precision, which then divides them in float32. An algorithm gets this worker's
            gradients divided by batch_size.
        ignore_stale_grad : bool
            Whether stale gradients are allowed; the same on all workers. A gradient is stale if
            backward has not written it since the last exchange. A stale gradient counts as zeros.
            If it is stale on all contexts of all workers, its parameter is not updated, and
            residual and momentum do not change. With the algorithm local_steps, a worker skips the
            parameters whose gradients are stale on it.

        Raises
        ------
        ValueError, TypeError
            batch_size is not a positive number. Nothing was sent.
        UserWarning
            A gradient of this worker is stale, and ignore_stale_grad is False. Nothing was sent.
        RuntimeError
            The averages of the last exchange may be applied, but this is not known: the update of
            the last step has raised an error, or see `allreduce_grads`.
        """
        self._averaging.require("step")
        _require_positive("batch_size", batch_size)
        if not ignore_stale_grad:
            freshness.require_fresh(self._params)
        arguments = self._begin_step(batch_size, ignore_stale_grad)
        self._averaging.step(arguments, self._apply)
        self._divided_by_loss_scale(arguments.scaler)
        self._end_step()

    def allreduce_grads(
        self, batch_size: int | None = None, ignore_stale_grad: bool = False
    ) -> None:
        """Average the gradients over all workers.

        Call `update` afterwards, which updates the parameters. Between the two calls, the script
        may read or change the gradients, for example clip them.

        If the script calls no `update`, the step is left out: the next exchange first returns
        residuals, momentum and random streams to their state before this call. From the first call
        on, the trainer keeps a second copy of residuals and momentum for that.

        Parameters
        ----------
        batch_size : int, optional
            The number of samples in this worker's batch. The gradients are divided by it before
            momentum and compression, as in `step`. Here this holds for float16 averages, too, whose
            elements below 3e-8 become zero. If None, `update` divides the averages instead.
            Residuals and momentum then belong to sums over a batch, so all batches must have the
            same size.
        ignore_stale_grad : bool
            If True, a stale gradient counts as zeros, as in `step`. If False, it is averaged like a
            fresh one.

        Raises
        ------
        ValueError, TypeError
            batch_size is not a positive number. Nothing was sent.
        RuntimeError
            The trainer has an algorithm: call `step` instead. Or no `update` has applied the last
            averages, and a gradient with grad_req="add" may still contain them. Or the update of
            the last `step` has raised an error, and its exchange cannot be taken back: call
            `applied` or `load_states` first.
        """
        self._averaging.require("allreduce_grads")
        if batch_size is not None:
            _require_positive("batch_size", batch_size)
        arguments = self._begin_step(batch_size, ignore_stale_grad)
        self._averaging.average(arguments)
        self._divided_by_loss_scale(arguments.scaler)

    def update(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Update the parameters from the gradients that `allreduce_grads` has averaged.

        Without averages, because there was no call of `allreduce_grads` since the last update, this
        worker updates its parameters from its own gradients, as gluon.Trainer does.

        Parameters
        ----------
        batch_size : int
            The number of samples in this worker's batch. The gradients are divided by it, unless
            `allreduce_grads` has done that.
        ignore_stale_grad : bool
            As in `step`. Pass the same value to `allreduce_grads`.

        Raises
        ------
        ValueError, TypeError
            batch_size is not a positive number, or another one than in `allreduce_grads`; or
            ignore_stale_grad is True here, but was False in `allreduce_grads`, which has averaged a
            stale gradient.
        UserWarning
            A gradient is stale, and ignore_stale_grad is False.
        RuntimeError
            The trainer has an algorithm: call `step` instead.
        """
        self._averaging.require("update")
        _require_positive("batch_size", batch_size)
        if self._averaging.has_averages:
            self._averaging.update(batch_size, ignore_stale_grad, self._apply)
        else:
            self._update_alone(batch_size, ignore_stale_grad)
        self._end_step()

    @contextmanager
    def not_applied(self) -> Iterator[None]:
        """Average gradients that no update applies, such as those of SAM's first backward pass.

        Inside this context manager, `allreduce_grads` delivers averages. At its end, residuals,
        momentum and random streams return to their state before it, as if there had been no
        exchange, and gradients are stale. All workers use it together::

            with trainer.not_applied():
                trainer.allreduce_grads(batch_size)
            perturb(net)

        Raises
        ------
        RuntimeError
            `step` or `update` is called inside it, or the trainer has an algorithm.
        """
        self._averaging.require("not_applied")
        with self._averaging.not_applied():
            yield

    def applied(self) -> None:
        """Tell that the script itself has applied the averages of `allreduce_grads`.

        A script that calls `update` does not need this.

        Raises
        ------
        RuntimeError
            The trainer has an algorithm.
        """
        self._averaging.require("applied")
        self._averaging.applied()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, from 0, for compressors with a warm-up such as dgc. All workers call this.

        Without a call, compressors work as after their warm-up.
        """
        self._averaging.set_epoch(checked_epoch(epoch))

    def _begin_step(self, batch_size: int | None, ignore_stale_grad: bool) -> StepArguments:
        self._follow_cluster()
        self._start_equal()
        if self._averaging.reporter is not None:
            self._averaging.reporter.begin()
        scaler = self._amp_loss_scaler
        return StepArguments(self._optimizer, batch_size, self._scale, ignore_stale_grad, scaler)

    def _end_step(self) -> None:
        if self._trace is not None:
            self._trace.next_step()
        if self._averaging.reporter is not None:
            self._averaging.reporter.end()

    # Checkpoints

    def save_states(self, fname: str) -> None:
        """Save the optimizer's state, and the residuals and momentum of compression, to a file.

        Each worker saves its own file. Rank 0's file also has the residuals of the servers. With an
        algorithm, each file also has the algorithm's state and this worker's parameters. A new file
        replaces an old one when it is complete and on disk.
        All workers call this together before the first step, and before the next step after
        `bps.resume` or after a parameter is unfrozen. Later, the call waits for no other worker.

        Raises
        ------
        RuntimeError
            The averages of the last `allreduce_grads` are not applied, so the state after them is
            not the one that training continues from. Or there is a mailbox, which has the state.
        """
        self._averaging.require("save_states")
        self._follow_cluster()
        self._averaging.prepare(self._optimizer, "save_states")
        saving.save(self._averaging, self._optimizer_states(), fname)

    def load_states(self, fname: str | Sequence[str], strict: bool = True) -> None:
        """Restore the states that `save_states` saved. All workers call this.

        Nothing changes until all workers have checked their files. Parameters match by name, or by
        the network's order if only their names differ. The number of servers and the size of chunks
        may differ.
        A file that gluon.Trainer saved may be loaded too, strict or not. It has only the
        optimizer's state, so residuals and the momentum of compression start from zero, with a
        warning. Load only files that you trust: the optimizer's state is a pickle, which can run
        code.

        Parameters
        ----------
        fname : str or list of str
            This worker's file. If the number of workers, in all or on a machine, or the backend has
            changed: the files of all former workers, the same list on every worker. Each worker
            gets an equal share of the sum of all residuals, and of all momenta. A list needs
            strict=False.
        strict : bool
            If True, the file must have the states of exactly this trainer's parameters. If False,
            fname may be a list, states that a file lacks start from zero, and additional ones are
            ignored. The log names both.

        Raises
        ------
        ValueError
            The file is damaged, or has another format, parameters, compression, rank or number of
            workers. Or the files of a list are of different steps.
        RuntimeError
            Another worker's file does not fit, or is of another step. Or there is a mailbox.
        """
        self._averaging.require("load_states")
        self._follow_cluster()
        saving.announce(self._averaging, fname)
        self._averaging.prepare(self._optimizer, "load_states")
        saving.load(self._averaging, self._optimizer_states(), fname, strict)
        self._optimizer = self._updaters[0].optimizer

    def _optimizer_states(self) -> OptimizerStates:
        return OptimizerStates(self._updaters, self._params)

    # Reports

    def _log_summary(self) -> None:
        if self._averaging.exchange.rank == 0:
            logger.info("%s", "; ".join(self._summary()))

    def _summary(self) -> list[str]:
        return reports.summary(self, self._averaging, self._compressions.default)

    def __repr__(self) -> str:
        return "\n  ".join(self._summary())

    def compression_stats(self, reset: bool = False) -> dict[str, Any]:
        """Return the average bytes and seconds of a step: "tensors" by parameter name, and "total".

        The call waits until all steps are done. With an algorithm, "tensors" has the vectors that
        the workers average, such as "difference of w", and a step counts only if it exchanges them.
        Each entry is a dict:

        - raw_bytes: the size of the uncompressed gradient.
        - pushed_bytes, pulled_bytes: the bytes that this worker sends and receives.
        - ratio: raw_bytes / pushed_bytes, or None if nothing is sent.
        - bits_per_element: the bits that this worker sends for each element.
        - compress_seconds, wait_seconds, decompress_seconds: sums over the chunks. Chunks overlap,
          so these sums may exceed the duration of the step. Copying an uncompressed gradient counts
          as compressing.

        "total" also has exchange_seconds and exposed_seconds, means over the last 64 steps or
        fewer: the time from the start of the first or the last gradient's compression to the last
        result. exposed_seconds estimates how long training waits in a step. Time for clipping, or
        for a sum over the workers of one machine, is not included.

        Parameters
        ----------
        reset : bool
            Whether the next call averages over later steps only.
        """
        return self._averaging.stats_of_step(reset)

    def start_report(self, make_settings: Callable[[], Settings]) -> Reporter:
        """See `report`."""
        averaging = self._averaging
        return replace_reporter(averaging, lambda: TrainerReporter(averaging, make_settings))

    # gluon.Trainer calls these

    def _init_kvstore(self) -> None:
        self._update_on_kvstore = False
        self._kv_initialized = True

    def _init_params(self) -> None:
        """Do nothing, because DistributedTrainer broadcasts the parameters."""
        self._params_to_init = []

    def _apply(self, rescale: float, ignore_stale_grad: bool, unit: float = 1.0) -> None:
        """Update from gradients times `rescale`; those of float16 are also in this unit."""
        self._optimizer.rescale_grad = rescale
        self._init_kvstore()
        with ExitStack() as stack:
            if self._momentum is not None:
                self._momentum.add_weight_decay(self._optimizer, self._params, rescale, unit)
                stack.enter_context(switched_off(self._optimizer))
            if unit != 1.0:
                stack.enter_context(self._wrapped_updaters(partial(self._in_unit, rescale, unit)))
            self._update(ignore_stale_grad)

    def _update_alone(self, batch_size: float, ignore_stale_grad: bool) -> None:
        """Update the parameters from the gradients of this worker, as gluon.Trainer does."""
        scaler = self._amp_loss_scaler
        if scaler is not None and scaler.check_alone(self._params):
            freshness.use_up(self._params)
            return
        if not ignore_stale_grad:
            freshness.require_fresh(self._params)
        self._apply(self._scale / batch_size, ignore_stale_grad)

    def _update(self, ignore_stale_grad: bool = False) -> None:
        """Update as gluon.Trainer does, but with the same schedule of Nadam on each context."""
        if len(self._updaters) == 1 or not isinstance(self._optimizer, mx.optimizer.Nadam):
            super()._update(ignore_stale_grad)
            return
        optimizer = self._optimizer
        schedule = optimizer.m_schedule

        def with_schedule(updater: Updater) -> Callable[..., None]:
            def update(*tensors: Any) -> None:
                optimizer.m_schedule = schedule
                updater(*tensors)

            return update

        with self._wrapped_updaters(with_schedule):
            super()._update(ignore_stale_grad)

    @contextmanager
    def _wrapped_updaters(self, wrap: Callable[[Updater], Callable[..., None]]) -> Iterator[None]:
        updaters = self._updaters
        self._updaters = list(map(wrap, updaters))
        try:
            yield
        finally:
            self._updaters = updaters

    def _in_unit(self, rescale: float, unit: float, updater: Updater) -> Callable[..., None]:
        """An updater that multiplies float16 gradients by a unit, too."""
        optimizer = self._optimizer

        def update(*columns: Sequence[Any]) -> None:
            tensors = list(zip(*columns))
            if updater.aggregate_updates:  # then it updates each dtype by itself in any case
                tensors.sort(key=_has_half)
            for half, group in itertools.groupby(tensors, _has_half):
                optimizer.rescale_grad = rescale * unit if half else rescale
                updater(*zip(*group))

        return update

    # AMP: amp.init_trainer sets this attribute

    @property
    def _amp_loss_scaler(self) -> AgreedLossScaler | None:
        return self.__dict__.get("_agreed_loss_scaler")

    @_amp_loss_scaler.setter
    def _amp_loss_scaler(self, scaler: Any) -> None:
        self._agreed_loss_scaler = AgreedLossScaler(
            scaler, lambda flag, about: self._averaging.total_overflow(flag, about)
        )

    def _divided_by_loss_scale(self, scaler: AgreedLossScaler | None) -> None:
        """Reset the scale to 1, because the averages are already divided by the loss scale."""
        if scaler is not None and not scaler.has_overflow(self._params):
            self._scale = 1.0


def report(
    trainer: DistributedTrainer,
    every: int = 100,
    tensorboard: str | None = None,
    wandb: bool = False,
    prometheus: int | None = None,
    measure_error: int | None = None,
) -> Reporter:
    """Report bytes, seconds and residuals every few steps. All workers call this.

    Each worker writes a line to the logger gluon_gc.report. `gluon_gc.reporting.Report` explains
    the numbers. Results of training do not change. The report ends with `bps.shutdown`, and a
    second call for the same trainer replaces it. A report waits for all exchanges of its step.

    Parameters
    ----------
    trainer : DistributedTrainer
    every, tensorboard, wandb, prometheus, measure_error
        See `gluon_gc.reporting.Settings`.

    Returns
    -------
    Reporter
        Its attribute `last` is the last `Report`.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong.
    ImportError
        The package for tensorboard, wandb or prometheus is not installed.
    RuntimeError
        Another worker has raised an error, or has other arguments.
    """
    if not isinstance(trainer, DistributedTrainer):
        raise TypeError(f"report needs a DistributedTrainer, got {type(trainer).__name__}")
    return trainer.start_report(
        partial(Settings, every, tensorboard, wandb, prometheus, measure_error)
    )


def _has_half(tensor: tuple[int, NDArray, NDArray]) -> bool:
    """Whether the weight is float16, given a parameter's index, gradient and weight."""
    return is_half(tensor[2])


def _require_positive(name: str, value: Any) -> None:
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {value!r} ({type(value).__name__})")
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be > 0 and finite, got {value!r}")


def _as_optimizer(
    given: str | Optimizer, params: OptimizerParams
) -> tuple[Optimizer, OptimizerParams]:
    """The optimizer that a trainer was given, and the optimizer_params that are still to be set."""
    if isinstance(given, DistributedOptimizer):
        warning = (
            "DistributedTrainer averages gradients itself: it unwraps the DistributedOptimizer"
        )
        warnings.warn(warning, stacklevel=3)
        return given.unwrapped, params
    if isinstance(given, Optimizer):
        return given, params
    if not isinstance(given, str):
        hint = ": pass its optimizer's name and settings" if isinstance(given, Trainer) else ""
        raise TypeError(
            f"optimizer must be a name or an mxnet Optimizer, got {type(given).__name__}{hint}"
        )
    return mx.optimizer.create(given, **(params or {})), None


def _require_dense_weights(params: Parameters) -> None:
    """Raise ValueError if a parameter is row_sparse or bfloat16, which cannot be broadcast."""
    given = params.values() if hasattr(params, "values") else params
    for param in filter(lambda param: isinstance(param, Parameter), given):
        if param._stype != "default":
            raise ValueError(
                f"parameter {param.name} must have dense weights, got stype '{param._stype}': only "
                "its gradient may be row_sparse (grad_stype, or sparse_grad of Embedding)"
            )
        if "bfloat16" in str(param.dtype):
            raise ValueError(
                f"parameter {param.name} must be float32, float16 or float64, got bfloat16: cast "
                "the network before DistributedTrainer"
            )
