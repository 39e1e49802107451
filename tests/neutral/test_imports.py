"""Directions of imports: neutral parts import no framework and no layer above them.

Front ends import only their own framework.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import gluon_gc
from tests.processes import clean_environ

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "gluon_gc"
FRAMEWORKS = ("mxnet", "torch", "horovod")
FRONT_ENDS = {"mxnet": ("mxnet", "horovod"), "torch": ("torch",)}
"""The frameworks of each front end, by folder of gluon_gc."""

FOR_ALL = {"env", "log", "version"}
LAYERS = {
    "algorithms": {"compression", "exchange", "kernels", "options"},
    "auto": {"algorithms", "compression", "exchange", "kernels"},
    "check": {"kernels"},
    "compression": {"kernels", "options"},
    "exchange": {"compression", "kernels"},
    "kernels": set(),
    "launch": {"kernels"},
    "mailbox": {"algorithms", "compression", "exchange", "kernels", "options"},
    "__main__": {"check", "launch", "plan"},
    "options": set(),
    "plan": {"auto", "compression", "launch"},
    "reporting": {"exchange", "options"},
    "state": {"exchange", "kernels", "options"},
}
"""The neutral parts that each neutral part may import; see docs/design/architecture.md."""


def front_end_of(path):
    """Return the front end of a file of gluon_gc, or None."""
    first = path.relative_to(PACKAGE).parts[0]
    return first if first in FRONT_ENDS else None


FILES = sorted(PACKAGE.rglob("*.py"))
NEUTRAL = [path for path in FILES if front_end_of(path) is None]
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).replace(".__init__", "")
    for path in NEUTRAL
]


def imported(source, path):
    """Yield the full names of all imports in a file, at its top or within functions."""
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = (*above, *([node.module] if node.module else ()))
            yield from (".".join((*module, alias.name)) for alias in node.names)


def upward(source, path):
    """Return the imports of a file of gluon_gc that are not allowed."""
    own = front_end_of(path)
    allowed = FRONT_ENDS.get(own, ())
    forbidden = {name for name in FRAMEWORKS if name not in allowed}
    forbidden |= {f"gluon_gc.{name}" for name in FRONT_ENDS if name != own}
    if own is None:
        layer = path.relative_to(PACKAGE).with_suffix("").parts[0]
        below = {layer, *LAYERS.get(layer, ())}
        forbidden |= {f"gluon_gc.{name}" for name in LAYERS.keys() - below}
    return [
        name
        for name in imported(source, path)
        if any(f"{name}.".startswith(f"{other}.") for other in forbidden)
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_imports_upwards(path):
    assert upward(path.read_text(), path) == []


def test_each_neutral_module_has_a_layer():
    here = {path.relative_to(PACKAGE).with_suffix("").parts[0] for path in NEUTRAL}
    assert here == LAYERS.keys() | FOR_ALL | {"__init__", "after_mxnet"}


@pytest.mark.parametrize(
    "file, source",
    [
        ("plan.py", "import mxnet as mx"),
        ("plan.py", "from mxnet.ndarray import NDArray"),
        ("plan.py", "from . import mxnet"),
        ("plan.py", "def late():\n    import torch"),
        ("kernels/codec.py", "from ..mxnet import operators"),
        ("kernels/codec.py", "from .. import mxnet"),
        ("launch/cli/launcher.py", "if True:\n    from gluon_gc.mxnet.server import main"),
        ("__init__.py", "from .mxnet.trainer import DistributedTrainer"),
        ("mxnet/kvstore/local.py", "import torch.distributed"),
        ("torch/coder.py", "from ..mxnet.coder import MessageCoder"),
        ("kernels/codec.py", "from ..compression import CompressionParams"),
        ("compression/params.py", "from ..exchange import plan"),
        ("state/file.py", "from ..auto import probe"),
        ("env/variables.py", "from .. import kernels"),
    ],
)
def test_an_import_upwards_is_found(file, source):
    assert len(upward(source, PACKAGE / file)) == 1


@pytest.mark.parametrize(
    "file, source",
    [
        ("mxnet/kvstore/local.py", "import mxnet as mx\nfrom ..codec import Part"),
        ("mxnet/codec.py", "from .. import kernels\nfrom . import operators"),
        ("exchange/plan.py", "import numpy\nfrom ..compression import CompressionParams"),
        ("state/chunks.py", "from .. import env, kernels\nfrom .file import Key"),
    ],
)
def test_an_import_downwards_is_none(file, source):
    assert upward(source, PACKAGE / file) == []


def python(code):
    """Run code in a new Python; returns its output."""
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**clean_environ(), **library()},
        capture_output=True,
        encoding="utf-8",
        timeout=100,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def library():
    """Return the environment variable for the library that these tests use."""
    from gluon_gc import kernels

    return {"GLUON_GC_LIBRARY": str(kernels.PATH)}


def test_neutral_modules_are_imported_where_there_is_no_framework():
    assert "gluon_gc.kernels.codec" in MODULES and "gluon_gc.launch.cli.launcher" in MODULES
    python(
        f"import sys\nfor name in {FRAMEWORKS}: sys.modules[name] = None\n"
        f"from importlib import import_module\nfor name in {MODULES}: import_module(name)"
    )


def test_importing_gluon_gc_alone_imports_neither_a_framework_nor_numpy():
    loaded = python("import sys, gluon_gc\nprint(*sys.modules)").split()
    assert "gluon_gc.env" in loaded
    assert not {*FRAMEWORKS, "numpy", "gluon_gc.kernels", "gluon_gc.mxnet"}.intersection(loaded)


def test_public_names_are_listed_before_they_are_loaded():
    assert set(dir(gluon_gc)) == set(gluon_gc.__all__)
    assert {"DistributedTrainer", "Compression", "init", "ConfigurationError"} <= set(dir(gluon_gc))


def test_a_name_that_is_not_public_is_named():
    with pytest.raises(AttributeError, match="module 'gluon_gc' has no attribute 'no_such_name'"):
        _ = gluon_gc.no_such_name
    assert not hasattr(gluon_gc, "trainer")


def test_public_names_load_when_first_used():
    pytest.importorskip("mxnet")
    said = python(
        "import sys, gluon_gc as bps\n"
        "before = 'mxnet' in sys.modules\n"
        "values = [getattr(bps, name) for name in bps.__all__]\n"
        "from gluon_gc import DistributedTrainer, Compression\n"
        "from gluon_gc.mxnet.trainer import trainer\n"
        "print(before, 'mxnet' in sys.modules, 'DistributedTrainer' in vars(bps),"
        " bps.DistributedTrainer is trainer.DistributedTrainer)"
    )
    assert said.split() == ["False", "True", "True", "True"]


def test_the_front_end_of_mxnet_has_the_public_names_too():
    pytest.importorskip("mxnet")
    said = python(
        "import gluon_gc.mxnet as bps\n"
        "import gluon_gc\n"
        "from gluon_gc.mxnet import DistributedTrainer\n"
        "from gluon_gc.mxnet.trainer import trainer\n"
        "print(all(getattr(bps, name) is getattr(gluon_gc, name) for name in gluon_gc.__all__),"
        " bps.__all__ == gluon_gc.__all__, DistributedTrainer is trainer.DistributedTrainer,"
        " hasattr(bps, 'no_such_name'))"
    )
    assert said.split() == ["True", "True", "True", "False"]


def test_one_file_of_the_front_end_of_pytorch_knows_gloo():
    sources = {path.name: path.read_text() for path in (PACKAGE / "torch").rglob("*.py")}
    knowing = {name for name, source in sources.items() if '"gloo"' in source or "_gloo(" in source}
    assert knowing == {"gloo.py"}


def test_the_core_of_the_library_includes_no_framework():
    sources = [path for path in (ROOT / "operators" / "core").rglob("*") if path.is_file()]
    assert len(sources) > 20
    for path in sources:
        included = [x for x in path.read_text().splitlines() if x.lstrip().startswith("#include")]
        assert not [line for line in included if any(name in line for name in FRAMEWORKS)], path


def test_one_module_knows_the_object_store():
    importing = [
        path.relative_to(PACKAGE).as_posix()
        for path in FILES
        if any(name.partition(".")[0] == "obstore" for name in imported(path.read_text(), path))
    ]
    assert importing == ["mailbox/store.py"]
