"""Loads a worker's images from RecordIO files of JPEGs."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator

import mxnet as mx

from .datasets import existing
from .images import Batch
from .shares import Share
from .shuffling import steps_per_epoch


@dataclass(frozen=True)
class RecordFile:
    """A RecordIO file and its index, as MXNet's im2rec makes them."""

    records: Path
    index: Path

    @classmethod
    def at(cls, records: str, index: str) -> "RecordFile":
        """Expand ~ in both paths; raises FileNotFoundError if a file does not exist."""
        return cls(existing(records), existing(index))

    def __len__(self) -> int:
        with self.index.open() as lines:
            return sum(1 for _ in lines)

    def images_of(self, share: Share) -> int:
        """Return the number of images that ImageRecordIter reads for a worker."""
        count = len(self)
        part = math.ceil(count / share.size)
        return max(0, min(part, count - share.rank * part))

    def iterator(self, share: Share, **options: Any) -> mx.io.DataIter:
        """Return an iterator over a worker's share."""
        return mx.io.ImageRecordIter(
            path_imgrec=str(self.records),
            path_imgidx=str(self.index),
            part_index=share.rank,
            num_parts=share.size,
            batch_size=share.batch_size,
            seed=share.seed,
            verbose=False,
            **options,
        )


class RecordImages:
    """A worker's share of two RecordIO files. MXNet's threads decode and augment the images.

    Parameters
    ----------
    train, validation : RecordFile
        The training and the validation images.
    augment : dict
        Options of ImageRecordIter for training images.
    prepare : dict
        Options of ImageRecordIter for validation images.
    share : Share
        This worker's share.
    """

    def __init__(
        self,
        train: RecordFile,
        validation: RecordFile,
        augment: Dict[str, Any],
        prepare: Dict[str, Any],
        share: Share,
    ) -> None:
        images = train.images_of(share)
        if images < share.batch_size:
            raise ValueError(
                f"--batch-size must be at most {images}, the images of worker {share.rank} of "
                f"{share.size} in {train.records}, got {share.batch_size}"
            )
        self.steps = steps_per_epoch(len(train), share.batch_size, share.size)
        self._train = train.iterator(share, shuffle=True, **augment)
        self._to_validate = validation.images_of(share)
        if self._to_validate:
            # With round_batch=True, images of the next pass would fill up the last batch.
            self._validation = validation.iterator(share, round_batch=False, **prepare)

    def train(self, epoch: int) -> Iterator[Batch]:
        """Yield `steps` batches of augmented images, in a different order each epoch."""
        for _ in range(self.steps):
            batch = next(self._train, None)
            if batch is None:  # this share is smaller than others: start again
                self._train.reset()
                batch = next(self._train)
            yield batch.data[0], batch.label[0]
        self._train.reset()

    def validation(self) -> Iterator[Batch]:
        """Yield all of this worker's validation images; the last batch may be smaller."""
        left = self._to_validate
        while left > 0:
            batch = next(self._validation)
            pixels, labels = batch.data[0][:left], batch.label[0][:left]
            left -= len(labels)
            if left == 0:
                self._validation.reset()
            yield pixels, labels
