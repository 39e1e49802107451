"""Reads CIFAR-100 and MNIST from the files that they are published as; downloads nothing."""

import gzip
import struct
from pathlib import Path
from typing import Union

import mxnet as mx
import numpy as np
from mxnet.gluon.data import ArrayDataset

CIFAR_SHAPE = (3, 32, 32)
CIFAR_RECORD = 2 + int(np.prod(CIFAR_SHAPE))  # coarse label, fine label, pixels
IDX_IMAGES, IDX_LABELS = 2051, 2049  # the first number of an idx file
MNIST_FILES = {True: "train", False: "t10k"}


def default_folder(name: str) -> str:
    """Return where Gluon keeps a data set that it has downloaded."""
    return str(Path(mx.base.data_dir()) / "datasets" / name)


def existing(path: Union[str, Path]) -> Path:
    """Return the path with ~ expanded; FileNotFoundError if nothing is there."""
    path = Path(path).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: example/README.md says how to get or make it")
    return path


def cifar100(folder: str, train: bool) -> ArrayDataset:
    """Read CIFAR-100's binary version, train.bin or test.bin.

    Returns
    -------
    ArrayDataset
        Images (32, 32, 3) uint8, and their fine labels, 0 to 99.
    """
    path = existing(Path(folder) / ("train.bin" if train else "test.bin"))
    content = np.fromfile(path, np.uint8)
    if len(content) % CIFAR_RECORD:
        raise ValueError(f"{path} must have {CIFAR_RECORD} bytes an image, has {len(content)}")
    records = content.reshape(-1, CIFAR_RECORD)
    pixels = records[:, 2:].reshape(-1, *CIFAR_SHAPE).transpose(0, 2, 3, 1)
    return ArrayDataset(mx.nd.array(pixels, dtype=np.uint8), records[:, 1].astype(np.int32))


def _read_idx(path: Path, kind: int, dimensions: int) -> np.ndarray:
    """Read an idx file of bytes, compressed with gzip."""
    with gzip.open(existing(path)) as file:
        found, *shape = struct.unpack(f">{1 + dimensions}I", file.read(4 + 4 * dimensions))
        if found != kind:
            raise ValueError(f"{path} must begin with the number {kind}, got {found}")
        return np.frombuffer(file.read(), np.uint8).reshape(shape)


def mnist(folder: str, train: bool) -> ArrayDataset:
    """Read MNIST's idx files, compressed with gzip.

    Returns
    -------
    ArrayDataset
        Images (28, 28, 1) uint8, and their labels, 0 to 9.
    """
    stem = Path(folder) / MNIST_FILES[train]
    pixels = _read_idx(Path(f"{stem}-images-idx3-ubyte.gz"), IDX_IMAGES, 3)
    labels = _read_idx(Path(f"{stem}-labels-idx1-ubyte.gz"), IDX_LABELS, 1)
    return ArrayDataset(mx.nd.array(pixels[..., None], dtype=np.uint8), labels.astype(np.int32))
