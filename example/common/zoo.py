"""What the examples take of GluonCV, which refuses to be imported beside PyTorch 2."""

import sys

_torch = sys.modules.pop("torch", None)
sys.modules["torch"] = None  # as if it were not installed
try:
    from gluoncv.data.transforms import RandomCrop
    from gluoncv.model_zoo import get_model
    from gluoncv.nn import GroupNorm
finally:
    del sys.modules["torch"]
    if _torch is not None:
        sys.modules["torch"] = _torch

__all__ = ["GroupNorm", "RandomCrop", "get_model"]
