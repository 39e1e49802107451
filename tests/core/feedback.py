"""Momentum and error feedback in NumPy, which the replays of the compressors share."""

import numpy as np
from hypothesis import strategies as st

from . import arrays

kinds = st.fixed_dictionaries({"mu": st.sampled_from([None, 0.9]), "feedback": st.booleans()})
scales = st.sampled_from([1.0, 0.25, 1 / 3])
RATIOS = (1.0, 1.0, 0.5)
"""Of some steps."""


class Feedback:
    """The state between steps, zeros to begin with; None for what is turned off."""

    def __init__(self, size, dtype, mu=None, feedback=False):
        self.dtype, self.mu = np.dtype(dtype).type, mu
        self.momentum = None if mu is None else np.zeros(size, dtype)
        self.residual = np.zeros(size, dtype) if feedback else None

    def correct(self, gradient, gradient_scale=1.0, ratio=1.0):
        """Returns p; what becomes of the residual is up to the compressor."""
        T = self.dtype
        p = gradient * T(gradient_scale)
        if self.momentum is not None:
            self.momentum = T(self.mu) * self.momentum + p
            p = p + T(self.mu) * self.momentum
        if self.residual is not None:
            p = p + T(ratio) * self.residual
        return p

    def state(self, copy=np.copy):
        """A copy of it, as keywords of the kernels."""
        state = {}
        if self.momentum is not None:
            state.update(momentum=copy(self.momentum), mu=self.mu)
        if self.residual is not None:
            state.update(residual=copy(self.residual))
        return state

    def check(self, state):
        """Want the kernels' state to be this one, bit for bit."""
        for name in ("momentum", "residual"):
            expected = getattr(self, name)
            assert expected is None or arrays.same_bits(state[name], expected), name
