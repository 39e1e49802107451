"""How the gradient of each parameter of a trainer is compressed."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence, Tuple

from mxnet.gluon import Parameter
from mxnet.optimizer import Optimizer

from ..algorithms.requirements import require_fitting_compression
from ..compression import CompressionParams, byteps
from ..compression.momentum import has_nesterov, require_linear
from .momentum import LINEAR, Momentum

OfOptimizer = Tuple[Optional[float], bool, str]
"""An optimizer's momentum, whether it is Nesterov's, and the optimizer's name."""


class Compressions:
    """The compression_params of a trainer, and those of single parameters, which win over them.

    Parameters
    ----------
    given : mapping, optional
        The trainer's compression_params, as the user wrote them.
    default : CompressionParams
        The same, parsed.
    params : sequence of Parameter
    of_optimizer : OfOptimizer
    algorithm : str, optional
        The name of the trainer's algorithm.

    Attributes
    ----------
    written : list of (mapping or None)
        The compression_params of the trainer and of single parameters, as users wrote them.

    Raises
    ------
    ValueError, TypeError, KeyError
        The compression_params of a parameter are wrong, or do not go with the algorithm.
    """

    def __init__(
        self,
        given: Optional[Mapping[str, Any]],
        default: CompressionParams,
        params: Sequence[Parameter],
        of_optimizer: OfOptimizer,
        algorithm: Optional[str] = None,
    ) -> None:
        spelled = {i: byteps.of_parameter(param, given) for i, param in enumerate(params)}
        own = {i: found for i, found in spelled.items() if found is not None}
        self.written = [given, *(found.params for found in own.values())]
        if algorithm is not None:
            require_fitting_compression(algorithm, *self.written)
        self.default, self._of_optimizer = default, of_optimizer
        self._parsed = {i: found.parse(*of_optimizer) for i, found in own.items()}

    def momentum(self, optimizer: Optimizer) -> Optional[Momentum]:
        """The momentum to apply outside the optimizer, if the compressor of any parameter does.

        Raises
        ------
        ValueError
            The optimizer's update is not linear in the gradient.
        """
        mu, *_ = self._of_optimizer
        compressors = (self.default, *self._parsed.values())
        if mu is None or all(params.mu is None for params in compressors):
            return None
        require_linear(optimizer, LINEAR)
        return Momentum(mu, self._nesterov)

    def of(self, index: int) -> CompressionParams:
        """The compression of the parameter of this number."""
        return self._parsed.get(index, self.default)

    def _nesterov(self, index: int) -> bool:
        """Whether the parameter has Nesterov's momentum."""
        _, of_optimizer, _ = self._of_optimizer
        return has_nesterov(self._parsed.get(index), self.default, of_optimizer)
