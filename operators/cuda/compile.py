"""Compiles the kernels for GPUs with NVRTC, on machines without a GPU or CUDA's toolkit.

    python compile.py IMAGES SOURCE...

writes IMAGES, a C++ file that has the machine code of all sources in it (images.h), and that code
beside it. NVRTC comes with pip install nvidia-cuda-nvrtc-cu11.
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
    "-fmad=false",  # as on the CPU: one rounding for each operation, and denormals
    "-ftz=false",
    "-prec-div=true",
    "-prec-sqrt=true",
    "--ptxas-options=-v",  # says what each kernel takes
    f"-I{OPERATORS}",
)


class Image(NamedTuple):
    """The machine code of a source for a compute capability, or PTX for all later ones."""

    source: Path
    capability: int
    ptx: bool = False

    @property
    def file(self) -> str:
        """Its name."""
        return f"{self.source.stem}_{self.capability}.{'ptx' if self.ptx else 'cubin'}"


def library() -> Optional[ctypes.CDLL]:
    """NVRTC, if its wheel is installed."""
    try:
        found = importlib.util.find_spec("nvidia.cuda_nvrtc")
    except ModuleNotFoundError:
        return None
    if found is None:
        return None
    folder = Path(next(iter(found.submodule_search_locations))) / "lib"
    for builtins in folder.glob("libnvrtc-builtins.so*"):
        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)  # NVRTC looks for it by name alone
    return ctypes.CDLL(str(next(folder.glob("libnvrtc.so*"))))


def compile_image(nvrtc: ctypes.CDLL, image: Image) -> Tuple[bytes, str]:
    """Compile a source. Returns the code, and what the compiler says of it.

    Raises
    ------
    RuntimeError
        With what the compiler says.
    """
    program = ctypes.c_void_p()
    text, name = image.source.read_bytes(), str(image.source).encode()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name, 0, None, None)
    kind = "compute" if image.ptx else "sm"
    words = [*OPTIONS, f"-arch={kind}_{image.capability}"]
    options = (ctypes.c_char_p * len(words))(*(word.encode() for word in words))
    failed = nvrtc.nvrtcCompileProgram(program, len(words), options)

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
    """All that a source is compiled to."""
    return [*(Image(source, number) for number in CAPABILITIES), Image(source, 90, ptx=True)]


def table(images: List[Image], folder: Path) -> str:
    """The C++ file that embeds the images' files, which are in a folder."""
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


def main(made: Path, sources: List[Path]) -> None:
    nvrtc = library()
    if nvrtc is None:
        sys.exit("GLUON_GC_WITH_CUDA needs NVRTC: pip install nvidia-cuda-nvrtc-cu11")
    images = [image for source in sources for image in images_of(source)]
    with ThreadPoolExecutor() as pool:
        made_of = pool.map(lambda image: compile_image(nvrtc, image), images)
        for image, (code, _) in zip(images, made_of):
            (made.parent / image.file).write_bytes(code)
    made.write_text(table(images, made.resolve().parent))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(source) for source in sys.argv[2:]])
