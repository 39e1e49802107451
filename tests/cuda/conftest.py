"""The emulated GPU for the kernels' tests; with --gpu, this machine's GPU."""

import pytest

from . import emulator


def pytest_addoption(parser):
    parser.addoption("--gpu", action="store_true", help="run test_device.py on this machine's GPU")


@pytest.fixture(scope="session")
def on_gpu(request):
    """Whether to use this machine's driver."""
    return request.config.getoption("--gpu", default=False)


@pytest.fixture(scope="session", autouse=True)
def gpu(on_gpu):
    """Start the emulated driver, on which the library's codecs run from then on."""
    return None if on_gpu else emulator.start()
