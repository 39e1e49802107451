"""The compression of each parameter of a trainer."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence, Tuple

from mxnet.gluon import Parameter
from mxnet.optimizer import Optimizer

from ...algorithms import Algorithm
from ...algorithms.requirements import require_fitting_compression
from ...compression import CompressionParams, byteps
from ...compression.momentum import has_nesterov
from .momentum import Momentum, require_outside

OptimizerInfo = Tuple[Optional[float], bool, str]
"""An optimizer's momentum, whether it is Nesterov momentum, and the optimizer's name."""


class Compressions:
    """The compression_params of a trainer, and those of single parameters, which override them.

    Parameters
    ----------
    given : mapping, optional
        The trainer's compression_params, as the user wrote them.
    default : CompressionParams
        The same, parsed.
    params : sequence of Parameter
    optimizer_info : OptimizerInfo
    algorithm : Algorithm, optional
        The trainer's algorithm.

    Attributes
    ----------
    written : list of (mapping or None)
        The compression_params of the trainer and of single parameters, as users wrote them.

    Raises
    ------
    ValueError, TypeError, KeyError
        The compression_params of a parameter are wrong, or do not fit the algorithm.
    """

    def __init__(
        self,
        given: Optional[Mapping[str, Any]],
        default: CompressionParams,
        params: Sequence[Parameter],
        optimizer_info: OptimizerInfo,
        algorithm: Optional[Algorithm] = None,
    ) -> None:
        spelled = {i: byteps.of_parameter(param, given) for i, param in enumerate(params)}
        own_params = {i: found for i, found in spelled.items() if found is not None}
        self.written = [given, *(found.params for found in own_params.values())]
        if algorithm is not None:
            require_fitting_compression(algorithm, *self.written)
        self.default, self._optimizer_info = default, optimizer_info
        self._parsed = {i: found.parse(*optimizer_info) for i, found in own_params.items()}

    def momentum(self, optimizer: Optimizer) -> Optional[Momentum]:
        """The momentum to apply outside the optimizer; None if no compressor applies momentum.

        Raises
        ------
        ValueError
            The optimizer's update is not linear in the gradient, or clips it.
        """
        mu, *_ = self._optimizer_info
        compressors = (self.default, *self._parsed.values())
        if mu is None or all(params.mu is None for params in compressors):
            return None
        require_outside(optimizer)
        return Momentum(mu, self._nesterov)

    def of(self, index: int) -> CompressionParams:
        """The compression of the parameter with this index."""
        return self._parsed.get(index, self.default)

    def _nesterov(self, index: int) -> bool:
        """Whether the parameter has Nesterov momentum."""
        _, optimizer_nesterov, _ = self._optimizer_info
        return has_nesterov(self._parsed.get(index), self.default, optimizer_nesterov)
