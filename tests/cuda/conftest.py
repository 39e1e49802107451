"""The emulated GPU, for tests of the kernels; or the machine's, with --gpu."""

import pytest

from . import emulator


def pytest_addoption(parser):
    parser.addoption("--gpu", action="store_true", help="run test_device.py on this machine's GPU")


@pytest.fixture(scope="session")
def on_gpu(request):
    """Whether the driver is the machine's."""
    return request.config.getoption("--gpu", default=False)


@pytest.fixture(scope="session", autouse=True)
def gpu(on_gpu):
    """The stand-in for the driver, which the library's codecs run on from then on."""
    return None if on_gpu else emulator.start()
