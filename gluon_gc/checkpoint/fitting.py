"""Whether a checkpoint fits a trainer, and each worker's share if their number has changed."""

from __future__ import annotations

import json
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from .. import kernels
from ..log import logger
from .cutting import Arrays
from .file import STREAM, Layout, States

_SAME = ("shape", "dtype", "compression")  # keys of a parameter, there and here
_OF_PAYLOADS = ("fixed_width",)  # keys of a compression that change no residual and no momentum

Header = Mapping[str, Any]


def as_read(header: Header) -> Dict[str, Any]:
    """A header as it would be in a file."""
    return json.loads(json.dumps(header))


def check(name: str, what: str, there: Any, here: Any) -> None:
    """Raise ValueError unless something is the same in a file and in the trainer."""
    if there != here:
        raise ValueError(f"'{name}' does not fit: the {what} is {there} there, but {here} here")


def check_algorithm(
    name: str, there: Optional[Header], here: Optional[Header], strict: bool
) -> None:
    """Raise ValueError unless a file has the state of this algorithm.

    Its options must be the same too, if `strict`.
    """
    if strict or there is None or here is None:
        check(name, "algorithm", there, here)
    else:
        check(name, "name of the algorithm", there["name"], here["name"])


def check_parameter(
    name: str, called: str, there: Header, here: Header, keys: Iterable[str]
) -> None:
    """Raise ValueError unless these keys of a parameter are the same."""
    for key in keys:
        check(name, f"{key} of parameter {called}", _carrying(there[key]), _carrying(here[key]))


def _carrying(value: Any) -> Any:
    """A value without the keys that change no residual and no momentum."""
    if not isinstance(value, dict):
        return value
    return {key: of for key, of in value.items() if key not in _OF_PAYLOADS}


def numbers_of_parameters(
    name: str, there: Sequence[Header], here: Sequence[Header], strict: bool
) -> Dict[int, int]:
    """By the number of a parameter in a file its number in the trainer.

    They match by name. If names differ, but shapes and dtypes are equal, they match in their order,
    because Gluon counts the blocks that a process makes. Otherwise only parameters with the same
    name match, if not `strict`.

    Raises
    ------
    ValueError
        They do not fit.
    """
    of_names = [{p["name"]: number for number, p in enumerate(ps)} for ps in (there, here)]
    matching = [(of_names[0][key], of_names[1][key]) for key in of_names[0] if key in of_names[1]]
    if not len(matching) == len(there) == len(here):
        alike = [[(p["shape"], p["dtype"]) for p in ps] for ps in (there, here)]
        if alike[0] == alike[1]:
            logger.warning("'%s': its parameters have other names, and are taken in order", name)
            matching = list(zip(range(len(there)), range(len(here))))
        elif strict:
            check(name, "number of parameters", len(there), len(here))
            check(name, "set of parameters", *(sorted(names) for names in of_names))
        else:
            gone, new = (sorted(a.keys() - b.keys()) for a, b in (of_names, of_names[::-1]))
            logger.warning(
                "'%s': %s are ignored, since they are not here; %s start from zero, since they "
                "are not there",
                name,
                gone,
                new,
            )
    for a, b in matching:
        called = f"{b} ('{there[a]['name']}' there, '{here[b]['name']}' here)"
        check_parameter(name, called, there[a], here[b], _SAME)
    return dict(matching)


def check_arrays(
    name: str, arrays: Arrays, layout: Layout, called: Mapping[str, str], strict: bool
) -> None:
    """Raise ValueError unless a file has all elements of the expected arrays of each tensor.

    Parameters
    ----------
    name : str
        The file.
    arrays : dict
        Its arrays. The tensors have the names of the store.
    layout : dict
        The expected arrays.
    called : mapping
        The parameters' names, by the store's names.
    strict : bool
        Whether all arrays must be in the file and in the trainer.
    """
    there = _totals({place: (a.shape, a.dtype.name) for place, a in arrays.items()})
    here = _totals(layout)
    keys = there.keys() | here.keys() if strict else there.keys() & here.keys()
    for key in sorted(keys):
        if there.get(key) != here.get(key):
            tensor, node, what = key
            values = [of.get(key, "missing") for of in (there, here)]
            raise ValueError(
                f"'{name}' does not fit: the {node}'s {what} of '{called[tensor]}' is {values[0]} "
                f"there, but {values[1]} here; the backend or BYTEPS_MIN_COMPRESS_BYTES differs"
            )


def _totals(layout: Layout) -> Dict[Tuple[Any, ...], str]:
    """The elements of each tensor, node and kind. Streams are not counted: chunks may differ."""
    sizes: Dict[Tuple[Any, ...], int] = {}
    for place, (shape, _) in layout.items():
        sizes[place[:3]] = sizes.get(place[:3], 0) + shape[0]
    return {
        place[:3]: "there" if place.what == STREAM else f"{sizes[place[:3]]} of {dtype}"
        for place, (_, dtype) in layout.items()
    }


def in_order_of_ranks(files: Sequence[Tuple[str, States]]) -> List[Tuple[str, States]]:
    """The files of all workers of a cluster, of one step.

    Raises
    ------
    ValueError
        A rank's is missing or there twice, or they are not of one cluster and step.
    """
    if not files:
        raise ValueError("a list of files must have that of each rank, got none")
    (first, states), *_ = files
    of_first, by_rank = states.header, {}
    for name, states in files:
        for key in ("world_size", "steps"):
            if states.header[key] != of_first[key]:
                raise ValueError(
                    f"'{name}' and '{first}' were not saved together: the {key} is "
                    f"{states.header[key]} in one and {of_first[key]} in the other"
                )
        rank = states.header["rank"]
        if rank in by_rank:
            raise ValueError(f"'{by_rank[rank][0]}' and '{name}' are both of rank {rank}")
        by_rank[rank] = name, states
    missing = [rank for rank in range(of_first["world_size"]) if rank not in by_rank]
    if missing:
        raise ValueError(
            f"the files of all {of_first['world_size']} workers are needed, but those of ranks "
            f"{missing} are missing"
        )
    return [by_rank[rank] for rank in sorted(by_rank)]


def check_ranks(
    files: Sequence[Tuple[str, States]], several: bool, world_size: int, rank: int
) -> None:
    """Raise ValueError unless files were saved by the right workers.

    Parameters
    ----------
    files : sequence of (str, States)
        This worker's own file. Or, if `several`: those of all workers of a cluster, by rank, as
        `in_order_of_ranks` returns them.
    several : bool
    world_size, rank : int
        Those of this worker.
    """
    for number, (name, states) in enumerate(files):
        expected = {"world_size": len(files), "rank": number}
        if not several:
            expected = {"world_size": world_size, "rank": rank}
        for key, value in expected.items():
            check(name, key, states.header[key], value)


class Share(NamedTuple):
    """A worker's share of the residuals of a tensor.

    Parameters
    ----------
    before, now : int
        The numbers of different residuals then and now: those of workers, or of nodes.
    number : int
        The number of this worker, or of its node.
    alike : bool
        Whether all draw the same numbers.
    """

    before: int
    now: int
    number: int
    alike: bool


def shared_out(arrays: Sequence[Arrays], shares: Mapping[Any, Share], leads: bool) -> Arrays:
    """A worker's arrays, made from those of all workers of another cluster, by rank.

    Each worker gets an even share, so that the sum over workers stays the same. Every worker's
    random stream is that of rank 0, moved on by the worker's number. The worker that `leads` gets
    the arrays of aggregators.
    """
    shared: Arrays = {}
    for place, array in arrays[0].items():
        share = shares.get(place.tensor)
        if place.node == "trainer":
            shared[place] = array
        elif place.node == "worker" and share is not None:
            if place.what == STREAM:
                shared[place] = array if share.alike else _streams_of(array, share.number)
                continue
            total = np.zeros(array.shape, np.float64)
            for of_rank in arrays:
                total += of_rank[place]
            total *= share.before / len(arrays) / share.now
            shared[place] = total.astype(array.dtype)
    for of_rank in arrays if leads else ():
        for place, array in of_rank.items():
            if place.node == "aggregator":
                joined = [shared[place], array] if place in shared else [array]
                shared[place] = np.concatenate(joined)
    return shared


def _streams_of(streams: np.ndarray, number: int) -> np.ndarray:
    """The random streams of the worker of that number, given those of worker 0."""
    jumped = streams.copy()
    for row in jumped:
        kernels.jump_to_worker(row[2:], number)
    return jumped
