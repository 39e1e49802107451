"""Reads images from one folder per class, like torchvision's ImageFolder, without torchvision."""

import math
from pathlib import Path
from typing import Callable, Tuple

import numpy as np
import torch
from common.shuffling import shuffled_share
from PIL import Image
from torch.utils.data import DataLoader, Dataset

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of pixels in [0, 1]
ENDINGS = {".bmp", ".jpeg", ".jpg", ".png", ".webp"}
RESIZED = 1.143  # a validation image is resized to this times the input's size, then cropped


class ImageFolder(Dataset):
    """Images with labels. A label is the index of the image's folder in order of names.

    Parameters
    ----------
    folder : Path
    prepare : callable
        Turns a PIL image into a tensor.
    """

    def __init__(self, folder: Path, prepare: Callable[[Image.Image], torch.Tensor]) -> None:
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder} is missing: example/README.md says how to make it")
        self.classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
        self._files = [
            (path, label)
            for label, name in enumerate(self.classes)
            for path in sorted((folder / name).rglob("*"))
            if path.suffix.lower() in ENDINGS
        ]
        self._prepare = prepare

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Tuple[torch.Tensor, int]:
        path, label = self._files[index]
        with Image.open(path) as image:
            return self._prepare(image.convert("RGB")), label


class Augment:
    """Take a random crop, resize it, and mirror it with probability 1/2.

    Parameters
    ----------
    size : int
        Height and width of the result in pixels.
    """

    def __init__(self, size: int) -> None:
        self._size = size

    def __call__(self, image: Image.Image) -> torch.Tensor:
        width, height = image.size
        for _ in range(10):
            area = width * height * float(torch.empty(1).uniform_(0.08, 1))
            ratio = math.exp(float(torch.empty(1).uniform_(-1, 1)) * math.log(4 / 3))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                break
        else:
            w = h = min(width, height)
        left = int(torch.randint(width - w + 1, ()))
        top = int(torch.randint(height - h + 1, ()))
        box = (left, top, left + w, top + h)
        image = image.resize((self._size, self._size), Image.Resampling.BILINEAR, box)
        if torch.rand(()) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return as_tensor(image)


class Middle:
    """Resize an image and take the centre crop.

    Parameters
    ----------
    size : int
        Height and width of the result in pixels.
    """

    def __init__(self, size: int) -> None:
        self._size = size

    def __call__(self, image: Image.Image) -> torch.Tensor:
        factor = round(self._size * RESIZED) / min(image.size)
        width, height = (round(factor * edge) for edge in image.size)
        left, top = (width - self._size) // 2, (height - self._size) // 2
        image = image.resize((width, height), Image.Resampling.BILINEAR)
        return as_tensor(image.crop((left, top, left + self._size, top + self._size)))


def as_tensor(image: Image.Image) -> torch.Tensor:
    """Return normalised pixels, float32 of shape (3, height, width)."""
    pixels = (np.asarray(image, np.float32) / 255 - MEAN) / DEVIATION
    return torch.from_numpy(pixels.astype(np.float32)).permute(2, 0, 1).contiguous()


def training_batches(
    images: ImageFolder, batch_size: int, rank: int, size: int, seed: Tuple[int, int], workers: int
) -> DataLoader:
    """Return the batches of worker `rank` in one epoch; seed is (run's seed, epoch)."""
    share = shuffled_share(len(images), batch_size, rank, size, seed).tolist()
    order = torch.Generator().manual_seed(1_000_003 * seed[0] + 1009 * seed[1] + rank)
    torch.manual_seed(order.initial_seed())  # for augmentation in this process, if workers is 0
    return DataLoader(images, batch_sampler=share, num_workers=workers, generator=order)


def validation_batches(
    images: ImageFolder, batch_size: int, rank: int, size: int, workers: int
) -> DataLoader:
    """Return the validation images of worker `rank`."""
    return DataLoader(
        images, batch_size, sampler=range(rank, len(images), size), num_workers=workers
    )
