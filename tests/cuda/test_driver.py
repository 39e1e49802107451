"""Errors without a GPU or without code for it, and the choice of code for a GPU."""

import ctypes
import ctypes.util
import subprocess
import sys

import pytest

from gluon_gc import kernels

from . import emulator
from .test_compile import compiling

OPERATORS = emulator.OPERATORS
PARTS = ("cuda/driver.cpp", "cuda/queue.cpp", "core/options.cpp")


def said_of(code):
    """Run code in a new Python without the emulator; returns its output."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


ASK = """
from gluon_gc import kernels
{first}
try:
    kernels.Codec("{name}", {{"k": 1}}, 10, isa="cuda")
except ValueError as error:
    print(error)
"""


def test_every_compressor_has_kernels_for_cuda_and_nothing_else_takes_code():
    assert all(traits.cuda for traits in kernels.compressors().values())
    said = kernels.library.gluon_gc_cuda_code(b"nothing", None)
    assert said == b"there is no compressor 'nothing'"


def test_dithering_of_another_width_than_a_fixed_one_is_refused():
    said = "dithering for CUDA needs payloads of fixed width: all nodes must have fixed_width=True"
    with pytest.raises(ValueError, match=f"^{said}$"):
        kernels.Codec("dithering", {"k": 2}, 10, isa="cuda")
    assert kernels.Codec("dithering", {"k": 2, "fixed_width": True}, 10, isa="cuda").draws == 10


def test_a_library_without_code_for_gpus_or_a_machine_without_a_driver_says_so():
    built = "gluon_gc was built without code for GPUs: build it with GLUON_GC_WITH_CUDA=1"
    driver = "a codec for CUDA needs the NVIDIA driver: libcuda.so.1: cannot open"
    said = said_of(ASK.format(name="onebit", first=""))
    assert said.startswith((built, driver)) or ctypes.util.find_library("cuda")
    if not ctypes.util.find_library("cuda"):
        give = 'kernels.library.gluon_gc_cuda_code(b"onebit", b"")'
        assert said_of(ASK.format(name="onebit", first=give)).startswith(driver)


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    """Launch a kernel of a library whose images are only their names; loading them fails."""
    folder = tmp_path_factory.mktemp("images")
    images = compiling.images_of(emulator.SOURCES["onebit"])
    for image in images:
        (folder / image.file).write_text(image.file)
    (folder / "images.cpp").write_text(compiling.table(images, folder))
    sources = [*(OPERATORS / part for part in PARTS), folder / "images.cpp"]
    library = folder / "choose.so"
    command = [*emulator.COMPILE, "-O0", f"-I{OPERATORS}", "-o", library, *sources]
    subprocess.run([*command, emulator.HERE / "choose.cpp", "-ldl"], check=True)
    return library


@pytest.mark.parametrize(
    "capability, image",
    [
        (50, "onebit_50.cubin"),
        (52, "onebit_50.cubin"),
        (62, "onebit_60.cubin"),
        (70, "onebit_70.cubin"),
        (75, "onebit_75.cubin"),
        (87, "onebit_86.cubin"),
        (89, "onebit_89.cubin"),
        (90, "onebit_90.cubin"),
        (100, "onebit_90.ptx"),
        (120, "onebit_90.ptx"),
        (37, None),
    ],
)
def test_a_gpu_is_given_the_nearest_machine_code_and_later_ones_ptx(gpu, launch, capability, image):
    function = ctypes.CDLL(str(launch)).launch
    function.restype = ctypes.c_char_p
    gpu.emulator_capability(capability)
    try:
        said = function().decode()
    finally:
        gpu.emulator_capability(75)
    if image is None:
        assert said == "onebit has no machine code for GPUs of compute capability 3.7"
    else:
        assert said.startswith("CUDA error 200 while loading the kernels of onebit: ")
        assert said.endswith(f"this is no module: {image}")
