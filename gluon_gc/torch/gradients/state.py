"""CompressionState: averages a model's gradients over all workers, in compressed form."""

from __future__ import annotations

from functools import cached_property
from typing import (
    Any,
    Collection,
    ContextManager,
    Iterable,
    Mapping,
    Sequence,
)

import torch
import torch.distributed as dist
from torch.futures import Future
from torch.optim import Optimizer

from ...compression import CompressionParams
from ...exchange import statistics
from ...exchange.exchange import Exchange, Lane
from ...exchange.plan import require_on_nonfinite
from ...options import checked_epoch
from ..state import gradients as saving
from ..transport.staging import sizes_of
from .checks import HookCheck, add_state, require_single
from .momentum import Momentum, momentum_of
from .optimizer_hooks import unwrapped
from .scaler import if_enabled
from .settings import (
    checked_overrides,
    chosen_params,
    named,
    require_frozen,
    require_no_momentum,
    require_optimizer,
)
from .steps import GradientCompression, GradientSteps

_A_COPY = (
    "this is a copy of a CompressionState, which cannot average gradients: make a new one, and "
    "load the copy's state_dict() into it"
)


class CompressionState:
    """Compresses a model's gradients and averages them over all workers.

    Register it with DistributedDataParallel (DDP) together with `compression_hook`.
    `DistributedOptimizer` makes its own. For each parameter, the state keeps from one step to the
    next the residual of error feedback (the part of the gradient that compression lost), the
    momentum, and the position in the compressor's stream of random numbers.

    All workers must create their states, and call the states' methods, in the same order.

    Parameters
    ----------
    named_parameters : iterable of (str, Parameter)
        `model.named_parameters()`. Parameters with ``requires_grad=False`` are left out.
    compression_params : dict, optional
        The compressor and its options, such as
        ``{"compressor": "onebit", "scaling": True, "ef": "vanilla"}``.
        `gluon_gc.compression.keys()` returns all keys. None: no compression. "auto" measures the
        network and all compressors in this constructor, which takes some seconds.
    optimizer : Optimizer, optional
        The optimizer of these parameters, or Accelerate's or Lightning's wrapper of it. With
        momentum or "skip", no other optimizer may step the parameters. These options use it:

        - "momentum" in compression_params: the compressor applies the momentum that the parameter
          groups have in each step. During the optimizer's step it is 0 there. So named_parameters
          must have all parameters that the optimizer steps. The compressor "dgc" does so without
          this option.
        - "ef" (error feedback) "corrected" or "sparse": a new learning rate rescales the residual.
        - on_nonfinite="skip": the optimizer's step is skipped.
        - the compressor "auto": it chooses other compressors for Adam.
    process_group : ProcessGroup, optional
        The workers whose gradients are averaged. Default: all workers.
    inner_group : ProcessGroup, optional
        The workers with a fast network to this one, such as those of its site. They first sum their
        gradients without compression. Then each of them exchanges a share of the sum with its peers
        in the other inner groups. All workers of process_group pass the group that they are in, all
        groups have equally many workers, and each group is a part of process_group. Default: the
        workers on this machine, if machines have equally many.
    overrides : mapping of str to (dict or None), optional
        compression_params that replace the others for single parameters. A key is a parameter's
        name or a pattern such as "*.bias"; the first key that matches applies. None: the gradient
        is not compressed.
    on_nonfinite : str
        The reaction to a NaN or an infinity in a gradient of any worker. "raise": all workers raise
        a RuntimeError that names the parameter and the step. "skip": all workers skip the
        optimizer's step. "propagate": no reaction. A step that no optimizer applies leaves no trace
        in residuals and momentum. With "propagate", they restart from zero in the affected chunk (a
        slice that is compressed as a unit).
    grad_scaler : torch.amp.GradScaler, optional
        The scaler of the loss. Gradients are divided by its scale before compression, and the
        averages are multiplied by it again. Without it, a change of the scale is an error if there
        are residuals or momentum. Instead of on_nonfinite, the scaler then reacts to NaNs
        and infinities: it skips the optimizer's step. A disabled scaler has no effect.

    Attributes
    ----------
    parameters : dict of str to Parameter
        The parameters that need a gradient, by name. A tied parameter has its first name.
    aliases : dict of str to str
        The other names of tied parameters, and their names in `parameters`.
    momentum : Momentum, optional
        The momentum that is applied instead of the optimizer's.
    gradients : GradientSteps
        It averages the gradients, step by step.
    is_closed : bool
        Whether `close` was called.

    Raises
    ------
    ValueError, TypeError, KeyError
        An argument is wrong. Nothing was sent.
    RuntimeError
        The workers have different versions, settings or parameters. Also raised by the optimizer's
        first step if the hook was not registered.

    Examples
    --------
    >>> params = {"compressor": "onebit", "scaling": True, "ef": "vanilla"}
    >>> state = bps.CompressionState(model.named_parameters(), params, optimizer)
    >>> ddp.register_comm_hook(state, bps.compression_hook)
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        compression_params: Mapping[str, Any] | None = None,
        optimizer: Optimizer | None = None,
        process_group: dist.ProcessGroup | None = None,
        overrides: Mapping[str, Mapping[str, Any] | None] | None = None,
        on_nonfinite: str = "raise",
        grad_scaler: torch.amp.GradScaler | None = None,
        inner_group: dist.ProcessGroup | None = None,
    ) -> None:
        require_on_nonfinite(on_nonfinite)
        optimizer, grad_scaler = unwrapped(optimizer), if_enabled(grad_scaler)
        if on_nonfinite == "skip" and optimizer is None:
            raise ValueError("on_nonfinite 'skip' needs the optimizer whose step is skipped")
        if optimizer is None:
            require_no_momentum(compression_params, *checked_overrides(overrides).values())
        self.parameters, self._frozen, self.aliases = named(named_parameters)
        require_single(self.parameters.values(), distributed=False)
        mu, nesterov = momentum_of(optimizer)
        requested, has_nesterov = chosen_params(
            self.parameters, compression_params, overrides, mu, nesterov, optimizer, self.aliases
        )
        require_optimizer(requested.values(), optimizer)
        applies_momentum = any(params.mu is not None for params in requested.values())
        self.momentum = (
            Momentum(optimizer, self.parameters, has_nesterov) if applies_momentum else None
        )
        self._copied, self._groups, self.is_closed = None, (process_group, inner_group), False
        # The scaler itself skips steps with a NaN. So the exchange must report them, not raise.
        action = on_nonfinite if grad_scaler is None else "skip"
        try:
            compression = GradientCompression(self.parameters, requested, action, self._groups)
        except BaseException:
            if self.momentum is not None:
                self.momentum.give_back()
            raise
        self.gradients = GradientSteps(
            self.parameters, compression, optimizer, self.momentum, on_nonfinite, grad_scaler
        )
        self._hook_check = HookCheck(self)
        add_state(self, distributed=False)

    @property
    def params(self) -> dict[str, CompressionParams]:
        """The compression of each parameter, by name. "auto" is replaced by its choice."""
        if self._copied is None:
            return self.gradients.compression.params
        return vars(self)["params"]  # of `__getstate__`

    @property
    def exchange(self) -> Exchange:
        """The exchange that sends the gradients."""
        return self.gradients.compression.exchange

    @property
    def lane(self) -> Lane:
        """The gradients in the exchange."""
        return self.gradients.compression.lane

    @property
    def steps(self) -> int:
        """The number of steps so far. A step does not count if no average of it was applied."""
        return self.gradients.count if self._copied is None else self._copied["steps"]

    @cached_property
    def _names_by_id(self) -> dict[int, str]:
        return {id(parameter): name for name, parameter in self.parameters.items()}

    def name_of(self, parameter: torch.Tensor) -> str:
        """Return the name of a parameter.

        Raises
        ------
        ValueError
            The parameter is not among named_parameters.
        """
        name = self._names_by_id.get(id(parameter))
        if name is None:
            shape = tuple(parameter.shape)
            raise ValueError(f"a parameter of shape {shape} is not among named_parameters")
        return name

    def needs_no_hook(self) -> None:
        """Let optimizers step before the first exchange.

        Otherwise, a step before it is an error that asks for `register_comm_hook`.
        """
        self._hook_check.leave()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, from 0, for compressors with a warm-up such as dgc. All workers call this.

        Without a call, compressors work as after their warm-up.
        """
        self.gradients.set_epoch(checked_epoch(epoch))

    # A step

    def average(
        self,
        gradients: Mapping[str, torch.Tensor],
        begins: bool = True,
        absent: Collection[str] = (),
    ) -> Future[Collection[str]]:
        """Start to average gradients over all workers, in place, and return at once.

        Parameters
        ----------
        gradients : mapping of str to Tensor
            Dense gradients by parameter name, all on one device. Each has the dtype of its
            parameter, and is flat or has the parameter's shape. All workers pass the same names in
            the same order.
        begins : bool
            Whether this call begins a new step. A step may take several calls, for example one for
            each DDP bucket.
        absent : collection of str
            The parameters without a gradient on this worker. Their tensors must be zeros.

        Returns
        -------
        Future
            Its value: the names of the parameters for which no worker has a gradient. Their tensors
            are zeros, and their residuals and momentum are unchanged. If averaging fails, `wait`
            raises the error.
        """
        if begins:
            self._begin()
        return self.gradients.average(gradients, absent)

    def average_sparse(
        self, name: str, gradient: torch.Tensor | None, begins: bool = False
    ) -> Future[torch.Tensor | None]:
        """Start to average a sparse gradient (COO) over all workers, uncompressed; return at once.

        Parameters
        ----------
        name : str
            The parameter's name. All workers pass the same names in the same order.
        gradient : Tensor, optional
            None: this worker has no gradient.
        begins : bool
            Whether this call begins a new step.

        Returns
        -------
        Future
            Its value: the average, a sparse tensor, or None if no worker has a gradient. If
            averaging fails, `wait` raises the error.
        """
        if begins:
            self._begin()
        return self.gradients.average_sparse(name, gradient)

    def _begin(self) -> None:
        self.require_usable()
        self.needs_no_hook()
        self.gradients.begin()

    def require_original(self) -> None:
        """Raise a RuntimeError if this is a copy."""
        if self._copied is not None:
            raise RuntimeError(_A_COPY)

    def require_usable(self) -> None:
        """Raise a RuntimeError if this is closed or a copy, or if a parameter was unfrozen."""
        self.require_original()
        if self.gradients.closed:
            raise RuntimeError(self.gradients.closed)
        require_frozen(self._frozen)

    def not_applied(self) -> ContextManager[None]:
        """Return a context for backward passes whose averages no optimizer will apply.

        Their gradients are averaged, but leave no trace in residuals and momentum. Most loops do
        not need this: an average counts as applied if a step of an optimizer finds it in the
        parameter's gradient. An optimizer whose step calls a closure with several backward passes,
        such as SAM, needs it for the passes that only serve to find a point or a step size::

            with state.not_applied():
                loss_of(model).backward()
            optimizer.step(closure)  # the closure sets gradients to zero, and computes new ones
        """
        return self.gradients.undo.not_applied()

    def applied(self) -> None:
        """Tell that the script itself has applied the averages of the last backward pass.

        Steps of optimizers tell this themselves.
        """
        self.gradients.undo.clear()

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return this worker's residuals, momentum and random streams, by parameter.

        Each worker saves its own. ``torch.load(weights_only=True)`` reads it. Call this between two
        steps. Averages that no optimizer has applied are left out.
        """
        return self._copied or saving.state_dict(self)

    def load_state_dict(
        self, state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]], strict: bool = True
    ) -> None:
        """Continue from the result of `state_dict`. All workers call this.

        Parameters
        ----------
        state_dict : mapping or sequence of mapping
            The state_dict of this worker. If the number of workers has changed: the state_dicts of
            all former workers. The workers' residuals and momentum are then summed, and each
            current worker gets an equal share, with a warning. The residuals of chunk owners go to
            the chunks' new owners. If this state has made no step,
            parameters with the compressor "auto" get the compressor in the state_dict.
        strict : bool
            Whether the state_dict must have exactly the parameters of this state. If not,
            the residuals and momentum of missing parameters start from zero, and additional ones
            are ignored.

        Raises
        ------
        ValueError
            The state_dict does not fit. Nothing was changed.
        RuntimeError
            Another worker's state_dict does not fit, or is of another step. Nothing was changed.
        """
        self.require_usable()
        saving.load(self, state_dict, strict)

    def __getstate__(self) -> dict[str, Any]:
        """Return the content of a copy or a pickle: no exchange, but the `state_dict`."""
        return {
            "parameters": self.parameters,
            "params": self.params,
            "aliases": self.aliases,
            "_copied": self.state_dict(),
        }

    # Statistics and shutdown

    def compression_stats(self, reset: bool = False) -> dict[str, Any]:
        """Return the average bytes and seconds of a step, for each parameter and in total.

        The result is a dict of "tensors" (by name) and "total". Each has raw_bytes, ratio
        (raw_bytes / pushed_bytes), bits_per_element, and the measurements in
        `gluon_gc.exchange.statistics.FIELDS`. With `reset`, the next call averages over later steps
        only.
        """
        return statistics.of_step(self.exchange.transfers, sizes_of(self.parameters), reset)

    @property
    def can_resume(self) -> bool:
        """Whether `resume` will work after `bps.suspend`, which leaves the job.

        It does not work for a closed state, nor for one with a process_group or an inner_group,
        because `bps.suspend` destroys all process groups.
        """
        return not self.gradients.closed and self._groups == (None, None)

    def suspend(self, why: str) -> None:
        """Stop the exchange's threads, for `bps.suspend`.

        A step before `resume` raises RuntimeError(why).
        """
        self.gradients.suspend(why)

    def resume(self) -> None:
        """Restart the exchange's threads in a new job.

        `bps.resume` then loads residuals and momentum.
        """
        self.gradients.resume()

    def close(self) -> None:
        """Stop the exchange's threads, and let the optimizer apply its momentum again.

        The state cannot average gradients any more.
        """
        if self._copied is None:
            self.is_closed = True
            self.needs_no_hook()
            self.gradients.close()
