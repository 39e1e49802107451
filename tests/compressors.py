"""Example compression_params of every compressor, for tests that run with all of them.

They are PARAMS of tests/neutral/compressors/test_NAME.py, or made from the first of its OPTIONS.
COMPRESSORS leaves out compressors that accumulate (dgc): these have their own feedback, momentum
and tests. ONE_OF_EACH has the example with a compressor's name, for tests of what does not depend
on the compressor's options.
"""

from typing import Any, Dict

from gluon_gc.compression import registry
from tests.neutral.compressors.cases import tests_of


def params_of(name: str) -> Dict[str, Dict[str, Any]]:
    """Return examples of a compressor by name, with a seed if it draws."""
    keys, tests = registry[name].keys(), tests_of(name)
    first = {key: value for key, value in tests.OPTIONS[0].items() if key in keys}
    seed = {"seed": 7} if "seed" in keys else {}
    examples = getattr(tests, "PARAMS", {name: first})
    return {example: {"compressor": name, **seed, **params} for example, params in examples.items()}


COMPRESSORS = {
    example: params
    for name, kind in registry.items()
    if not kind.traits.accumulates
    for example, params in params_of(name).items()
}
ONE_OF_EACH = {name: params for name, params in COMPRESSORS.items() if name in registry}
