"""The C interface matches Python's declarations; a library with another interface is rejected."""

import ctypes
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from gluon_gc import kernels
from tests.processes import clean_environ

ROOT = Path(__file__).resolve().parents[3]
HEADER = (ROOT / "operators" / "core" / "abi.h").read_text()
# The module; `kernels.library` is the loaded library.
declarations = import_module("gluon_gc.kernels.library")
OURS = kernels.library.gluon_gc_abi().decode()


def imported_with(path):
    """Import gluon_gc.kernels with this library in a new Python; returns stderr's last line."""
    process = subprocess.run(
        [sys.executable, "-c", "import gluon_gc.kernels"],
        cwd=ROOT,
        env={**clean_environ(), "GLUON_GC_LIBRARY": str(path)},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    return process.stderr.strip().rpartition("\n")[2]


@pytest.fixture
def stand_in(tmp_path):
    """Return a function that compiles a library from C source."""

    def make(source):
        path = tmp_path / "libstandin.so"
        command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
        subprocess.run(command, input=source, encoding="utf-8", check=True, timeout=60)
        return path

    return make


@pytest.mark.parametrize(
    "theirs",
    [OURS.replace("version=", "version=9"), re.sub("call=(.*?) ", "call=8 ", OURS), ""],
    ids=["another version", "a struct of another size", "nothing"],
)
def test_a_library_with_another_interface_is_refused_with_both_versions(stand_in, theirs):
    assert theirs != OURS
    path = stand_in(f'const char* gluon_gc_abi(void) {{ return "{theirs}"; }}')
    said = imported_with(path)
    assert said.startswith(f"ImportError: {path} has another C interface than this gluon_gc.")
    assert f"The library's: {theirs}; gluon_gc's: {OURS}." in said
    assert "Install gluon_gc again" in said and "GLUON_GC_LIBRARY" in said


def test_a_library_from_before_versions_is_refused(stand_in):
    said = imported_with(stand_in("int gluon_gc_best_isa(void) { return 0; }"))
    assert "The library's: version=0; " in said and OURS in said


def test_this_library_is_taken():
    assert imported_with(kernels.PATH) == ""


def test_the_library_exports_only_its_interface_and_the_functions_that_mxnet_looks_up():
    """A C++ symbol could bind to libmxnet.so's of that name, which `import horovod.mxnet` loads."""
    listed = ["nm", "-D", "--defined-only", "--format=posix", str(kernels.PATH)]
    symbols = subprocess.run(listed, stdout=subprocess.PIPE, encoding="utf-8", check=True).stdout
    names = {line.split()[0] for line in symbols.splitlines()}
    declared = set(re.findall(r"GLUON_GC_API [^;(]*?(gluon_gc_\w+)\(", HEADER))
    assert declared and declared <= names
    known = re.compile(r"gluon_gc_\w+|initialize|_(msg|op|part|pass)[A-Z]\w*")
    assert {name for name in names if not known.fullmatch(name)} == set()


def structs_of_header():
    """Return the fields of each struct in abi.h, in order, by the struct's name."""
    code = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.S)
    found = re.findall(r"typedef struct \{(.*?)\} gluon_gc_(\w+);", code, re.S)
    fields = {name: re.split("[;,]", body) for body, name in found}
    return {
        name: [re.findall(r"(\w+)(?:\[\d+\])?$", field)[0] for field in each if field.strip()]
        for name, each in fields.items()
    }


def test_each_struct_of_the_header_is_declared_with_its_fields_in_order():
    declared = {
        name: [field.rstrip("_") for field, *_ in struct._fields_]
        for name, struct in declarations.STRUCTS.items()
    }
    assert declared == structs_of_header()


def test_the_version_is_that_of_the_header():
    assert f"enum {{ gluon_gc_abi_version = {declarations.VERSION} }};" in HEADER


@pytest.mark.parametrize("name", ["cuda", "ticket_bytes"])
def test_constants_are_those_of_the_header(name):
    (value,) = re.findall(rf"gluon_gc_{name} = (\d+)", HEADER)
    assert getattr(declarations, name.upper()) == int(value)


@pytest.mark.parametrize("nbytes", [0, 1, 4, 508, 509, 1012, 1016, 1017, 100_000])
@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize("in_one", [False, True])
def test_rows_have_room_for_the_longest_message(nbytes, varies, in_one):
    rows = kernels.message_rows(nbytes, varies, in_one)
    assert isinstance(rows, ctypes.Structure)
    assert rows.bytes == nbytes + 4 * varies
    words = kernels.frame_words(rows.bytes)
    assert rows.row_words == (min(words, 256) if varies and not in_one else words)
    assert rows.rows == (-(-words // rows.row_words) if words else 1)
