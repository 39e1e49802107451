"""The emulated GPU, for tests of the kernels."""

import pytest

from . import emulator


@pytest.fixture(scope="session", autouse=True)
def gpu():
    """The stand-in for the driver, which the library's codecs run on from then on."""
    return emulator.start()
