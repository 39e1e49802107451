"""Loads scikit-learn's handwritten digits as training and validation images; needs no framework."""

from typing import NamedTuple, Tuple

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SPLIT_SEED = 0  # the split is the same on all workers and in all runs, for any --seed


class Images(NamedTuple):
    """Images with their labels."""

    pixels: np.ndarray  # (n, 1, 8, 8) float32 in [0, 1]
    labels: np.ndarray  # (n,) float32, 0 to 9


def load_images() -> Tuple[Images, Images]:
    """Return 1437 training and 360 validation images, with equal shares of each digit."""
    digits = load_digits()
    pixels = (digits.images / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    labels = digits.target.astype(np.float32)
    train_x, val_x, train_y, val_y = train_test_split(
        pixels, labels, test_size=0.2, stratify=labels, random_state=SPLIT_SEED
    )
    return Images(train_x, train_y), Images(val_x, val_y)
