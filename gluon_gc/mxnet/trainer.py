"""DistributedTrainer: gluon.Trainer whose gradients travel compressed."""

from __future__ import annotations

import itertools
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

from mxnet.gluon import Parameter
from mxnet.optimizer import Optimizer

from .. import env
from ..compression import parse, warn_of_ignored
from ..log import logger
from ..options import checked_epoch
from ..plan import require_on_nonfinite
from . import freshness, runtime, saving, stats, summary, trace
from .algorithm import AlgorithmAveraging
from .algorithm_arguments import checked
from .broadcasts import broadcast_copies
from .compressions import Compressions
from .gluon_hooks import HookedTrainer
from .gradient_averaging import GradientAveraging
from .kvstore import CompressingKVStore
from .momentum import momentum_of
from .optimizer_states import OptimizerStates
from .parameters import Parameters, broadcast_initial, in_order_of_backward
from .trainer_arguments import as_optimizer, require_positive, require_update_on_workers

_numbers = itertools.count()  # of trainers, equal on all workers, which make them in one order


class DistributedTrainer(HookedTrainer):
    """Applies an optimizer to parameters, with gradients averaged over all workers.

    Every worker makes its trainers, and calls their methods, in the same order.

    Parameters
    ----------
    params : ParameterDict, dict or list
        As in gluon.Trainer. A Parameter's attribute ``compression_params`` (a dict, or None: not
        compressed) wins over the argument below. So does BytePS's ``byteps_compressor_type``
        (`gluon_gc.compression.byteps`); BytePS's other attributes alone add to the argument.
    optimizer : str or Optimizer
        As in gluon.Trainer. If a compressor applies the momentum, the updates apply none; the
        object is not changed.
    optimizer_params : dict, optional
        As in gluon.Trainer; not changed.
    root_rank : int
        The worker whose initial parameters all others get.
    compression_params : dict, optional
        How gradients are compressed; `gluon_gc.compression.options` lists the keys.
    kvstore : None, "local", "dist_sync", "horovod" or a CompressingKVStore
        The backend; None: the environment decides.
    on_nonfinite : str
        What happens if a gradient has a NaN or an infinity on any worker, or if the sum of
        uncompressed gradients has one (as when float16 overflows). "raise": all workers get an
        MXNetError that names the parameter and the step, when they next wait for the result.
        "skip": all workers leave the step out; they wait for each other in every step.
        "propagate": nothing. In any case the momentum and the residual of that chunk start again
        from zero, on that worker and on the aggregator.
    max_grad_norm : float, optional
        Clips this worker's own gradient, summed over its contexts and divided by the batch size,
        to this l2 norm over all parameters, before momentum and compression. The average's norm
        is no larger then. `allreduce_grads` clips before `update` divides.
    update_on_kvstore : None or False
        As gluon.Trainer's: the optimizer always runs on the workers.
    algorithm : None, str or dict, optional
        How the workers average: a name of `gluon_gc.algorithms.registry`, or a dict of "name" and
        options. None: they average every gradient in every step. With an algorithm,
        compression_params say how its vectors travel, and the optimizer applies its momentum.

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
        require_update_on_workers(update_on_kvstore)
        require_on_nonfinite(on_nonfinite)
        if max_grad_norm is not None:
            require_positive("max_grad_norm", max_grad_norm)
        parsed = checked(algorithm, on_nonfinite, max_grad_norm, compression_params)
        optimizer, optimizer_params = as_optimizer(optimizer, optimizer_params)
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
        warn_of_ignored(*self._compressions.written)
        self._momentum = self._compressions.momentum(optimizer)
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
            Whether a gradient may be stale, which means that backward has not made it since the
            last step; the same on all workers. A stale gradient counts as zeros. A parameter whose
            gradient is fresh on any context of any worker is updated everywhere; a parameter whose
            gradient is fresh nowhere keeps its weight, residual and momentum. The workers wait for
            each other to find this out. With an algorithm, each worker decides by itself whether
            to update a parameter, and the algorithm averages all parameters.

        Raises
        ------
        ValueError, TypeError
            batch_size is not a positive number; nothing was sent.
        UserWarning
            A gradient of this worker is stale, and that is not to be ignored; nothing was sent.
        """
        require_positive("batch_size", batch_size)
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
        require_positive("batch_size", batch_size)
        if ignore_stale_grad:
            self._averaging.require_averaged_fresh()
        self._averaging.apply(self._apply, 1.0 / batch_size, ignore_stale_grad)
        self._end_step()

    def set_epoch(self, epoch: int) -> None:
        """Tell compressors with a warm-up the epoch, counted from 0; all workers make this call.

        Until then they compress as after the warm-up.
        """
        self._averaging.set_epoch(checked_epoch(epoch))

    def _end_step(self) -> None:
        if self._trace is not None:
            self._trace.next_step()

    # Reports

    def _log_summary(self) -> None:
        if self._averaging.exchange.rank == 0:
            logger.info("%s", "; ".join(self._summary()))

    def _summary(self) -> List[str]:
        return summary.of_trainer(self, self._averaging, self._compressions.default)

    def __repr__(self) -> str:
        return "\n  ".join(self._summary())

    def compression_stats(self, reset: bool = False) -> Dict[str, Any]:
        """Bytes and seconds of an average step: "tensors" by parameter name, and "total".

        With an algorithm, "tensors" has the vectors of its rounds, such as "difference of w", and
        the numbers are averages over rounds. Waits until all steps are done.

        Each is a dict of raw_bytes (of the gradient), pushed_bytes and pulled_bytes (of this
        worker's messages), ratio (raw_bytes / pushed_bytes, or None if nothing is pushed, as by
        workers that share memory), bits_per_element (pushed), compress_seconds, wait_seconds and
        decompress_seconds. Chunks overlap, so the seconds add up to more than a step takes.

        "total" has exposed_seconds too: the time from the start of the last gradient's compression
        (or copy) to the last average, over the last 64 steps at most. Backward hides all that is
        done before. With `max_grad_norm`, compression starts when all gradients are there; on a
        machine with several workers, when the workers have summed the gradient.

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

    # Checkpoints

    def save_states(self, fname: str) -> None:
        """Save the optimizer's state with this worker's residuals and momentum.

        Residuals differ between workers, so each worker saves a file. Rank 0's has the residuals
        of the servers too. With an algorithm, a file also has the algorithm's state and this
        worker's parameters. An existing file is replaced once the new one is whole and on disk;
        `gluon_gc.checkpoint` has the format.
        """
        saving.save(self._checkpoint("save_states"), fname)

    def load_states(self, fname: Union[str, Sequence[str]], strict: bool = True) -> None:
        """Go on from what `save_states` saved; all workers call it, each with its own file.

        Nothing changes before all workers have checked their files. Parameters are found by name;
        if the names differ but shapes and dtypes agree, by order, with a warning. The number of
        servers and the size of chunks may change. A file of gluon.Trainer has the optimizer's state
        only, so residuals and momentum start from zero, with a warning. Load only files that you
        trust: the optimizer's part is a pickle, which can run code.

        Parameters
        ----------
        fname : str or list of str
            This worker's file. If not strict, also a list of the files of all workers, of any
            number, the same on every worker: each worker then gets an even share of the sums of
            all residuals and momenta.
        strict : bool
            If not, parameters that are missing in the file start from zero, and parameters that
            are missing here are ignored; the log names them.

        Raises
        ------
        ValueError
            A file has other parameters, another compression, rank, step or number of workers, or
            it is damaged, or `save_states` did not write it.
        RuntimeError
            Another worker refuses its file, or has a file of another step.
        """
        self._follow_cluster()
        self._averaging.recall(saving.chosen(fname))
        saving.load(self._checkpoint("load_states"), fname, strict)
        self._optimizer = self._updaters[0].optimizer

    def _checkpoint(self, call: str) -> saving.Saved:
        indices = self._averaging.prepare(self._optimizer, call)
        optimizer = OptimizerStates(self._updaters, self._params)
        return saving.Saved(self._averaging, self._params, indices, optimizer)
