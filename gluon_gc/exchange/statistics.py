"""The bytes and seconds of a step: measured by the meters of messages, reported by tensor."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import (
    Any,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    NamedTuple,
    Sequence,
)
from weakref import WeakKeyDictionary

from .chunk import ExchangedChunk

FIELDS = ("pushed_bytes", "pulled_bytes", "compress_seconds", "wait_seconds", "decompress_seconds")
"""The measurements of a message, averaged over steps: the bytes of this worker's own payloads or
values, those of the averages that it gets, and seconds. What it sends to others as the owner of a
chunk is not counted. Chunks overlap, so the seconds may exceed those of the step."""

Fields = Mapping[str, float]


class Size(NamedTuple):
    """The size of a tensor: its bytes without compression, and its number of elements."""

    raw_bytes: int
    elements: int


def by_tensor(
    messages: Iterable[tuple[Fields, Iterable[tuple[str, float]]]],
) -> dict[str, dict[str, float]]:
    """The `FIELDS` of each tensor, by name, from those of its messages.

    Each message has its `FIELDS`, and for each of its tensors the name and the share of the
    message, from 0 to 1.
    """
    measured: dict[str, dict[str, float]] = {}
    for fields, shares in messages:
        for name, share in shares:
            tensor = measured.setdefault(name, dict.fromkeys(FIELDS, 0.0))
            for field in FIELDS:
                tensor[field] += share * fields[field]
    return measured


def report(
    sizes: Mapping[str, Size], measured: Mapping[str, Fields], **of_total: float
) -> dict[str, Any]:
    """Return the result of compression_stats: a dict with "tensors" by name, and "total".

    Each entry has `FIELDS`, raw_bytes (of the uncompressed tensor), ratio (raw_bytes /
    pushed_bytes, or None if nothing was sent) and bits_per_element. A tensor that is missing in
    `measured`, the result of `by_tensor`, has not been sent yet. `of_total` are further entries of
    "total".
    """
    zeros = dict.fromkeys(FIELDS, 0.0)
    fields = {name: measured.get(name, zeros) for name in sizes}
    total = {
        field: sum(tensor_fields[field] for tensor_fields in fields.values()) for field in FIELDS
    }
    whole = Size(
        sum(size.raw_bytes for size in sizes.values()),
        sum(size.elements for size in sizes.values()),
    )
    return {
        "tensors": {name: _with_ratios(size, fields[name]) for name, size in sizes.items()},
        "total": _with_ratios(whole, {**total, **of_total}),
    }


def _with_ratios(size: Size, fields: Fields) -> dict[str, Any]:
    pushed = fields["pushed_bytes"]
    return {
        "raw_bytes": size.raw_bytes,
        "ratio": size.raw_bytes / pushed if pushed else None,
        "bits_per_element": 8 * pushed / size.elements if size.elements else 0.0,
        **fields,
    }


@dataclass(eq=False)
class Meter:
    """The bytes and seconds of this worker in one transfer, since it was made."""

    steps: int = 0
    pushed_bytes: int = 0
    pulled_bytes: int = 0
    compress_seconds: float = 0.0
    wait_seconds: float = 0.0
    decompress_seconds: float = 0.0

    def of_step(self, steps: int = 0) -> dict[str, float]:
        """Return `FIELDS` as averages over `steps`; 0: over the steps of this transfer."""
        return {field: getattr(self, field) / (steps or self.steps) for field in FIELDS}

    def since(self, earlier: Meter | None) -> Meter:
        """Return the differences from an earlier copy, if there is one."""
        names = ("steps", *FIELDS) if earlier is not None else ()
        changed = {name: getattr(self, name) - getattr(earlier, name) for name in names}
        return replace(self, **changed)

    def timing(self, field: str) -> _Timing:
        """Return a context that adds its duration in seconds to a field."""
        return _Timing(self, field)


class _Timing:
    def __init__(self, meter: Meter, field: str) -> None:
        self._meter, self._field = meter, field

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *error: Any) -> None:
        seconds = getattr(self._meter, self._field) + time.perf_counter() - self._began
        setattr(self._meter, self._field, seconds)


class Window:
    """What meters have measured since this window's last reset, independently of other windows."""

    def __init__(self) -> None:
        self._earlier: WeakKeyDictionary[Meter, Meter] = WeakKeyDictionary()

    def of(self, meter: Meter, reset: bool) -> Meter:
        """Return what a meter has measured since its last `reset`."""
        measured = meter.since(self._earlier.get(meter))
        if reset:
            self._earlier[meter] = meter.since(None)
        return measured


STATS = Window()
"""The window of `compression_stats`."""


class Busy:
    """Counts the seconds in which at least one of several jobs is under way."""

    def __init__(self) -> None:
        self._lock, self._jobs, self._seconds = threading.Lock(), 0, 0.0

    def add(self, jobs: int) -> None:
        """Note that jobs begin or, if the number is negative, that they end."""
        with self._lock:
            if self._jobs:
                self._seconds += time.perf_counter() - self._since
            self._since = time.perf_counter()
            self._jobs += jobs

    @property
    def seconds(self) -> float:
        self.add(0)
        return self._seconds


def of_step(
    transfers: Iterable[Any],
    sizes: Mapping[str, Size],
    reset: bool,
    steps: int = 0,
    name_of: Callable[[str], str] = str,
    window: Window = STATS,
) -> dict[str, Any]:
    """Return the average statistics of a step, for each tensor in `sizes` and in total.

    `steps`: the number of steps; 0: each transfer took part in all steps. `name_of` returns the
    name in `sizes`, given a tensor's name in the exchange. The steps are those since the last
    `reset` of the window.
    """
    transfers = list(transfers)
    counted = [window.of(transfer.meter, reset) for transfer in transfers]
    measured = by_tensor(
        (meter.of_step(steps), [(name_of(name), share) for name, share in transfer.shares()])
        for transfer, meter in zip(transfers, counted)
        if meter.steps
    )
    return report(sizes, measured)


def shares_of(chunks: Sequence[ExchangedChunk]) -> Iterator[tuple[str, float]]:
    """Return, for each chunk, its tensor and its share of the bytes of all these chunks."""
    total = sum(chunk.num_bytes for chunk in chunks)
    return ((chunk.piece.tensor, chunk.num_bytes / total) for chunk in chunks)
