"""The bytes and seconds of a step, from the meters of all transfers."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, Iterator, Mapping, Sequence, Tuple

from . import stats
from .chunk import ExchangedChunk


@dataclass
class Meter:
    """The bytes and seconds of this worker in one transfer."""

    steps: int = 0
    pushed_bytes: int = 0
    pulled_bytes: int = 0
    compress_seconds: float = 0.0
    wait_seconds: float = 0.0
    decompress_seconds: float = 0.0

    def of_step(self, steps: int = 0) -> Dict[str, float]:
        """Return `stats.FIELDS` as averages over `steps`; 0: over the steps of this transfer."""
        return {field: getattr(self, field) / (steps or self.steps) for field in stats.FIELDS}

    def reset(self) -> None:
        """Set all numbers to zero."""
        self.__init__()

    @contextmanager
    def timing(self, field: str) -> Iterator[None]:
        """Return a context that adds its duration in seconds to a field."""
        began = time.perf_counter()
        yield
        setattr(self, field, getattr(self, field) + time.perf_counter() - began)


def of_step(
    transfers: Iterable[Any],
    sizes: Mapping[str, stats.Size],
    reset: bool,
    steps: int = 0,
    name_of: Callable[[str], str] = str,
) -> Dict[str, Any]:
    """Return the average statistics of a step, for each tensor in `sizes` and in total.

    `steps`: the number of steps; 0: each transfer took part in all steps. `name_of` returns the
    name in `sizes`, given a tensor's name in the exchange.
    """
    transfers = list(transfers)
    measured = stats.by_tensor(
        (
            transfer.meter.of_step(steps),
            [(name_of(name), share) for name, share in transfer.shares()],
        )
        for transfer in transfers
        if transfer.meter.steps
    )
    if reset:
        for transfer in transfers:
            transfer.meter.reset()
    return stats.report(sizes, measured)


def shares_of(chunks: Sequence[ExchangedChunk]) -> Iterator[Tuple[str, float]]:
    """Return, for each chunk, its tensor and its share of the bytes of all these chunks."""
    total = sum(chunk.num_bytes for chunk in chunks)
    return ((chunk.piece.tensor, chunk.num_bytes / total) for chunk in chunks)
