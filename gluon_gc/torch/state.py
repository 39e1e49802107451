"""What compression keeps for the parameters of a model."""

from __future__ import annotations

from typing import (
    Any,
    Callable,
    Collection,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)

import torch
import torch.distributed as dist
from torch.futures import Future
from torch.optim import Optimizer

from ..compression import CompressionParams, candidates
from ..log import logger
from ..options import checked_epoch
from ..plan import Tensor, require_on_nonfinite
from . import automatic, closing, header, saving, staging, stats
from .exchange import Exchange
from .job import Job
from .left_out import LeftOut
from .momentum import Momentum, momentum_of
from .optimizer_hooks import before_step, param_groups
from .settings import (
    chosen_params,
    facts_of,
    learning_rates,
    named,
    require_optimizer,
)
from .sparse import SparseJob


class CompressionState:
    """How the gradients of parameters are compressed, and what is carried from step to step.

    Every worker makes its states, and uses them, in the same order.

    Parameters
    ----------
    named_parameters : iterable of (str, Parameter)
        As `model.named_parameters()`. Those that need no gradient are left out.
    compression_params : dict, optional
        As `gluon_gc.DistributedTrainer` takes it; `gluon_gc.compression.keys` lists the keys. With
        the compressor "auto", links and kernels are measured here, which takes some seconds.
    optimizer : Optimizer, optional
        What will step. Needed where compression applies momentum, whose value is taken from its
        parameter groups, which get 0; for "corrected" error feedback, which needs learning rates;
        and for on_nonfinite="skip".
    process_group : ProcessGroup, optional
        The workers that average gradients; by default all.
    overrides : mapping of str to (dict or None), optional
        compression_params of single parameters, by name or by a pattern such as "*.bias"; None: not
        compressed. The first that matches counts.
    on_nonfinite : str
        What happens where a gradient has a NaN or an infinity on any worker. "raise": a
        RuntimeError that names the parameter and the step, on all workers. "skip": the optimizer's
        step is left out, on all workers. "propagate": nothing. Whichever it is, what compression
        carries over for that chunk starts again from zero.
    grad_scaler : torch.amp.GradScaler, optional
        What scales the loss. Its scale is divided out before compression, and multiplied in again
        after it; what is not finite propagates, since it skips such steps.

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
        self._given, has_nesterov = chosen_params(
            self.parameters, compression_params, overrides, mu, nesterov, optimizer
        )
        require_optimizer(self._given.values(), optimizer)
        self._on_nonfinite = "propagate" if grad_scaler is not None else on_nonfinite
        self._optimizer, self._grad_scaler = optimizer, grad_scaler
        applied = any(params.mu is not None for params in self._given.values())
        self.momentum = Momentum(optimizer, mu, has_nesterov) if applied else None
        self.rates: Dict[str, float] = {}  # of learning, in the step before
        self._ratios: Dict[str, float] = {}
        self.steps, self._group, self._closed, self._copied = 0, process_group, "", None
        self._begun = 0  # steps, with those that were left out
        self._nonfinite: List[str] = []  # whose gradients were not, in the step before
        self._stamp = header.SAME
        self._made: Set[str] = set()  # whose gradients backward has made since they were averaged
        self.when_made: Callable[[torch.Tensor], None] = lambda parameter: None
        self.when_stepping: Callable[[], None] = lambda: None
        self._left_out = LeftOut(self.parameters.values(), self._take_back)
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._note)
            for parameter in self.parameters.values()
        ]
        if optimizer is not None:
            self._handles.append(before_step(optimizer, self._before_step))
        closing.opened(self)
        undecided = self._tensors(self._undecided())
        self._open(automatic.chosen(undecided, process_group) if undecided else {})

    # Set-up

    def _undecided(self) -> Dict[str, CompressionParams]:
        """What was given for the parameters that "auto" is for."""
        given = self._given.items()
        return {name: params for name, params in given if params.accuracy is not None}

    def _open(self, chosen: Dict[str, str]) -> None:
        """Make ready to average gradients: compressed as given, or as chosen where that is it."""
        self._chosen, self.params = chosen, dict(self._given)
        for name, choice in chosen.items():
            self.params[name] = candidates(self._given[name])[choice]
        self.exchange = Exchange(self._group)
        wires = {
            name: staging.wire_of(parameter.dtype, self.params[name].fp16)
            for name, parameter in self.parameters.items()
        }
        devices = {name: parameter.device for name, parameter in self.parameters.items()}
        about = [("", {"algorithm": None})]  # others have one
        self.exchange.declare(self._tensors(self.params), wires, devices, about=about)
        # Those whose compressor applies no momentum.
        self._plain = {n for n in self.parameters if not self.exchange.applies_momentum(n)}
        self._carries = any(channel.carries for channel in self.exchange.channels)

    def recall(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """Have "auto" choose what a state_dict that lists such parameters had.

        Once a step was taken its choice stays.
        """
        chosen = {**self._chosen, **automatic.recalled(self._undecided(), saved)}
        if chosen != self._chosen and not self.steps:
            self.exchange.close()
            self._open(chosen)

    def _tensors(self, params: Mapping[str, CompressionParams]) -> List[Tensor]:
        """Parameters with these params, the last ones first, as backward comes to them."""
        return [
            self._tensor(index, name, params[name])
            for index, name in reversed(list(enumerate(self.parameters)))
            if name in params
        ]

    def _tensor(self, index: int, name: str, params: CompressionParams) -> Tensor:
        parameter = self.parameters[name]
        dtype = staging.planned_dtype(parameter.dtype)
        called = f"the gradient of parameter {name}"
        size = staging.real_numel(parameter)
        on_nonfinite = "skip" if self._grad_scaler is not None else self._on_nonfinite
        return Tensor(name, size, dtype, params, index, called, on_nonfinite)

    def name_of(self, parameter: torch.Tensor) -> str:
        """What a parameter was called.

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
        """Tell compressors with a warm-up which epoch it is, counted from 0; all workers alike.

        Until it is called they compress as after the warm-up.
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
            By the parameters' names, each of the parameter's shape or flat, of its dtype, dense,
            and all on one device. All workers call this with the same names in the same order.
        begins : bool
            Whether these are the first of a step, which may average gradients in several calls.
        absent : collection of str
            Those that this worker has no gradient of; their values must be zeros.

        Returns
        -------
        Future
            It has an error, or the names of those that no worker has a gradient of: their values
            are zeros, and residual and momentum are as before.
        """
        present = [name for name in gradients if name not in absent]
        self._begin(begins, present)
        stamp = self._stamp if present else header.SAME
        staged = staging.Staged(gradients)
        future = self._future(staged.device)
        loss_scale = self._grad_scaler.get_scale() if self._grad_scaler is not None else 1.0
        step = self.steps

        def done(job: Job, error: Optional[BaseException]) -> None:
            error = error or self._refused(job, step)
            if error is None:
                staged.finish(loss_scale)
                future.set_result(job.unused)
            else:
                future.set_exception(error)

        scale = 1.0 / (loss_scale * self.exchange.workers)
        job = Job(staged, scale, self._ratios, done, absent, stamp, self._left_out.keeps)
        self.exchange.start(job)
        return future

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
        self._begin(begins, [])
        if name not in self._plain and self.params[name].compressor is not None:
            logger.info("the gradient of %s is sparse, and travels uncompressed", name)
        self._plain.add(name)
        parameter, step = self.parameters[name], self.steps
        future = self._future(parameter.device)

        def done(job: SparseJob, error: Optional[BaseException]) -> None:
            error = error or self._refused(job, step)
            if error is None:
                future.set_result(None if job.unused else job.result)
            else:
                future.set_exception(error)

        values = torch.zeros_like(parameter, layout=torch.sparse_coo)
        values = values if gradient is None else gradient
        stamp = header.SAME if gradient is None else self._stamp
        self.exchange.start_sparse(SparseJob(name, values, gradient is None, stamp, done))
        return future

    def take_made(self, names: Iterable[str]) -> Set[str]:
        """Those of these parameters whose gradients backward has made since this was called."""
        made = self._made.intersection(names)
        self._made -= made
        return made

    def _note(self, parameter: torch.Tensor) -> None:
        """What the hook of a parameter does, when backward has added to its gradient."""
        self._made.add(self._names[parameter])
        self.when_made(parameter)

    @staticmethod
    def _future(device: torch.device) -> Future[Any]:
        return Future(devices=[device] if device.type == "cuda" else [])

    def _begin(self, begins: bool, names: Iterable[str]) -> None:
        """Get ready to exchange gradients, perhaps the first ones of a step."""
        if begins:
            self._require_usable()
            if not self._begun:
                mu = self.momentum and self.momentum.mu
                self.exchange.agree(facts_of(self._optimizer, mu), "begin the first step")
            if self._carries:
                self._left_out.begin(allowed=bool(self._nonfinite))
            self._nonfinite = []
            self.steps += 1
            self._next_ratios()
            rates = header.checksum(learning_rates(self._optimizer))
            self._begun += 1
            self._stamp = header.Stamp(self._begun % 2**32, self._left_out.count % 2**32, rates)
        self._left_out.exchange(names)

    def _require_usable(self) -> None:
        if self._closed:
            raise RuntimeError(self._closed)
        for name, parameter in self._frozen.items():
            if parameter.requires_grad:
                raise RuntimeError(
                    f"parameter {name} needed no gradient when its CompressionState was made, so "
                    "that its gradient is not averaged: make the state after it is unfrozen"
                )

    def _take_back(self, names: Iterable[str]) -> None:
        """Undo the last exchange of these gradients."""
        self.exchange.take_back(names)
        self.steps -= 1
        self.rates = self._rates_before

    def _next_ratios(self) -> None:
        """Find for each parameter its previous learning rate over that of the step to come."""
        self._rates_before, self.rates = self.rates, dict(self.rates)
        self._ratios: Dict[str, float] = {}
        groups = param_groups(self._optimizer) if self._optimizer is not None else []
        for group in groups:
            rate = float(group.get("lr", 0.0))
            names = [self._names[p] for p in group["params"] if p in self._names] if rate else []
            for name in names:
                before = self.rates.get(name, rate)
                self.rates[name] = rate
                if rate != before:
                    self._ratios[name] = before / rate

    def _refused(self, job: Job, step: int) -> Optional[Exception]:
        """What to raise because of what is not finite."""
        self._nonfinite += job.nonfinite
        if not job.nonfinite or self._on_nonfinite != "raise":
            return None
        return RuntimeError(
            f"the gradient of parameter {job.nonfinite[0]} has a NaN or an infinity in step {step}"
        )

    def _before_step(self) -> None:
        """What the optimizer's hook does; the optimizer leaves gradients alone that are None."""
        self.when_stepping()
        if self._nonfinite and self._on_nonfinite == "skip":
            logger.warning(
                "step %d is left out: the gradient of parameter %s has a NaN or an infinity",
                self.steps,
                self._nonfinite[0],
            )
            for group in param_groups(self._optimizer):
                for parameter in group["params"]:
                    parameter.grad = None
        else:
            self.apply_momentum(self.parameters)

    def apply_momentum(self, names: Iterable[str]) -> None:
        """Change averages, in these parameters' gradients, into what the optimizer is to apply."""
        if self.momentum is not None:
            pairs = [(name, self.parameters[name]) for name in names]
            self.momentum.before_step(pairs, self._plain)

    # Checkpoints

    def state_dict(self) -> Dict[str, Any]:
        """What this worker carries over: residuals, momentum and random streams, by parameter.

        Plain values and tensors, which `torch.load(weights_only=True)` reads. Each worker has its
        own, and saves it; nothing may be under way.
        """
        return self._copied or saving.state_dict(self)

    def load_state_dict(
        self,
        state_dict: Union[Mapping[str, Any], Sequence[Mapping[str, Any]]],
        strict: bool = True,
    ) -> None:
        """Go on from what `state_dict` returned; all workers call this.

        Parameters
        ----------
        state_dict : mapping or sequence of mapping
            This worker's; or, for another number of workers than there was, those of all of them.
            Residuals are shared out then so that their sum stays what it was, with a warning.
            Before the first step, "auto" chooses again what it had chosen there.
        strict : bool
            Whether the parameters must be the same. Otherwise those that are new start from zero.

        Raises
        ------
        ValueError
            It does not fit; nothing was changed.
        RuntimeError
            It does not fit on another worker, or is of another step there; nothing was changed.
        """
        self._require_usable()
        saving.load(self, state_dict, strict)
        self._left_out.loaded()

    def __getstate__(self) -> Dict[str, Any]:
        """A copy has what `state_dict` returns; it has no workers to exchange anything with."""
        return {
            "parameters": self.parameters,
            "params": self.params,
            "steps": self.steps,
            "_names": self._names,
            "_copied": self.state_dict(),
            "_closed": "this is a copy of a CompressionState, which averages nothing: make a new "
            "one, and have it load what the copy's state_dict() returns",
        }

    # What it did

    def compression_stats(self, reset: bool = False) -> Dict[str, Any]:
        """Bytes and seconds of a step, on average, of each parameter and in all.

        The keys are those of `gluon_gc.DistributedTrainer.compression_stats`. With `reset`, the
        next averages are of later steps alone.
        """
        return stats.of_step([self.exchange], self.parameters, reset)

    @property
    def can_resume(self) -> bool:
        """Whether `resume` can follow `suspend`: a process group would not outlive it."""
        return not self._closed and self._group is None

    def suspend(self, why: str) -> None:
        """End the threads, until `resume`; `why` is an error's message until then."""
        self._closed = why
        self.exchange.close()

    def resume(self) -> None:
        """Average over the workers that are there now, from residuals and momentum of zero."""
        self._closed = ""
        closing.opened(self)
        self._open(self._chosen)
        self._left_out.loaded()

    def close(self) -> None:
        """End the threads, and let the optimizer apply its own momentum again.

        Nothing can be averaged afterwards.
        """
        if not self._closed:
            self._closed = "this CompressionState is closed"
            for handle in self._handles:
                handle.remove()
            if self.momentum is not None:
                self.momentum.give_back()
            self._left_out.close()
            self.exchange.close()
