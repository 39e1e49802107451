import pytest

from tests.cuda import emulator


@pytest.fixture(scope="session", autouse=True)
def emulated_gpu():
    """Start the emulated GPU, for codecs with isa "cuda", if this machine can run it."""
    return emulator.start() if emulator.RUNS else None
