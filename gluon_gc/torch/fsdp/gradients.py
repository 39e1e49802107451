"""The compressed exchange of one FSDP module's gradients, step by step.

ReduceScatter and AcrossReplicas have in common which steps there are, and which are taken back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Collection, Iterator, Mapping, Tuple

import torch
from torch.futures import Future

from ...compression import CompressionParams
from ...exchange.chunk import ExchangedChunk
from ...exchange.exchange import Exchange
from ...exchange.header import Stamp
from ...exchange.job import Announced, Done, Request, Result
from ..gradients.scaler import ScaleWatch, if_enabled
from ..gradients.settings import chosen_params, named, require_optimizer
from ..gradients.undo import Undo, is_nonzero
from ..state.sharded import Unit, parameter_of
from ..transport import staging
from ..transport.staging import future_on, resolving
from .parts import Part


@dataclass(frozen=True)
class GradientSettings:
    """The checked arguments of a function that compresses the gradients of a model."""

    function: str  # its name
    parameters: Mapping[str, torch.Tensor]  # that need gradients
    frozen: Mapping[str, torch.Tensor]
    params: Mapping[str, CompressionParams]
    on_nonfinite: str
    grad_scaler: torch.amp.GradScaler | None  # gradients are unscaled meanwhile
    scale_watch: ScaleWatch | None  # it watches while this object exists


def gradient_settings(
    function: str,
    model: torch.nn.Module,
    compression_params: Mapping[str, Any] | None,
    overrides: Mapping[str, Mapping[str, Any] | None] | None,
    on_nonfinite: str,
    grad_scaler: torch.amp.GradScaler | None,
) -> GradientSettings:
    """Check the arguments of a public function; see `compress_reduce_scatter`."""
    if on_nonfinite not in ("raise", "propagate"):
        raise ValueError(f"on_nonfinite must be 'raise' or 'propagate', got {on_nonfinite!r}")
    grad_scaler = if_enabled(grad_scaler)
    if grad_scaler is not None:
        on_nonfinite = "propagate"
    parameters, frozen, _ = named(model.named_parameters())
    params = chosen_params(parameters, compression_params, overrides).params
    require_optimizer((p.require_chosen().require_no_inner() for p in params.values()), None)
    unknown = grad_scaler is None and any(p.keeps_state for p in params.values())
    watch = ScaleWatch(parameters.values(), function) if unknown else None
    return GradientSettings(function, parameters, frozen, params, on_nonfinite, grad_scaler, watch)


Facts = Tuple[int, int, int]  # about a gradient: 0 or 1


class GradientUnit(Unit):
    """Exchanges the gradients of one FSDP module.

    Subclasses set `exchange` and `chunks` before their first step.
    """

    def __init__(self, part: Part, settings: GradientSettings) -> None:
        self.parameters, self._frozen = part.parameters, part.others(settings.frozen)
        self.shards = part.shards(settings.params, settings.on_nonfinite)
        self.dtype = staging.real_dtype(part.gradient_dtype)
        self._settings, self._part = settings, part
        self._steps = self._begun = 0
        self.undo = Undo(part.parameters, self._take_back, self._in_use)
        self.exchange: Exchange | None = None
        self.chunks: list[ExchangedChunk] = []

    def _start(
        self,
        values: staging.Staged,
        sums: staging.Staged,
        own: Mapping[str, torch.Tensor],
        average: bool,
    ) -> Future[list[torch.Tensor]]:
        """Start to exchange values. The sums, or averages, are written to `sums`.

        `own` has this worker's sums by parameter. The future has an error if a sum has a NaN or an
        infinity, and that is not allowed.
        """
        continues = self._begin()
        scaler = self._settings.grad_scaler
        loss_scale = scaler.get_scale() if scaler is not None else 1.0
        steps, future = self._steps, future_on(sums.device)

        def result(found: Result) -> list[torch.Tensor]:
            if found.nonfinite and self.shards.on_nonfinite == "raise":
                name = parameter_of(found.nonfinite[0])
                raise RuntimeError(
                    f"the gradient of parameter {name} has a NaN or an infinity in step {steps}"
                )
            sums.finish(loss_scale)
            with sums.queue():
                drawn = {name for name in own if self.shards.params[name].draws}
                self.undo.note_zeros(own, drawn)
            return list(own.values())

        stamp = Stamp(self._begun % 2**32, self.undo.digest)
        request = Request(
            values,
            average=average,
            divisor=loss_scale,
            stamp=lambda: stamp,
            continues=continues,
            output=sums,
            announced=self._announced(),
        )
        self._send(request, resolving(future, result, sums))
        return future

    def _announced(self) -> Announced | None:
        """Return what the workers compare first, so that they do not wait for each other."""
        return None

    def _send(self, request: Request, done: Done) -> None:
        """Start a request of this module's gradients."""
        raise NotImplementedError

    def _require_gradients(self, elements: int, expected: int) -> None:
        """Raise a RuntimeError unless FSDP passes the gradients of these parameters.

        It passes neither names nor the gradients of parameters that got none.
        """
        function = self._settings.function
        changed = [n for n, p in self.parameters.items() if not p.requires_grad]
        changed += [n for n, p in self._frozen.items() if p.requires_grad]
        if changed:
            raise RuntimeError(
                f"parameter {changed[0]} was frozen or unfrozen after {function}: call it again, "
                "before the next step"
            )
        if elements != expected:
            raise RuntimeError(
                f"a parameter of {', '.join(self.parameters)} got no gradient: with {function}, "
                "every parameter must get one in every step"
            )

    def _begin(self) -> set[str]:
        """Begin a step; return the shards that continue one, which add several backward passes."""
        names = self.undo.begin()
        self.undo.exchanged(self.parameters)
        self._steps += 1
        self._begun += 1
        return {chunk.piece.tensor for chunk in self._of(names)}

    def _in_use(self, names: list[str]) -> set[str]:
        """Return the parameters to whose gradients FSDP will add the sums, on any worker."""
        every = self._of_all([tuple(map(int, self._facts(name))) for name in names])
        return {
            name
            for name, of_workers in zip(names, zip(*every))
            for kept, nonzero, was_nonzero in [map(max, zip(*of_workers))]
            if nonzero or (kept and not was_nonzero)
        }

    def _of_all(self, facts: list[Facts]) -> list[list[Facts]]:
        """Return the facts of all workers that may have others, given this worker's."""
        return [facts]

    def _facts(self, name: str) -> Facts:
        """Return whether a gradient has its sum, is not zero now, and was not zero before."""
        kept = self.undo.keeps(name)
        nonzero = kept and bool(is_nonzero(self.parameters[name].grad.to_local()))
        if kept and not nonzero:
            self.undo.unclear.add(name)
        return kept, nonzero, not self.undo.was_zero(name)

    def _take_back(self, names: list[str], whole: bool) -> None:
        for chunk in self._of(names):
            for coder in (chunk.coder, chunk.aggregator):
                if coder is not None:
                    coder.take_back()
        self._steps -= whole

    def _of(self, names: Collection[str]) -> Iterator[ExchangedChunk]:
        """Yield the compressed chunks of these parameters."""
        return (c for c in self._compressed() if parameter_of(c.piece.tensor) in names)

    def _compressed(self) -> list[ExchangedChunk]:
        return [chunk for chunk in self.chunks if chunk.coder is not None]

    def _own(self, output: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return this worker's shards by parameter, as views of FSDP's flat output."""
        return dict(zip(self.parameters, self.shards.split(self.shards.rank, output).values()))
