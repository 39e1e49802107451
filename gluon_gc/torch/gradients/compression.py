"""The compression of each gradient of a model, and the exchange that sends them."""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Set

import torch
import torch.distributed as dist

from ... import env
from ...compression import CompressionParams, candidates
from ...plan import applies_momentum, travels_compressed
from .. import automatic
from ..declared_tensor import DeclaredTensor, declared
from ..exchange import Exchange


class GradientCompression:
    """The compression of each parameter's gradient, and the exchange that sends the gradients.

    All workers create it together.

    Parameters
    ----------
    parameters : mapping of str to Parameter
        By name.
    params : mapping of str to CompressionParams
        The requested compression of each parameter. "auto" is replaced by a measured choice.
    on_nonfinite : str
        See `plan.Tensor`.
    group : ProcessGroup, optional
        The workers. Default: all workers.

    Attributes
    ----------
    requested : mapping of str to CompressionParams
        The requested compression of each parameter.
    choices : mapping of str to str
        The names of the candidates that "auto" has chosen, by parameter.
    params : dict of str to CompressionParams
        The compression of each parameter, with the choices of "auto".
    exchange : Exchange
    without_momentum : set of str
        The parameters whose compressor applies no momentum.
    mu : float, optional
        The momentum coefficient of all parameters with momentum. None: that of their params.
    carries : bool
        Whether workers keep a residual or momentum for any gradient.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        params: Mapping[str, CompressionParams],
        on_nonfinite: str,
        group: Optional[dist.ProcessGroup],
    ) -> None:
        self._parameters, self.requested = parameters, params
        self._on_nonfinite, self._group = on_nonfinite, group
        undecided = {name: own for name, own in params.items() if own.accuracy is not None}
        self.choices: Mapping[str, str] = {}
        if undecided:
            tensors = [tensor.plan for tensor in self._declared(undecided)]
            self.choices = automatic.chosen(tensors, group)
        self._epoch: Optional[int] = None
        self.mu: Optional[float] = None
        self.open()

    def open(self) -> None:
        """Create the exchange, or a new one after the first was closed."""
        self.params: Dict[str, CompressionParams] = dict(self.requested)
        for name, choice in self.choices.items():
            self.params[name] = candidates(self.requested[name])[choice]
        tensors = self._declared(self.params)
        self.exchange = Exchange(self._group)
        self.exchange.declare(tensors, about=[("", {"algorithm": None})])  # a worker may have one
        if self._epoch is not None:
            self.exchange.set_epoch(self._epoch)
        if self.mu is not None:
            self.exchange.set_momentum(self.mu)
        minimum = env.get("BYTEPS_MIN_COMPRESS_BYTES")
        compressed = [t.plan.params for t in tensors if travels_compressed(t.plan, minimum)]
        self.carries = any(params.keeps_state for params in compressed)
        self.without_momentum: Set[str] = {
            tensor.plan.name for tensor in tensors if not applies_momentum(tensor.plan, minimum)
        }

    def set_epoch(self, epoch: int) -> None:
        """Tell the compressors the epoch, counted from 0. No gradients may be under way."""
        self._epoch = epoch
        self.exchange.set_epoch(epoch)

    def set_momentum(self, mu: float) -> None:
        """Use this momentum coefficient from now on. No gradients may be under way."""
        self.mu = mu
        self.exchange.set_momentum(mu)

    def choose(self, choices: Mapping[str, str]) -> None:
        """Use these choices of "auto". All workers call this, with no gradients under way."""
        if choices != self.choices:
            self.choices = choices
            self.exchange.close()
            self.open()

    def _declared(self, params: Mapping[str, CompressionParams]) -> List[DeclaredTensor]:
        """Return the gradients of these parameters, in the order in which backward computes them.

        The order is approximate: the last parameter comes first.
        """
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
