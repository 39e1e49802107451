"""CompressionState: the compression of a model's gradients, for users."""

from __future__ import annotations

from typing import (
    Any,
    Collection,
    Dict,
    Iterable,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import torch
import torch.distributed as dist
from torch.futures import Future
from torch.optim import Optimizer

from ..options import checked_epoch
from ..plan import require_on_nonfinite
from . import saving, stats
from .exchange import Exchange
from .gradient_compression import GradientCompression
from .gradient_steps import GradientSteps
from .momentum import Momentum, momentum_of
from .settings import chosen_params, named, require_frozen, require_optimizer

_A_COPY = (
    "this is a copy of a CompressionState, which averages nothing: make a new one, and have it "
    "load what the copy's state_dict() returns"
)


class CompressionState:
    """The compression of a model's gradients, and everything that it keeps from step to step.

    Every worker makes its states, and uses them, in the same order.

    Parameters
    ----------
    named_parameters : iterable of (str, Parameter)
        As `model.named_parameters()`. Parameters that need no gradient are left out.
    compression_params : dict, optional
        As `gluon_gc.DistributedTrainer` takes it; `gluon_gc.compression.keys` lists the keys. The
        compressor "auto" measures links and kernels here, which takes some seconds.
    optimizer : Optimizer, optional
        The optimizer of the parameters. Three options need it: momentum, which is taken over from
        its parameter groups and set to 0 there; "corrected" error feedback, which needs learning
        rates; and on_nonfinite="skip".
    process_group : ProcessGroup, optional
        The workers that average gradients; by default all.
    overrides : mapping of str to (dict or None), optional
        compression_params of single parameters, by name or by a pattern such as "*.bias"; None: not
        compressed. The first pattern that matches counts.
    on_nonfinite : str
        The action if a gradient has a NaN or an infinity on any worker. "raise": a RuntimeError
        that names the parameter and the step, on all workers. "skip": all workers leave out the
        optimizer's step. "propagate": nothing. In all three cases the residual and momentum of the
        chunk start again from zero.
    grad_scaler : torch.amp.GradScaler, optional
        The scaler of the loss. Its scale is divided out before compression, and multiplied in again
        after it. NaNs and infinities propagate, because the scaler skips such steps.

    Attributes
    ----------
    parameters, params : dict
        By name, each Parameter and its CompressionParams.
    momentum : Momentum, optional
        The momentum that is applied instead of the optimizer's.
    gradients : GradientSteps

    Raises
    ------
    ValueError, TypeError, KeyError
        Wrong compression_params, overrides or on_nonfinite, before anything is sent.
    RuntimeError
        Workers differ in version, settings or parameters.
    """

    def __init__(
        self,
        named_parameters: Iterable[Tuple[str, torch.nn.Parameter]],
        compression_params: Optional[Mapping[str, Any]] = None,
        optimizer: Optional[Optimizer] = None,
        process_group: Optional[dist.ProcessGroup] = None,
        overrides: Optional[Mapping[str, Optional[Mapping[str, Any]]]] = None,
        on_nonfinite: str = "raise",
        grad_scaler: Optional[torch.amp.GradScaler] = None,
    ) -> None:
        require_on_nonfinite(on_nonfinite)
        if on_nonfinite == "skip" and optimizer is None:
            raise ValueError("on_nonfinite 'skip' needs the optimizer whose step is left out")
        self.parameters, self._frozen = named(named_parameters)
        self._names = {parameter: name for name, parameter in self.parameters.items()}
        mu, nesterov = momentum_of(optimizer)
        asked, has_nesterov = chosen_params(
            self.parameters, compression_params, overrides, mu, nesterov, optimizer
        )
        require_optimizer(asked.values(), optimizer)
        applied = any(params.mu is not None for params in asked.values())
        self.momentum = Momentum(optimizer, mu, has_nesterov) if applied else None
        self._copied, self._group = None, process_group
        planned = on_nonfinite if grad_scaler is None else "skip"
        try:
            compression = GradientCompression(self.parameters, asked, planned, process_group)
        except BaseException:
            if self.momentum is not None:
                self.momentum.give_back()
            raise
        self.params = compression.params
        self.gradients = GradientSteps(
            self.parameters, compression, optimizer, self.momentum, on_nonfinite, grad_scaler
        )

    @property
    def exchange(self) -> Exchange:
        """The exchange of the gradients."""
        return self.gradients.compression.exchange

    @property
    def steps(self) -> int:
        """The number of steps so far, without those that were left out."""
        return self.gradients.count if self._copied is None else self._copied["steps"]

    def name_of(self, parameter: torch.Tensor) -> str:
        """The name of a parameter.

        Raises
        ------
        ValueError
            It was not among named_parameters.
        """
        if parameter not in self._names:
            shape = tuple(parameter.shape)
            raise ValueError(f"a parameter of shape {shape} is not among named_parameters")
        return self._names[parameter]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, counted from 0, for compressors with a warm-up; on all workers.

        Before the first call they compress as after the warm-up.
        """
        self.exchange.set_epoch(checked_epoch(epoch))

    # A step

    def average(
        self,
        gradients: Mapping[str, torch.Tensor],
        begins: bool = True,
        absent: Collection[str] = (),
    ) -> Future[Collection[str]]:
        """Average gradients over all workers, in place; returns at once.

        Parameters
        ----------
        gradients : mapping
            By the parameters' names. Each has the parameter's shape or is flat, has its dtype, and
            is dense. All are on one device. All workers call this with the same names in the same
            order.
        begins : bool
            Whether these are the first gradients of a step. A step may take several calls.
        absent : collection of str
            The parameters without a gradient on this worker; their values here must be zeros.

        Returns
        -------
        Future
            It has an error, or the parameters without a gradient on any worker. Their values are
            zeros, and their residuals and momentum are as before.
        """
        if begins:
            self._begin()
        return self.gradients.average(gradients, absent)

    def average_sparse(
        self, name: str, gradient: Optional[torch.Tensor], begins: bool = False
    ) -> Future[Optional[torch.Tensor]]:
        """Average a sparse gradient (COO) over all workers, uncompressed; returns at once.

        Parameters
        ----------
        name : str
            The parameter's. All workers call this with the same names in the same order.
        gradient : Tensor, optional
            None: this worker has none.
        begins : bool
            Whether this is the first gradient of a step.

        Returns
        -------
        Future
            It has an error, or the average: a sparse tensor, or None if no worker has a gradient.
        """
        if begins:
            self._begin()
        return self.gradients.average_sparse(name, gradient)

    def _begin(self) -> None:
        self._require_usable()
        self.gradients.begin()

    def _require_usable(self) -> None:
        closed = self.gradients.closed if self._copied is None else _A_COPY
        if closed:
            raise RuntimeError(closed)
        require_frozen(self._frozen)

    # Checkpoints

    def state_dict(self) -> Dict[str, Any]:
        """This worker's residuals, momentum and random streams, by parameter.

        It has plain values and tensors, which `torch.load(weights_only=True)` reads. Each worker
        saves its own. Nothing may be under way.
        """
        return self._copied or saving.state_dict(self)

    def load_state_dict(
        self,
        state_dict: Union[Mapping[str, Any], Sequence[Mapping[str, Any]]],
        strict: bool = True,
    ) -> None:
        """Go on from the result of `state_dict`; all workers call this.

        Parameters
        ----------
        state_dict : mapping or sequence of mapping
            This worker's; or those of all workers, if their number has changed. Each worker then
            gets a share of the residuals, so that their sum stays the same, with a warning. Before
            the first step, "auto" chooses again what it had chosen there.
        strict : bool
            Whether the parameters must be the same. Otherwise new ones start from zero.

        Raises
        ------
        ValueError
            It does not fit; nothing was changed.
        RuntimeError
            It does not fit on another worker, or is of another step there; nothing was changed.
        """
        self._require_usable()
        saving.load(self, state_dict, strict)
        self.params = self.gradients.compression.params
        self.gradients.left_out.loaded()

    def __getstate__(self) -> Dict[str, Any]:
        """The contents of a copy: its `state_dict`, but no workers to exchange gradients with."""
        return {
            "parameters": self.parameters,
            "params": self.params,
            "_names": self._names,
            "_copied": self.state_dict(),
        }

    # Statistics, and the end

    def compression_stats(self, reset: bool = False) -> Dict[str, Any]:
        """Bytes and seconds of a step, on average, of each parameter and in all.

        The keys are those of `gluon_gc.DistributedTrainer.compression_stats`. With `reset`, the
        next averages are of later steps alone.
        """
        return stats.of_step([self.exchange], self.parameters, reset)

    @property
    def can_resume(self) -> bool:
        """Whether `resume` can follow `suspend`. A process group would not outlive it."""
        return not self.gradients.closed and self._group is None

    def suspend(self, why: str) -> None:
        """End the threads, until `resume`; `why` is an error's message until then."""
        self.gradients.suspend(why)

    def resume(self) -> None:
        """Average over the workers that are there now, from residuals and momentum of zero."""
        self.gradients.resume()

    def close(self) -> None:
        """End the threads, and let the optimizer apply its own momentum again.

        Nothing can be averaged afterwards.
        """
        if self._copied is None:
            self.gradients.close()
