"""The format and the checks that all state_dicts of the PyTorch front end share."""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    NamedTuple,
    Sequence,
    TypeVar,
)

import torch

from ...compression import CompressionParams
from ...exchange.agreement import Facts
from ...exchange.machines import Groups
from ...log import logger
from ...state import States, fitting
from ..transport.gathering import Gather, agree

if TYPE_CHECKING:
    from ...exchange.exchange import Exchange

StateDict = Mapping[str, Any]
Description = Mapping[str, Any]
Prepared = TypeVar("Prepared")

FORMAT = 1
NOUN = "state_dict"
"""The name of the argument in error messages."""
_CALL = "load_state_dict"
REMEDY = "pass the list of the state_dicts of all workers that saved"


def if_all_fit(
    gather: Gather,
    prepare: Callable[[], Prepared],
    facts: Callable[[Prepared], Facts] = lambda prepared: [],
) -> Prepared:
    """Return the result of `prepare` if it succeeds on all workers with the same facts.

    `fitting.if_all_can` explains the errors.
    """
    return fitting.if_all_can(
        lambda stated: agree(gather, stated, f"call {_CALL}"),
        _CALL,
        NOUN,
        prepare,
        lambda prepared: [(_CALL, {NOUN: "that fits"}), *facts(prepared)],
    )


def require_format(given: Any, key: str, owner: str) -> None:
    """Raise ValueError unless this is a state_dict with this key, in the current format."""
    if not isinstance(given, Mapping) or not {"format", key} <= given.keys():
        raise ValueError(f"this is not a state_dict of {owner}")
    if given["format"] != FORMAT:
        raise ValueError(
            f"the state_dict has format {given['format']}, but this gluon_gc reads {FORMAT}"
        )


# Entries


def with_entries(given: dict[str, Any]) -> dict[str, Any]:
    """Return a state_dict with the paths of its entries, for `require_entries`."""
    return {**given, "entries": list(_paths(given))}


def require_entries(given: StateDict) -> None:
    """Raise ValueError if a state_dict lacks entries that it had when it was saved.

    torch.distributed.checkpoint loads the entries that its template has, and no others. It changes
    int keys to str. Older state_dicts do not list their entries.
    """
    missing = sorted({*given.get("entries", ())} - {*_paths(given)})
    if missing:
        raise ValueError(
            f"the state_dict lacks {len(missing)} of the entries that were saved, such as "
            f"{missing[0]}: torch.distributed.checkpoint loads only entries that a new state has, "
            "too, so save the state as bytes (docs/guides/torch.md); a script must not remove any"
        )


def _paths(value: Any, path: str = "") -> Iterator[str]:
    """Yield the keys that lead to each value that is no mapping, such as "arrays/NAME/KEY"."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            name = key if isinstance(key, str) else repr([key])
            yield from _paths(entry, f"{path}/{name}" if path else name)
    else:
        yield path


# Workers


def by_rank(
    exchange: Exchange,
    given: StateDict | Sequence[StateDict],
    read: Callable[[StateDict], States],
) -> list[States]:
    """Read this worker's state_dict, or those of all workers that saved, in the order of ranks.

    Raise ValueError if they are not of workers that can continue here.
    """
    several = not isinstance(given, Mapping)
    named = [(NOUN, read(each)) for each in (given if several else [given])]
    named = fitting.by_rank(named, several, exchange.workers, exchange.rank, REMEDY)
    for _, states in () if several else named:
        there, here = machines_of(states.header), described_workers(exchange)["machines"]
        fitting.check(NOUN, "machines", there, here, REMEDY)
    return [states for _, states in named]


def described_workers(exchange: Exchange) -> dict[str, Any]:
    """Return the rank, the number of workers, and the workers of each machine that sums first."""
    machines = exchange.machines and [list(group) for group in exchange.machines.groups]
    return {"rank": exchange.rank, "world_size": exchange.workers, "machines": machines}


def machines_of(header: Description) -> Groups | None:
    """Return the workers of each machine that summed first. Older state_dicts have their number."""
    machines, workers = header["machines"], header["world_size"]
    if not isinstance(machines, int):
        return machines
    size = workers // machines
    return [list(range(begin, begin + size)) for begin in range(0, workers, size)]


def warn_if_divided(before: int, now: int) -> None:
    """Warn that another number of workers continues."""
    if before != now:
        logger.warning(
            "the residuals of %d workers are divided among %d; their sum stays the same",
            before,
            now,
        )


# Parameters


class Names(NamedTuple):
    """The names of parameters here; see `settings.Named`."""

    parameters: Mapping[str, torch.nn.Parameter]
    aliases: Mapping[str, str]

    def of(self, given: StateDict, saved: Iterable[str]) -> dict[str, str]:
        """Return the names here of a state_dict's parameters, by the names that it has for them.

        Only one name is left of several whose parameters are tied here.
        """
        others: dict[str, list[str]] = {}
        for alias, name in given.get("aliases", {}).items():
            others.setdefault(name, []).append(alias)
        names: dict[str, str] = {}
        for name in saved:
            here = (self._here(each) for each in (name, *others.get(name, ())))
            names.setdefault(next((each for each in here if each), name), name)
        return {there: here for here, there in names.items()}

    def _here(self, name: str) -> str | None:
        return name if name in self.parameters else self.aliases.get(name)


def renamed(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the values under the names here, without those of other names."""
    return {names[name]: value for name, value in values.items() if name in names}


def renamed_parameters(
    parameters: Iterable[Description], names: Mapping[str, str]
) -> list[Description]:
    """Return descriptions with the names here, without those of other names."""
    return [{**p, "name": names[p["name"]]} for p in parameters if p["name"] in names]


def described_parameters(
    parameters: Mapping[str, torch.nn.Parameter], params: Mapping[str, CompressionParams]
) -> list[dict[str, Any]]:
    """Return the parameters and their compression as plain values."""
    return [
        {
            "name": name,
            "shape": list(parameter.shape),
            "dtype": str(parameter.dtype),
            "compression": fitting.as_read(params[name].identity()),
        }
        for name, parameter in parameters.items()
    ]


def check_parameters(
    there: Iterable[Description], here: Iterable[Description], strict: bool
) -> dict[str, str]:
    """Return the names of the parameters in both descriptions; ValueError if they do not match.

    Each description has a "name". With `strict`, both must have the same names.
    """
    there_by_name = {parameter["name"]: parameter for parameter in there}
    here_by_name = {parameter["name"]: parameter for parameter in here}
    if strict:
        fitting.check(NOUN, "set of parameters", sorted(there_by_name), sorted(here_by_name))
    common = [name for name in here_by_name if name in there_by_name]
    for name in common:
        expected = here_by_name[name]
        fitting.check_parameter(NOUN, f"'{name}'", there_by_name[name], expected, expected)
    return {name: name for name in common}
