"""Loads a worker's images from Gluon data sets."""

from typing import Iterator, Sequence, Tuple

import mxnet as mx
from mxnet.gluon.data import DataLoader, Dataset
from mxnet.gluon.data.vision import transforms
from mxnet.ndarray import NDArray

from .shares import Share, ShareSampler

Batch = Tuple[NDArray, NDArray]  # pixels (n, channels, height, width) float32, labels (n,)


class DatasetImages:
    """A worker's share of two Gluon data sets.

    Parameters
    ----------
    datasets : sequence of Dataset
        The training and the validation images, in the format of `transforms`, with labels.
    augment : sequence of Block
        Transforms of training images only.
    prepare : sequence of Block
        Transforms of all images; for training images they follow `augment`.
    share : Share
        This worker's share.
    processes : int
        The number of processes that load images; 0: this process loads them.
    """

    def __init__(
        self,
        datasets: Sequence[Dataset],
        augment: Sequence[mx.gluon.Block],
        prepare: Sequence[mx.gluon.Block],
        share: Share,
        processes: int,
    ) -> None:
        train, validation = datasets
        self._sampler = ShareSampler(len(train), share)
        self.steps = len(self._sampler)
        self._train = DataLoader(
            train.transform_first(transforms.Compose([*augment, *prepare])),
            batch_sampler=self._sampler,
            num_workers=processes,
        )
        self._validation = DataLoader(
            validation.transform_first(transforms.Compose(prepare)),
            share.batch_size,
            sampler=range(share.rank, len(validation), share.size),
            last_batch="keep",
            num_workers=processes,
        )

    def train(self, epoch: int) -> Iterator[Batch]:
        """Yield `steps` batches of augmented images."""
        self._sampler.epoch = epoch
        return iter(self._train)

    def validation(self) -> Iterator[Batch]:
        """Yield all of this worker's validation images; the last batch may be smaller."""
        return iter(self._validation)
