"""Every compressor, with compression_params as users give them: what tests run through.

They are PARAMS of tests/core/test_NAME.py, by a name for each, or made of the first of its OPTIONS.
Those that accumulate have feedback and momentum of their own, and tests of their own.
"""

from typing import Any, Dict

from gluon_gc.compression import registry

from .core.compressors import tests_of


def params_of(name: str) -> Dict[str, Dict[str, Any]]:
    """Examples of a compressor, with a seed if it draws."""
    keys, tests = registry[name].keys(), tests_of(name)
    first = {key: value for key, value in tests.OPTIONS[0].items() if key in keys}
    seed = {"seed": 7} if "seed" in keys else {}
    examples = getattr(tests, "PARAMS", {name: first})
    return {of: {"compressor": name, **seed, **params} for of, params in examples.items()}


COMPRESSORS = {
    of: params
    for name, kind in registry.items()
    if not kind.traits.accumulates
    for of, params in params_of(name).items()
}
