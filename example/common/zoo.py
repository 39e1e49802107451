"""Imports GluonCV's classes while hiding PyTorch, because GluonCV rejects PyTorch 2."""

import sys

_torch = sys.modules.pop("torch", None)
sys.modules["torch"] = None  # makes "import torch" fail
try:
    from gluoncv.data.transforms import RandomCrop
    from gluoncv.model_zoo import get_model
    from gluoncv.nn import GroupNorm
finally:
    del sys.modules["torch"]
    if _torch is not None:
        sys.modules["torch"] = _torch

__all__ = ["GroupNorm", "RandomCrop", "get_model"]
