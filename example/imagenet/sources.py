"""Reads a worker's share of ImageNet, from RecordIO files or from folders of JPEGs."""

import argparse
import math
from pathlib import Path

from common.datasets import existing
from common.images import DatasetImages
from common.records import RecordFile, RecordImages
from common.shares import share_of_this_worker
from mxnet.gluon.data.vision import ImageFolderDataset
from mxnet.gluon.data.vision.transforms import (
    CenterCrop,
    Normalize,
    RandomColorJitter,
    RandomFlipLeftRight,
    RandomLighting,
    RandomResizedCrop,
    Resize,
    ToTensor,
)

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of pixels in [0, 1]
JITTER = 0.4  # of brightness, contrast and saturation
LIGHTING = 0.1  # standard deviation of the noise along the principal colours (AlexNet's)


def _resized(args: argparse.Namespace) -> int:
    """Return the shorter side to which a validation image is resized before the centre crop."""
    return math.ceil(args.input_size / args.crop_ratio)


def record_images(args: argparse.Namespace) -> RecordImages:
    """Read the images of the --rec files."""
    common = {
        "data_shape": (3, args.input_size, args.input_size),
        "preprocess_threads": max(1, args.num_workers),
        **{f"mean_{c}": 255 * value for c, value in zip("rgb", MEAN)},
        **{f"std_{c}": 255 * value for c, value in zip("rgb", DEVIATION)},
    }
    augment = {
        "rand_mirror": True,
        "random_resized_crop": True,
        "min_random_area": 0.08,
        "max_random_area": 1.0,
        "min_aspect_ratio": 3 / 4,
        "max_aspect_ratio": 4 / 3,
        "brightness": JITTER,
        "contrast": JITTER,
        "saturation": JITTER,
        "pca_noise": LIGHTING,
    }
    return RecordImages(
        RecordFile.at(args.rec_train, args.rec_train_idx),
        RecordFile.at(args.rec_val, args.rec_val_idx),
        augment={**common, **augment},
        prepare={**common, "resize": _resized(args)},
        share=share_of_this_worker(args),
    )


def folder_images(args: argparse.Namespace) -> DatasetImages:
    """Read train/ and val/ in --data-dir, which have one folder per class."""
    folders = [existing(Path(args.data_dir) / name) for name in ("train", "val")]
    return DatasetImages(
        [ImageFolderDataset(str(folder)) for folder in folders],
        augment=[
            RandomResizedCrop(args.input_size),
            RandomFlipLeftRight(),
            RandomColorJitter(brightness=JITTER, contrast=JITTER, saturation=JITTER),
            RandomLighting(LIGHTING),
        ],
        prepare=[
            Resize(_resized(args), keep_ratio=True),
            CenterCrop(args.input_size),
            ToTensor(),
            Normalize(MEAN, DEVIATION),
        ],
        share=share_of_this_worker(args),
        processes=args.num_workers,
    )
