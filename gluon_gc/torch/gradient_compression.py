"""How the gradients of a model are compressed, and the exchange that they travel through."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Set

import torch
import torch.distributed as dist

from .. import env
from ..compression import CompressionParams, candidates
from ..plan import applies_momentum
from . import automatic
from .declared_tensor import DeclaredTensor, declared
from .exchange import Exchange


class GradientCompression:
    """The compression of each parameter's gradient, and an exchange that expects the gradients.

    All workers make it together.

    Parameters
    ----------
    parameters : mapping
        By name.
    params : mapping
        By name, the compression that was asked for. "auto" is replaced by a measured choice.
    on_nonfinite : str
        As `plan.Tensor` has it.
    group : ProcessGroup, optional

    Attributes
    ----------
    params : dict of CompressionParams
        By name, with the choices of "auto".
    exchange : Exchange
    without_momentum : set of str
        The parameters whose compressor applies no momentum.
    carries : bool
        Whether this worker keeps a residual or momentum for any gradient.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        params: Mapping[str, CompressionParams],
        on_nonfinite: str,
        group: Optional[dist.ProcessGroup],
    ) -> None:
        self._parameters, self._asked = parameters, params
        self._on_nonfinite, self._group = on_nonfinite, group
        undecided = [tensor.plan for tensor in self._declared(self._undecided())]
        self._chosen = automatic.chosen(undecided, group) if undecided else {}
        self.open()

    def open(self) -> None:
        """Make the exchange, or a new one after the first was closed."""
        self.params: Dict[str, CompressionParams] = dict(self._asked)
        for name, choice in self._chosen.items():
            self.params[name] = candidates(self._asked[name])[choice]
        tensors = self._declared(self.params)
        self.exchange = Exchange(self._group)
        self.exchange.declare(tensors, about=[("", {"algorithm": None})])  # others have one
        self.carries = any(chunk.carries for chunk in self.exchange.chunks)
        minimum = env.get("BYTEPS_MIN_COMPRESS_BYTES")
        self.without_momentum: Set[str] = {
            tensor.plan.name for tensor in tensors if not applies_momentum(tensor.plan, minimum)
        }

    def recall(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """Let "auto" choose again what a state_dict has for the parameters that it lists."""
        chosen = {**self._chosen, **automatic.recalled(self._undecided(), saved)}
        if chosen != self._chosen:
            self._chosen = chosen
            self.exchange.close()
            self.open()

    def _undecided(self) -> Dict[str, CompressionParams]:
        """The compression of those parameters that "auto" chooses for."""
        asked = self._asked.items()
        return {name: params for name, params in asked if params.accuracy is not None}

    def _declared(self, params: Mapping[str, CompressionParams]) -> List[DeclaredTensor]:
        """The gradients of these parameters, the last ones first, because backward begins there."""
        numbered = reversed(list(enumerate(self._parameters.items())))
        return [
            declared(
                name,
                parameter,
                params[name],
                index,
                called=f"the gradient of parameter {name}",
                on_nonfinite=self._on_nonfinite,
            )
            for index, (name, parameter) in numbered
            if name in params
        ]
