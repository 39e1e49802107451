"""Lets the tests of the kernels run from a checkout, and gives hypothesis time under sanitizers."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

settings.register_profile("kernels", deadline=None, max_examples=60)
settings.load_profile("kernels")
