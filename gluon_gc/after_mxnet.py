"""Makes our stores known to MXNet once it and gluon_gc are both imported, whichever comes first.

MXNet takes a name that it does not know for its own local store, and every worker would then train
by itself without a word.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Optional


class _Finder(MetaPathFinder):
    """Finds MXNet where the others do, for what follows to be done when it has been imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Optional[ModuleSpec]:
        if name != "mxnet":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                _register()

            spec.loader.exec_module = execute_and_register
        return spec


def _register() -> None:
    import_module("gluon_gc.mxnet.kvstore")


def register() -> None:
    """Make our stores known to MXNet, now or when it is imported."""
    if sys.modules.get("mxnet"):
        _register()
    else:
        sys.meta_path.insert(0, _Finder())
