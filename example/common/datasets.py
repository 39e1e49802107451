"""Reads CIFAR and MNIST from their published files; downloads nothing."""

import gzip
import struct
from pathlib import Path
from typing import Sequence, Union

import mxnet as mx
import numpy as np
from mxnet.gluon.data import ArrayDataset

CIFAR_SHAPE = (3, 32, 32)
CIFAR_PIXELS = int(np.prod(CIFAR_SHAPE))
IDX_IMAGES, IDX_LABELS = 2051, 2049  # the first number of an idx file
MNIST_FILES = {True: "train", False: "t10k"}


def default_folder(name: str) -> str:
    """Return the folder into which Gluon downloads a data set."""
    return str(Path(mx.base.data_dir()) / "datasets" / name)


def existing(path: Union[str, Path]) -> Path:
    """Expand ~ in a path; raises FileNotFoundError if the path does not exist."""
    path = Path(path).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: example/README.md says how to get or make it")
    return path


def cifar100(folder: str, train: bool) -> ArrayDataset:
    """Read CIFAR-100's binary version, train.bin or test.bin.

    Returns
    -------
    ArrayDataset
        Images (32, 32, 3) uint8 with their fine labels, 0 to 99.
    """
    return _cifar(folder, ["train.bin" if train else "test.bin"], labels=2)


def cifar10(folder: str, train: bool) -> ArrayDataset:
    """Read CIFAR-10's binary version, data_batch_1.bin to data_batch_5.bin, or test_batch.bin.

    Returns
    -------
    ArrayDataset
        Images (32, 32, 3) uint8 with their labels, 0 to 9.
    """
    files = [f"data_batch_{i}.bin" for i in range(1, 6)] if train else ["test_batch.bin"]
    return _cifar(folder, files, labels=1)


def _cifar(folder: str, names: Sequence[str], labels: int) -> ArrayDataset:
    """Read files of records: `labels` bytes, the last one being the label, then the pixels."""
    whole = []
    for name in names:
        path, record = existing(Path(folder) / name), labels + CIFAR_PIXELS
        content = np.fromfile(path, np.uint8)
        if len(content) % record:
            raise ValueError(
                f"{path} must have a multiple of {record} bytes, one record per image, "
                f"has {len(content)}"
            )
        whole.append(content.reshape(-1, record))
    records = np.concatenate(whole)
    pixels = records[:, labels:].reshape(-1, *CIFAR_SHAPE).transpose(0, 2, 3, 1)
    classes = records[:, labels - 1].astype(np.int32)
    return ArrayDataset(mx.nd.array(pixels, dtype=np.uint8), classes)


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
        Images (28, 28, 1) uint8 with their labels, 0 to 9.
    """
    stem = Path(folder) / MNIST_FILES[train]
    pixels = _read_idx(Path(f"{stem}-images-idx3-ubyte.gz"), IDX_IMAGES, 3)
    labels = _read_idx(Path(f"{stem}-labels-idx1-ubyte.gz"), IDX_LABELS, 1)
    return ArrayDataset(mx.nd.array(pixels[..., None], dtype=np.uint8), labels.astype(np.int32))
