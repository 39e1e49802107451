"""Checks whether saved states fit those who load them, and matches their parameters.

In the errors, "there" is the file and "here" is the trainer.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import (
    Any,
    Callable,
    Iterable,
    Mapping,
    Sequence,
    TypeVar,
)

from ..exchange.agreement import Facts
from ..log import logger
from ..options import require_different
from .file import STREAM, Arrays, Layout, States

_SAME = ("shape", "dtype")  # keys of a parameter that must be equal
_REFUSED = "that it refuses"
_OF_PAYLOADS = ("fixed_width", "inner")  # options that affect neither residual nor momentum

Header = Mapping[str, Any]
Prepared = TypeVar("Prepared")


def as_read(header: Header) -> dict[str, Any]:
    """A header as `file.read` would return it: JSON turns tuples into lists."""
    return json.loads(json.dumps(header))


def check(name: str, what: str, there: Any, here: Any, remedy: str = "") -> None:
    """Raise ValueError unless a value is the same in a file and in the trainer."""
    if there != here:
        advice = f"; {remedy}" if remedy else ""
        raise ValueError(
            f"'{name}' does not fit: the {what} is {there} there, but {here} here{advice}"
        )


def check_algorithm(name: str, there: Header | None, here: Header | None, strict: bool) -> None:
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
        one, other = _state_options(there[key]), _state_options(here[key])
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


def _state_options(value: Any) -> Any:
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

    `called` has the parameters' names by the names of their tensors. With `strict`, every array
    must be in both the file and the trainer. `remedy` says how to load the file all the same.
    """
    advice = f": {remedy}" if remedy else ""
    there = _totals({key: (a.shape, a.dtype.name) for key, a in arrays.items()})
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


def _totals(layout: Layout) -> dict[tuple[Any, ...], str]:
    """The number of elements of each tensor, node and kind. Of streams, only their presence."""
    sizes: dict[tuple[Any, ...], int] = {}
    for key, (shape, _) in layout.items():
        sizes[key[:3]] = sizes.get(key[:3], 0) + shape[0]
    return {
        key[:3]: "there" if key.what == STREAM else f"{sizes[key[:3]]} of {dtype}"
        for key, (_, dtype) in layout.items()
    }


def by_rank(
    files: Sequence[tuple[str, States]], several: bool, world_size: int, rank: int, remedy: str
) -> Sequence[tuple[str, States]]:
    """This worker's file, or if `several`, all workers' files by rank; ValueError if one is wrong.

    `remedy` says how to load the files of another number of workers.
    """
    if several:
        files = _in_order_of_ranks(files)
    for number, (name, states) in enumerate(files):
        expected = {"world_size": len(files), "rank": number}
        if not several:
            expected = {"world_size": world_size, "rank": rank}
        for key, value in expected.items():
            check(name, key, states.header[key], value, remedy if key == "world_size" else "")
    return files


def _in_order_of_ranks(files: Sequence[tuple[str, States]]) -> list[tuple[str, States]]:
    """Sort files by rank; ValueError unless each worker of one cluster has one of the same step."""
    if not files:
        raise ValueError("a list of files must have one file for each rank, got none")
    (first, states), *_ = files
    first_header, found = states.header, {}
    for name, states in files:
        for key in ("world_size", "steps"):
            if states.header[key] != first_header[key]:
                raise ValueError(
                    f"'{name}' and '{first}' were not saved together: the {key} is "
                    f"{states.header[key]} in one and {first_header[key]} in the other"
                )
        rank = states.header["rank"]
        if rank in found:
            raise ValueError(f"'{found[rank][0]}' and '{name}' are both of rank {rank}")
        found[rank] = name, states
    missing = [rank for rank in range(first_header["world_size"]) if rank not in found]
    if missing:
        raise ValueError(
            f"the files of all {first_header['world_size']} workers are needed, but those of ranks "
            f"{missing} are missing"
        )
    return [found[rank] for rank in sorted(found)]


# Parameters


def numbers_of_parameters(
    name: str, there: Sequence[Header], here: Sequence[Header], strict: bool
) -> dict[int, int]:
    """Map the numbers of parameters in a file to their numbers in the trainer, or ValueError.

    Parameters match by name. If names differ, but all shapes and dtypes are equal, parameters match
    by their order in the network. Gluon numbers the blocks of a process, so names may change.
    This also matches parameters that share a name. Otherwise, if not `strict`, only parameters with
    equal names match.
    """
    matching, by_name = pairs(there, here)
    if not by_name:
        if any(there[a]["name"] != here[b]["name"] for a, b in matching):
            logger.warning(
                "'%s': its parameters have other names, and are matched by their order", name
            )
    elif not len(matching) == len(there) == len(here):
        _check_names(name, there, here, strict)
    for a, b in matching:
        called = f"{b} ('{there[a]['name']}' there, '{here[b]['name']}' here)"
        has_state = there[a]["compression"] is not None  # a file lacks that of a frozen parameter
        keys = (*_SAME, "compression") if has_state else _SAME
        check_parameter(name, called, there[a], here[b], keys)
    return dict(matching)


def pairs(there: Sequence[Header], here: Sequence[Header]) -> tuple[list[tuple[int, int]], bool]:
    """Pair the numbers of parameters in a file and in the trainer; see `numbers_of_parameters`.

    The second result is whether they match by name.
    """
    numbers = [{p["name"]: number for number, p in enumerate(ps)} for ps in (there, here)]
    by_name = [(numbers[0][key], numbers[1][key]) for key in numbers[0] if key in numbers[1]]
    if not len(by_name) == len(there) == len(here):
        in_order = _pairs_in_order(there, here)
        if len(there) == len(here) and all(
            there[a][key] == here[b][key] for a, b in in_order for key in _SAME
        ):
            return in_order, False
    return by_name, True


def saved_compressions(header: Header, here: Sequence[Header]) -> dict[int, Any]:
    """The compression of each parameter in a file, by its number in the trainer.

    The header is not checked yet, so keys may be missing. The result is then empty.
    """
    saved = header.get("parameters", [])
    if not all({"name", *_SAME} <= set(parameter) for parameter in saved):
        return {}
    return {i: saved[number].get("compression") for number, i in pairs(saved, here)[0]}


def _check_names(name: str, there: Sequence[Header], here: Sequence[Header], strict: bool) -> None:
    """Raise ValueError unless parameters may match by name. Log the names that do not match."""
    if strict:
        check(name, "number of parameters", len(there), len(here))
    names = [[parameter["name"] for parameter in parameters] for parameters in (there, here)]
    for subject, of_side in zip(("it", "the trainer"), names):
        require_different(of_side, f"'{name}' does not fit, because {subject}")
    if strict:
        check(name, "set of parameters", *map(sorted, names))
        return
    missing, added = (sorted(set(a).difference(b)) for a, b in (names, names[::-1]))
    logger.warning(
        "'%s': the states of %s are ignored, because the trainer has no such parameters; "
        "the states of %s start from zero, because the file does not have them",
        name,
        missing,
        added,
    )


def _pairs_in_order(there: Sequence[Header], here: Sequence[Header]) -> list[tuple[int, int]]:
    """Pair the numbers of parameters in a file and in the trainer by their order in the network.

    gluon.Trainer numbers the parameters of a dict in the order of their names as text, in which
    dense10 is before dense9. Older files have no positions, so dense10 is put after dense9.
    """
    if all("position" in parameter for parameter in there):
        orders = [sorted(range(len(ps)), key=lambda i: ps[i]["position"]) for ps in (there, here)]
    else:
        names = [[parameter["name"] for parameter in ps] for ps in (there, here)]
        orders = [list(range(len(of_side))) for of_side in names]
        if all(of_side == sorted(of_side) for of_side in names):
            orders = [sorted(range(len(ns)), key=lambda i: _with_numbers(ns[i])) for ns in names]
    return list(zip(*orders))


def _with_numbers(name: str) -> list[str | int]:
    """A key that sorts names by the numbers in them."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


# All workers


def if_all_can(
    agree: Callable[[Facts], None],
    call: str,
    noun: str,
    prepare: Callable[[], Prepared],
    facts: Callable[[Prepared], Facts],
) -> Prepared:
    """Call `prepare`, and return its result if it succeeds on all workers, with the same facts.

    All workers call this. `agree` raises RuntimeError unless facts are the same on all workers.
    `prepare` reads and checks a checkpoint, and changes nothing. `call` and `noun` are the user's
    function and its argument, such as "load_states" and "file", for the error.
    """
    try:
        prepared = prepare()
    except Exception:
        with suppress(RuntimeError):  # the error of `prepare` says more
            agree([(call, {noun: _REFUSED})])
        raise
    agree(facts(prepared))
    return prepared
