"""The algorithms: which arrays workers average, and in which steps. Needs no framework."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Mapping

from ..options import listed, nearest
from .base import Algorithm, Round, Step, registry

for _module in iter_modules(__path__):  # an algorithm registers itself when it is imported
    import_module(f"{__name__}.{_module.name}")

__all__ = ["Algorithm", "Round", "Step", "gives", "in_full", "parse", "registry"]


def parse(algorithm: None | str | Mapping[str, Any]) -> Algorithm | None:
    """Check the argument `algorithm`.

    Parameters
    ----------
    algorithm : None, str or mapping
        A name, or a dict of "name" and options. None: average all gradients in every step.

    Raises
    ------
    TypeError
        The argument or an option has the wrong type.
    ValueError
        The name or an option is unknown, or a value is wrong.
    KeyError
        "name", or a required option, is missing.
    """
    if algorithm is None:
        return None
    given = {"name": algorithm} if isinstance(algorithm, str) else algorithm
    if not isinstance(given, Mapping):
        raise TypeError(f"algorithm must be None, a name or a dict, got {algorithm!r}")
    if "name" not in given:
        raise KeyError(f"algorithm['name'] is missing; it is one of {listed(list(registry), 'or')}")
    options = dict(given)
    name = options.pop("name")
    if name not in registry:
        known = ", ".join(registry)
        raise ValueError(
            f"algorithm must be one of {known}, got {name!r}; did you mean "
            f"'{nearest(name, registry)}'?"
        )
    kind = registry[name]
    known = kind.keys()
    for spelling, key in kind.spellings.items():
        if spelling in options:
            if key in options:
                raise ValueError(
                    f"algorithm has {spelling!r} and {key!r}, which mean the same: give one of them"
                )
            options[key] = options.pop(spelling)
    for key, value in options.items():
        if key not in known:
            raise ValueError(
                f"algorithm {name} has no option {key!r}; did you mean '{nearest(key, known)}'? "
                f"The options are {', '.join(known)}"
            )
        known[key].check(key, value, "algorithm")
    missing = kind.missing(options)
    if missing:
        raise KeyError(f"algorithm['{missing}'] is missing; {name} needs it")
    return kind(**options)


def in_full(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The name and options of a saved algorithm, with the defaults of options that its version
    lacked. A new option's default must be what earlier versions did."""
    kind = registry.get(saved["name"])
    defaults = {} if kind is None else kind.defaults()
    return {"name": saved["name"], **defaults, **saved}


def gives(algorithm: None | str | Mapping[str, Any], option: str) -> bool:
    """Whether the argument `algorithm`, which `parse` has checked, has a value for an option."""
    if not isinstance(algorithm, Mapping):
        return False
    spellings = registry[algorithm["name"]].spellings
    return any(spellings.get(key, key) == option for key in algorithm)
