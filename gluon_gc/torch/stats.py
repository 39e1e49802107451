"""What a step moves and takes, from the meters of transfers."""

from __future__ import annotations

import itertools
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, Mapping, Sequence, Tuple

import torch

from ..stats import with_ratios

if TYPE_CHECKING:
    from .channel import Channel
    from .exchange import Exchange


@dataclass
class Meter:
    """What a worker did in a transfer.

    Parameters
    ----------
    steps : int
    pushed_bytes, pulled_bytes : int
        That it handed over, and that came back.
    compress_seconds, wait_seconds, decompress_seconds : float
    """

    steps: int = 0
    pushed_bytes: int = 0
    pulled_bytes: int = 0
    compress_seconds: float = 0.0
    wait_seconds: float = 0.0
    decompress_seconds: float = 0.0

    def reset(self) -> None:
        """Begin again at zero."""
        self.__init__()

    @contextmanager
    def timing(self, field: str) -> Iterator[None]:
        """Add to a field what goes on within."""
        began = time.perf_counter()
        yield
        setattr(self, field, getattr(self, field) + time.perf_counter() - began)


def of_step(
    exchanges: Iterable[Exchange],
    tensors: Mapping[str, torch.Tensor],
    reset: bool,
    steps: int = 0,
) -> Dict[str, Any]:
    """The stats of a step on average, of these tensors and in all.

    `steps`: how many there were; 0: each transfer took part in all of them.
    """
    sums: Dict[str, Dict[str, float]] = {name: {} for name in tensors}
    for transfer in itertools.chain.from_iterable(one.transfers() for one in exchanges):
        fields = asdict(transfer.meter)
        took_part = fields.pop("steps")
        steps_of_it = steps or took_part
        for tensor, share in transfer.shares() if took_part else ():
            _add(sums[tensor], {key: share / steps_of_it * fields[key] for key in fields})
        if reset:
            transfer.meter.reset()
    total: Dict[str, float] = {}
    for fields in sums.values():
        _add(total, fields)
    sizes = {n: (tensor.numel() * tensor.itemsize, tensor.numel()) for n, tensor in tensors.items()}
    whole = [sum(column) for column in zip(*sizes.values())]
    return {
        "tensors": {name: with_ratios(*sizes[name], sums[name]) for name in tensors},
        "total": with_ratios(*whole, total),
    }


def shares_of(channels: Sequence[Channel]) -> Iterator[Tuple[str, float]]:
    """For each channel its tensor, and its share of the bytes of all of them."""
    whole = sum(channel.num_bytes for channel in channels)
    return ((channel.piece.tensor, channel.num_bytes / whole) for channel in channels)


def _add(to: Dict[str, float], fields: Mapping[str, float]) -> None:
    for key, value in fields.items():
        to[key] = to.get(key, 0.0) + value
