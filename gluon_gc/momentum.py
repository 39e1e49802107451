"""Nesterov momentum where the compressor does not apply it.

With momentum "nesterov" the compressor applies momentum to the gradient, and the optimizer none.
What is left is the momentum of gradients that travel uncompressed, and the part that weight decay
has in the optimizer's momentum.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray


class Momentum:
    """The state of Nesterov momentum mu, by name.

    Parameters
    ----------
    mu : float
        0 < mu.
    """

    def __init__(self, mu: float) -> None:
        self._mu = mu
        self._state: Dict[Any, NDArray] = {}

    def _zeros_like(self, name: Any, array: NDArray) -> NDArray:
        if name not in self._state:
            self._state[name] = mx.nd.zeros_like(array.tostype("default"))
        return self._state[name]

    def add_to_gradient(self, index: int, gradients: Sequence[NDArray]) -> None:
        """m = mu m + g, then g = g + mu m, for the equal gradients of all contexts."""
        dense = gradients[0].tostype("default")
        m = self._zeros_like(index, dense)
        m[:] = self._mu * m + dense
        (dense + self._mu * m).tostype(gradients[0].stype).copyto(gradients[0])
        for other in gradients[1:]:
            gradients[0].copyto(other)

    def add_weight_decay(
        self,
        index: int,
        wd: float,
        weights: Sequence[NDArray],
        gradients: Sequence[NDArray],
        rescale: float,
    ) -> None:
        """w = mu (w + wd x), then g = g + w, where the optimizer will multiply g by `rescale`."""
        for context, (x, gradient) in enumerate(zip(weights, gradients)):
            w = self._zeros_like((index, context), x)
            w[:] = self._mu * (w + wd * x)
            gradient += w / rescale

    def state(self) -> Dict[Any, np.ndarray]:
        """For a checkpoint."""
        return {name: array.asnumpy() for name, array in self._state.items()}

    def load_state(self, state: Mapping[Any, np.ndarray]) -> None:
        """Go on from what `state` returned."""
        self._state = {name: mx.nd.array(a, dtype=a.dtype) for name, a in state.items()}
