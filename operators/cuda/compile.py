"""Compiles the CUDA kernels with NVRTC. This needs neither a GPU nor the CUDA toolkit.

    python compile.py IMAGES SOURCE...

writes the machine code of all sources to files, and IMAGES, a C++ file beside them that embeds
these files (images.h). NVRTC comes with pip install nvidia-cuda-nvrtc-cu11.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import List, NamedTuple, Optional, Tuple

OPERATORS = Path(__file__).resolve().parents[1]
CAPABILITIES = (50, 60, 70, 75, 80, 86, 89, 90)
OPTIONS = (
    "-std=c++17",
    "-default-device",
    "-fmad=false",  # as on the CPU: every operation is rounded, and denormals are kept
    "-ftz=false",
    "-prec-div=true",
    "-prec-sqrt=true",
    "--ptxas-options=-v",  # logs each kernel's registers and memory
    f"-I{OPERATORS}",
)


class Image(NamedTuple):
    """A source compiled for one compute capability, or to PTX for this one and all later ones."""

    source: Path
    capability: int
    ptx: bool = False

    @property
    def file(self) -> str:
        """The name of the image's file."""
        return f"{self.source.stem}_{self.capability}.{'ptx' if self.ptx else 'cubin'}"


def library() -> Optional[ctypes.CDLL]:
    """Load NVRTC. Returns None if its wheel is not installed."""
    try:
        found = importlib.util.find_spec("nvidia.cuda_nvrtc")
    except ModuleNotFoundError:
        return None
    if found is None:
        return None
    folder = Path(next(iter(found.submodule_search_locations))) / "lib"
    for builtins in folder.glob("libnvrtc-builtins.so*"):
        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)  # NVRTC opens it by its bare name
    return ctypes.CDLL(str(next(folder.glob("libnvrtc.so*"))))


def compile_image(nvrtc: ctypes.CDLL, image: Image) -> Tuple[bytes, str]:
    """Compile an image. Returns its code and the compiler's log.

    Raises
    ------
    RuntimeError
        If the source does not compile. The message has the compiler's log.
    """
    program = ctypes.c_void_p()
    text, name = image.source.read_bytes(), str(image.source).encode()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name, 0, None, None)
    kind = "compute" if image.ptx else "sm"
    arguments = [*OPTIONS, f"-arch={kind}_{image.capability}"]
    options = (ctypes.c_char_p * len(arguments))(*(argument.encode() for argument in arguments))
    failed = nvrtc.nvrtcCompileProgram(program, len(arguments), options)

    def get(what: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        getattr(nvrtc, f"nvrtcGet{what}")(program, text)
        return text.raw

    log = get("ProgramLog").rstrip(b"\0").decode()
    code = b"" if failed else get("PTX" if image.ptx else "CUBIN")
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        raise RuntimeError(f"{image.file}: {log}")
    return code, log


def images_of(source: Path) -> List[Image]:
    """Return the images of a source: machine code for each capability, and PTX for later GPUs."""
    return [*(Image(source, number) for number in CAPABILITIES), Image(source, 90, ptx=True)]


def table(images: List[Image], folder: Path) -> str:
    """Return the text of the C++ file that embeds the images, whose files are in `folder`."""
    code = ['#include "cuda/images.h"', "", 'asm(".section .rodata\\n"']
    for i, image in enumerate(images):
        file = rf"\"{folder / image.file}\""
        code.append(rf'    ".balign 64\ngluon_gc_image_{i}: .incbin {file}\n.byte 0\n"')
    code += ['    ".previous\\n");', "", 'extern "C" {']
    hidden = '__attribute__((visibility("hidden")))'
    code += [
        f"extern const unsigned char gluon_gc_image_{i}[] {hidden};" for i in range(len(images))
    ]
    code += ["}", "", "const gluon_gc::cuda::Image gluon_gc::cuda::images[] = {"]
    for i, image in enumerate(images):
        ptx = "true" if image.ptx else "false"
        code.append(
            f'    {{"{image.source.stem}", {image.capability}, {ptx}, gluon_gc_image_{i}}},'
        )
    return "\n".join([*code, "    {nullptr, 0, false, nullptr},", "};", ""])


def main(images_file: Path, sources: List[Path]) -> None:
    nvrtc = library()
    if nvrtc is None:
        sys.exit("GLUON_GC_WITH_CUDA needs NVRTC: pip install nvidia-cuda-nvrtc-cu11")
    images = [image for source in sources for image in images_of(source)]
    with ThreadPoolExecutor() as pool:
        results = pool.map(lambda image: compile_image(nvrtc, image), images)
        for image, (code, _) in zip(images, results):
            (images_file.parent / image.file).write_bytes(code)
    images_file.write_text(table(images, images_file.resolve().parent))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(source) for source in sys.argv[2:]])
