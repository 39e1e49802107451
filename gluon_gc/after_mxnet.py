"""Registers gluon_gc's KVStores with MXNet, whichever of the two is imported first.

For a store name that it does not know, MXNet silently uses its own local store. Each worker would
then train alone, without an error. And before MXNet is imported, a wrong DMLC_ROLE is refused.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from . import env


class _Finder(MetaPathFinder):
    """An import hook. It registers our stores after the import of MXNet."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != "mxnet":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                _require_worker()
                execute(module)
                _register()

            spec.loader.exec_module = execute_and_register
        return spec


def _require_worker() -> None:
    """Raise ConfigurationError if the import of MXNet would serve for ever instead of returning.

    It does so unless DMLC_ROLE is exactly "worker", or not set.
    """
    env.require_worker()
    role = os.environ.pop("DMLC_ROLE", "").strip()
    if role:
        os.environ["DMLC_ROLE"] = role


def _register() -> None:
    import_module("gluon_gc.mxnet.kvstore")


def register() -> None:
    """Register our stores with MXNet now, or as soon as MXNet is imported."""
    if sys.modules.get("mxnet"):
        _register()
    else:
        sys.meta_path.insert(0, _Finder())
