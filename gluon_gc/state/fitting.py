"""Checks whether a checkpoint fits a trainer, and redistributes states among other workers.

In the errors, "there" is the file and "here" is the trainer.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from .. import kernels
from .cutting import Arrays
from .file import STREAM, Layout, States

_OF_PAYLOADS = ("fixed_width",)  # options that affect neither residual nor momentum

Header = Mapping[str, Any]


def as_read(header: Header) -> Dict[str, Any]:
    """A header as `file.read` would return it: JSON turns tuples into lists."""
    return json.loads(json.dumps(header))


def check(name: str, what: str, there: Any, here: Any, remedy: str = "") -> None:
    """Raise ValueError unless a value is the same in a file and in the trainer."""
    if there != here:
        advice = f"; {remedy}" if remedy else ""
        raise ValueError(
            f"'{name}' does not fit: the {what} is {there} there, but {here} here{advice}"
        )


def check_algorithm(
    name: str, there: Optional[Header], here: Optional[Header], strict: bool
) -> None:
    """Raise ValueError unless a file has the state of this algorithm.

    If `strict`, the options must be equal, too.
    """
    _require_choice(name, there, here)
    if strict or there is None or here is None:
        check(name, "algorithm", there, here)
    else:
        check(name, "name of the algorithm", there["name"], here["name"])


def check_parameter(
    name: str, called: str, there: Header, here: Header, keys: Iterable[str]
) -> None:
    """Raise ValueError unless these keys of a parameter are equal in file and trainer."""
    for key in keys:
        _require_choice(name, there[key], here[key])
        one, other = _carrying(there[key]), _carrying(here[key])
        if key == "compression" and one and other:  # its other options differ, too
            names = one.get("compressor"), other.get("compressor")
            check(name, f"compressor of parameter {called}", *names)
        check(name, f"{key} of parameter {called}", one, other)


def _require_choice(name: str, there: Any, here: Any) -> None:
    """Raise ValueError if a file is from before a choice of "auto" that was made here."""
    chosen = [not isinstance(v, Mapping) or "auto" not in v.values() for v in (there, here)]
    if chosen == [False, True]:
        raise ValueError(
            f"'{name}' was saved before \"auto\" has chosen, but here it has chosen: load the file "
            "into a new trainer or optimizer, before its first step"
        )


def _carrying(value: Any) -> Any:
    """A value without the options that affect neither residual nor momentum."""
    if not isinstance(value, dict):
        return value
    return {key: option for key, option in value.items() if key not in _OF_PAYLOADS}


def check_arrays(
    name: str,
    arrays: Arrays,
    layout: Layout,
    called: Mapping[str, str],
    strict: bool,
    remedy: str = "",
) -> None:
    """Raise ValueError unless a file has all elements of the expected arrays of each tensor.

    Parameters
    ----------
    name : str
        The name of the file.
    arrays : dict
        The arrays of the file. Their tensors have the names in the store.
    layout : dict
        The expected arrays.
    called : mapping
        The name of each parameter, by the name of its tensor in the store.
    strict : bool
        Whether every array must be in both the file and the trainer.
    remedy : str
        How to load the file all the same.
    """
    advice = f": {remedy}" if remedy else ""
    there = _totals({place: (a.shape, a.dtype.name) for place, a in arrays.items()})
    here = _totals(layout)
    keys = there.keys() | here.keys() if strict else there.keys() & here.keys()
    for key in sorted(keys):
        if there.get(key) != here.get(key):
            tensor, node, what = key
            values = [totals.get(key, "missing") for totals in (there, here)]
            raise ValueError(
                f"'{name}' does not fit: the {node}'s {what} of '{called[tensor]}' is {values[0]} "
                f"there, but {values[1]} here; the backend or BYTEPS_MIN_COMPRESS_BYTES differs"
                f"{advice}"
            )


def _totals(layout: Layout) -> Dict[Tuple[Any, ...], str]:
    """The number of elements of each tensor, node and kind. Of streams, only their presence."""
    sizes: Dict[Tuple[Any, ...], int] = {}
    for place, (shape, _) in layout.items():
        sizes[place[:3]] = sizes.get(place[:3], 0) + shape[0]
    return {
        place[:3]: "there" if place.what == STREAM else f"{sizes[place[:3]]} of {dtype}"
        for place, (_, dtype) in layout.items()
    }


def in_order_of_ranks(files: Sequence[Tuple[str, States]]) -> List[Tuple[str, States]]:
    """Sort the files of all workers by rank.

    Raises
    ------
    ValueError
        A rank is missing or has two files, or the files are not from one cluster and step.
    """
    if not files:
        raise ValueError("a list of files must have one file for each rank, got none")
    (first, states), *_ = files
    first_header, by_rank = states.header, {}
    for name, states in files:
        for key in ("world_size", "steps"):
            if states.header[key] != first_header[key]:
                raise ValueError(
                    f"'{name}' and '{first}' were not saved together: the {key} is "
                    f"{states.header[key]} in one and {first_header[key]} in the other"
                )
        rank = states.header["rank"]
        if rank in by_rank:
            raise ValueError(f"'{by_rank[rank][0]}' and '{name}' are both of rank {rank}")
        by_rank[rank] = name, states
    missing = [rank for rank in range(first_header["world_size"]) if rank not in by_rank]
    if missing:
        raise ValueError(
            f"the files of all {first_header['world_size']} workers are needed, but those of ranks "
            f"{missing} are missing"
        )
    return [by_rank[rank] for rank in sorted(by_rank)]


def check_ranks(
    files: Sequence[Tuple[str, States]], several: bool, world_size: int, rank: int, remedy: str
) -> None:
    """Raise ValueError unless files were saved by the right workers.

    Parameters
    ----------
    files : sequence of (str, States)
        This worker's own file, or, if `several`, the result of `in_order_of_ranks`.
    several : bool
    world_size, rank : int
        The number of workers now, and the rank of this one.
    remedy : str
        How to load the files of another number of workers.
    """
    for number, (name, states) in enumerate(files):
        expected = {"world_size": len(files), "rank": number}
        if not several:
            expected = {"world_size": world_size, "rank": rank}
        for key, value in expected.items():
            check(name, key, states.header[key], value, remedy if key == "world_size" else "")


class Share(NamedTuple):
    """How the residuals of a tensor are divided among the workers of a new cluster.

    Parameters
    ----------
    before, now : int
        How many residuals there were and are. There is one for each worker, or one for each machine
        if the workers of a machine sum their gradients first.
    number : int
        The number of this worker, or of its machine.
    draws_alike : bool
        Whether all nodes draw the same random numbers.
    """

    before: int
    now: int
    number: int
    draws_alike: bool


def shared_out(arrays: Sequence[Arrays], shares: Mapping[Any, Share]) -> Arrays:
    """A worker's arrays, computed from the arrays of all workers of another cluster.

    It has no arrays of aggregators. Each worker gets an equal share of the sum of residuals and
    momenta, so the sum stays the same. Each worker continues the random stream of rank 0, jumped
    ahead to its own part unless all nodes draw the same numbers.

    Parameters
    ----------
    arrays : sequence of dict
        The arrays of each worker, by rank.
    shares : mapping
        The share of each tensor that is compressed.
    """
    shared: Arrays = {}
    for place, array in arrays[0].items():
        share = shares.get(place.tensor)
        if place.node == "trainer":
            shared[place] = array
        elif place.node == "worker" and share is not None:
            if place.what == STREAM:
                shared[place] = array if share.draws_alike else _streams_of(array, share.number)
                continue
            total = np.zeros(array.shape, np.float64)
            for rank_arrays in arrays:
                total += rank_arrays[place]
            total *= share.before / len(arrays) / share.now
            shared[place] = total.astype(array.dtype)
    return shared


def aggregators(arrays: Sequence[Arrays]) -> Arrays:
    """The arrays of all aggregators. An array that several workers have saved counts once.

    Parameters
    ----------
    arrays : sequence of dict
        The arrays of each worker, by rank.
    """
    joined: Arrays = {}
    for rank_arrays in arrays:
        for place, array in rank_arrays.items():
            if place.node != "aggregator":
                continue
            if place.what == STREAM and place in joined:  # workers have rows of different chunks
                array = np.unique(np.concatenate([joined[place], array]), axis=0)
            joined[place] = array
    return joined


def _streams_of(streams: np.ndarray, number: int) -> np.ndarray:
    """The random streams of a worker, given the streams of worker 0."""
    jumped = streams.copy()
    for row in jumped:
        kernels.jump_to_worker(row[2:], number)
    return jumped
