"""Lets the kernels' tests run from a checkout, and gives hypothesis more time under sanitizers."""

import sys
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.cuda import emulator  # noqa: E402

settings.register_profile("kernels", deadline=None, max_examples=30)
settings.load_profile("kernels")


@pytest.fixture(scope="session", autouse=True)
def emulated_gpu():
    """Start the emulated GPU, for codecs with isa "cuda"."""
    return emulator.start()
