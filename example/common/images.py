"""A worker's images, from Gluon data sets."""

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
        To train on and to validate with: images, as `transforms` takes them, with labels.
    augment : sequence of Block
        What happens to images that are trained on.
    prepare : sequence of Block
        What happens to images that validate, and to the others after `augment`.
    share : Share
        This worker's.
    processes : int
        That load images; 0: this process does.
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
        """Yield `steps` batches, augmented."""
        self._sampler.epoch = epoch
        return iter(self._train)

    def validation(self) -> Iterator[Batch]:
        """Yield all of this worker's images, the last batch perhaps smaller."""
        return iter(self._validation)
