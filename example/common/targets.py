"""Training targets: label smoothing and mixup."""

from typing import Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray


class Targets:
    """Turns labels into class probabilities, and mixes pairs of images.

    Parameters
    ----------
    classes : int
        Number of classes.
    smoothing : float
        Probability that is spread evenly over all classes (Szegedy et al. 2015).
    mixup : float
        Both parameters of the beta distribution from which the mixing weight is drawn (Zhang et
        al. 2017); 0: no mixing.
    unmixed_from : int, optional
        The epoch from which images are no longer mixed.
    """

    def __init__(
        self,
        classes: int,
        smoothing: float = 0.0,
        mixup: float = 0.0,
        unmixed_from: Optional[int] = None,
    ) -> None:
        self._classes = classes
        self._smoothing = smoothing
        self._mixup = mixup
        self._unmixed_from = unmixed_from

    def __call__(
        self, pixels: NDArray, labels: NDArray, epoch: int, rng: np.random.Generator
    ) -> Tuple[NDArray, NDArray]:
        """Return the images, mixed if mixup is on, and their targets of shape (n, classes)."""
        spread = self._smoothing / self._classes
        targets = mx.nd.one_hot(labels, self._classes, 1 - self._smoothing + spread, spread)
        if not self._mixup or (self._unmixed_from is not None and epoch >= self._unmixed_from):
            return pixels, targets
        share = rng.beta(self._mixup, self._mixup)
        return (
            share * pixels + (1 - share) * pixels[::-1],
            share * targets + (1 - share) * targets[::-1],
        )
