"""gluon_gc installed by `pip install .` or from a wheel, not editable, in its own environment."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import mxnet
import numpy
import pytest
from packaging.requirements import Requirement

import gluon_gc
from gluon_gc import kernels
from tests.processes import clean_environ, free_port

ROOT = Path(__file__).resolve().parents[3]
TORCH_VENV = ROOT / ".venv-torch"
SOURCES = ("bpslaunch.py", "gluon_gc", "operators", "pyproject.toml", "setup.py")
SOURCES += ("LICENSE", "MANIFEST.in", "README.md")
TIMEOUT = 90
WORKER = """
import mxnet as mx
import gluon_gc as bps

bps.init()
x = mx.nd.full((5,), bps.rank() + 1)
bps.byteps_push_pull(x, name="x", is_average=False)
print(f"rank {bps.rank()} of {bps.size()} has {x.asnumpy().tolist()}")
bps.shutdown()
"""
KERNELS = """
import numpy as np
from gluon_gc.kernels import Codec

x = np.arange(-50, 50, dtype=np.float32) + 0.25
codec = Codec("topk", {"k": 10}, x.size)
payload, _ = codec.compress(x)
y, _ = codec.decompress(payload)
print(np.flatnonzero(y).tolist(), np.array_equal(y[y != 0], x[y != 0]))
"""

TORCH = Path(__file__).with_name("train.py")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the sources without a compiled library."""
    folder = tmp_path_factory.mktemp("checkout")
    unbuilt = shutil.ignore_patterns("__pycache__", "*.so")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=unbuilt)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with a stub for CMake that gives setup.py the tests' library."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "cmake.py").write_text(f"""
import shutil, sys
if "--install" in sys.argv:
    shutil.copy({str(kernels.PATH)!r}, sys.argv[sys.argv.index("--prefix") + 1])
""")
    return folder


@pytest.fixture(scope="module")
def environment(tmp_path_factory, checkout, built):
    """A virtual environment with gluon_gc, MXNet and the tests' other packages."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    # Python ignores .pth files in these folders, so an editable gluon_gc is not found.
    others = {str(Path(module.__file__).parents[1]) for module in (mxnet, numpy, pytest)}
    (site_packages / "others.pth").write_text("\n".join(others))
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-index", "--no-build-isolation"]
    options = ["--no-deps", "--ignore-installed", "--no-warn-script-location"]
    build = {**clean_environ(), "PYTHONPATH": str(built)}
    subprocess.run([*pip, *options, str(checkout)], check=True, env=build)
    where = "import importlib.util as util; print(util.find_spec('gluon_gc').origin)"
    found = subprocess.run(
        [str(python), "-c", where], cwd=folder, capture_output=True, encoding="utf-8"
    )
    assert Path(found.stdout.strip()) == site_packages / "gluon_gc" / "__init__.py"
    return folder


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """A worker's script in its own folder, which comes first on the worker's sys.path."""
    path = tmp_path_factory.mktemp("script") / "train.py"
    path.write_text(WORKER)
    return path


@pytest.fixture
def hostile(tmp_path):
    """A folder with a module for each name in Python and in packages; each records its run."""
    standard = {path.stem for path in Path(os.__file__).parent.glob("*.py")}
    packages = {path.parent.name for path in Path(os.__file__).parent.glob("*/__init__.py")}
    for name in standard | packages | {"gluon_gc", "mxnet", "numpy", "requests", "xxhash"}:
        source = f"open('ran.{name}', 'w').close()\nraise SystemExit('{name} of the user')\n"
        (tmp_path / f"{name}.py").write_text(source)
    return tmp_path


def finish(command, cwd, timeout=TIMEOUT, **environ):
    """Run a command; returns its exit code, output and errors."""
    with subprocess.Popen(
        [str(word) for word in command],
        cwd=cwd,
        env={**clean_environ(), "OMP_NUM_THREADS": "1", **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            process.terminate()  # the launcher then ends its processes
    return process.returncode, out, err


def launched(launcher, environment, script, cwd, **environ):
    """Run two workers under a launcher; returns their output lines."""
    command = [*launcher, "--local", "-n", 2, "-s", 1, environment / "bin" / "python", script]
    code, out, err = finish(command, cwd, **environ)
    assert code == 0, out + err
    return sorted(line for line in out.splitlines() if " has " in line)


LINES = [f"[worker {rank}] rank {rank} of 2 has {[3.0] * 5}" for rank in (0, 1)]


def test_a_cluster_runs_in_the_checkout(environment, checkout, script):
    assert launched([environment / "bin" / "bpslaunch"], environment, script, checkout) == LINES


def test_a_cluster_runs_beside_modules_of_any_name(environment, hostile, script):
    assert launched([environment / "bin" / "bpslaunch"], environment, script, hostile) == LINES
    assert not list(hostile.glob("ran.*"))


def test_the_launcher_runs_as_a_module_too(environment, script, tmp_path):
    for name in ("gluon_gc", "http", "queue", "socket"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('of the user')")
    launcher = [environment / "bin" / "python", "-m", "bpslaunch"]
    assert launched(launcher, environment, script, tmp_path) == LINES


def test_a_server_heeds_pythonpath_but_for_empty_entries(environment, tmp_path):
    for name in ("http", "queue"):  # the launcher itself does not import these
        (tmp_path / f"{name}.py").write_text("raise SystemExit('of the user')")
    listed = tmp_path / "listed"
    listed.mkdir()
    (listed / "sitecustomize.py").write_text("print('PYTHONPATH was heeded')")
    cluster = {
        "DMLC_ROLE": "server",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
        "GLUON_GC_CONNECT_TIMEOUT": "1",
        "PYTHONPATH": f":{listed}:",
    }
    code, out, err = finish([environment / "bin" / "bpslaunch"], tmp_path, **cluster)
    assert code == 1 and "no scheduler at 127.0.0.1" in err
    assert out == "PYTHONPATH was heeded\n" * 2  # once from bpslaunch, once from the server


# The wheel


@pytest.fixture(scope="module")
def wheel(checkout, built):
    """Build the wheel with `make wheel`."""
    venv = Path(sys.prefix)
    make = ["make", "-f", ROOT / "Makefile", "-o", venv / ".installed", f"VENV={venv}", "wheel"]
    code, out, err = finish(make, checkout, PYTHONPATH=str(built))
    assert code == 0, out + err
    (path,) = (checkout / "dist").iterdir()
    return path


def test_the_wheel_is_for_any_python_and_has_nothing_of_other_projects(wheel):
    assert wheel.name == f"gluon_gc-{gluon_gc.__version__}-py3-none-manylinux_2_24_x86_64.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert [name for name in names if ".so" in name] == ["gluon_gc/libgluon_gc.so"]
    folders = {name.partition("/")[0] for name in names}
    assert folders - {"gluon_gc", "bpslaunch.py"} == {f"gluon_gc-{gluon_gc.__version__}.dist-info"}


def test_auditwheel_refuses_the_wheel_for_what_is_older(wheel, tmp_path):
    """This shows that auditwheel in `make wheel` is a real check."""
    repair = [sys.executable, "-m", "auditwheel", "repair", "--exclude", "libgomp.so.1"]
    path = os.pathsep.join([str(Path(sys.prefix) / "bin"), os.environ["PATH"]])
    options = ["--plat", "manylinux_2_17_x86_64", "--wheel-dir", tmp_path, wheel]
    code, _, err = finish([*repair, *options], tmp_path, PATH=path)
    assert code and "too-recent versioned symbols" in err


def test_the_wheel_compresses_in_an_environment_that_has_only_numpy(wheel, tmp_path):
    folder = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    for path in Path(numpy.__file__).parents[1].glob("numpy*"):
        (site_packages / path.name).symlink_to(path)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    code, out, err = finish([*pip, "--no-index", "--no-deps", wheel], tmp_path)
    assert code == 0, out + err
    code, out, err = finish([python, "-c", KERNELS], tmp_path)
    assert (code, out) == (0, f"{[*range(5), *range(95, 100)]} True\n"), err
    line = imported(python, tmp_path, "")
    assert line.startswith("ImportError: gluon_gc needs MXNet 1.9.1 (No module named 'mxnet')")
    assert finish([folder / "bin" / "bpslaunch", "--help"], tmp_path)[0] == 0


@pytest.fixture(scope="module")
def torch_environment(wheel, tmp_path_factory):
    """A virtual environment with the wheel, and the packages of PyTorch's, which lacks MXNet."""
    if not TORCH_VENV.exists():
        pytest.skip("make .venv-torch/.installed makes PyTorch's environment")
    folder = tmp_path_factory.mktemp("torch_environment")
    subprocess.run(
        [TORCH_VENV / "bin" / "python", "-m", "venv", "--without-pip", folder], check=True
    )
    (packages,), (own,) = (f.glob("lib/python*/site-packages") for f in (TORCH_VENV, folder))
    (own / "torch.pth").write_text(str(packages))
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet"]
    code, out, err = finish([*pip, "--no-index", "--no-deps", wheel], folder)
    assert code == 0, out + err
    return folder


def test_pytorchs_environment_has_what_the_extra_for_pytorch_asks_for(torch_environment):
    (own,) = torch_environment.glob("lib/python*/site-packages")
    folders = [str(own), (own / "torch.pth").read_text()]
    version = own.parent.name[len("python") :]
    (ours,) = distributions(name="gluon_gc", path=folders)
    required = [Requirement(line) for line in ours.requires]
    where = {"extra": "torch", "python_version": version}
    asked = [r for r in required if r.marker is None or r.marker.evaluate(where)]
    assert {r.name for r in asked} == {"numpy", "xxhash", "torch", "tqdm"}
    for r in asked:
        (found,) = distributions(name=r.name, path=folders)
        assert r.specifier.contains(found.version), r


def test_the_wheel_trains_under_torchrun_without_mxnet(torch_environment, tmp_path):
    python = torch_environment / "bin" / "python"
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    code, out, err = finish([*torchrun, TORCH], tmp_path)
    assert code == 0, out + err
    first, second = ((tmp_path / f"rank{rank}").read_text().split() for rank in (0, 1))
    assert first == second and first[0] == "2" and int(first[1]) == 28


def test_gluon_gc_imports_without_mxnet_and_says_who_needs_it(torch_environment, tmp_path):
    python = torch_environment / "bin" / "python"
    code, _, err = finish([python, "-c", "import gluon_gc, gluon_gc.torch"], tmp_path)
    assert code == 0, err
    code, _, err = finish([python, "-c", "import mxnet"], tmp_path)
    assert code == 1 and "No module named 'mxnet'" in err
    line = imported(python, tmp_path, "")
    assert line.startswith("ImportError: gluon_gc needs MXNet 1.9.1 (No module named 'mxnet')")


# Extras


def test_nothing_brings_a_second_mxnet(environment):
    (metadata,) = environment.glob("lib/python*/site-packages/gluon_gc-*.dist-info/METADATA")
    required = set(
        re.findall(r"^Requires-Dist: ([\w-]+)(?:.*extra == .(\w+).)?", metadata.read_text(), re.M)
    )
    assert sorted((extra, name) for name, extra in required if "mxnet" in name) == [
        ("cu112", "mxnet-cu112"),
        ("mxnet", "mxnet"),
    ]
    assert {extra for name, extra in required if name == "numpy"} == {"", "cu112", "mxnet"}
    assert {name for name, extra in required if not extra} == {"numpy", "xxhash"}
    # Pip cannot build it together with MXNet.
    assert "horovod" not in {name for name, _ in required}


# Missing packages give one sentence


def imported(python, cwd, before, **environ):
    """Run `before`, then use gluon_gc for the first time; returns the last line of the error."""
    use = f"{before}\nimport gluon_gc as bps\nbps.init()"
    code, out, err = finish([python, "-c", use], cwd, **environ)
    assert (code, out) == (1, "")
    assert err.count("Traceback") == 1  # no error behind the error
    return err.splitlines()[-1]


NO_MXNET = "import sys; sys.modules['mxnet'] = None"
NUMPY_1_24 = """
import numpy
numpy.__version__ = "1.24.4"
def gone(name):
    raise AttributeError(name)
numpy.__getattr__ = gone  # names such as numpy.bool
"""


@pytest.mark.parametrize(
    "before, said",
    [
        (NO_MXNET, "ImportError: gluon_gc needs MXNet 1.9.1 ("),
        (NUMPY_1_24, "ImportError: MXNet 1.9.1 needs numpy<1.24, got 1.24.4: "),
    ],
    ids=["no MXNet", "a newer NumPy"],
)
def test_an_engine_that_is_missing_is_named_with_the_extra_that_brings_it(tmp_path, before, said):
    line = imported(sys.executable, tmp_path, before)
    assert line.startswith(said)
    assert line.endswith("pip install '.[mxnet]', or '.[cu112]' for CUDA 11.2")


def test_a_python_that_mxnet_does_not_run_on_is_named(tmp_path):
    line = imported(sys.executable, tmp_path, "import sys, gluon_gc; sys.version_info = (3, 12, 1)")
    assert line.startswith("ImportError: MXNet 1.9.1 needs Python 3.8 to 3.11, got 3.12;")


def test_pip_names_the_pythons_that_mxnet_runs_on(environment):
    (metadata,) = environment.glob("lib/python*/site-packages/gluon_gc-*.dist-info/METADATA")
    lines = re.findall(r"^Requires-Dist: (.*)$", metadata.read_text(), re.M)
    required = [Requirement(line) for line in lines]
    for asked in ("mxnet", "cu112"):
        for version, ending in (("3.11", ""), ("3.12", "+needs.python.3.8.to.3.11")):
            where = {"extra": asked, "python_version": version}
            found = [r for r in required if r.marker and r.marker.evaluate(where)]
            (mxnet,) = (r for r in found if r.name.startswith("mxnet"))
            assert str(mxnet.specifier) == f"==1.9.1{ending}"


def test_a_checkout_that_is_not_built_says_so(environment, checkout):
    line = imported(environment / "bin" / "python", checkout, "")
    assert line.startswith(f"ImportError: {checkout}/gluon_gc/libgluon_gc.so does not exist: ")


def test_horovod_that_is_missing_is_named_with_the_page_that_says_how(tmp_path):
    source = "import sys; sys.modules['horovod'] = None; import mxnet as mx, gluon_gc.mxnet.kvstore"
    create = f"{source}; mx.kv.create('GluonGCHorovod')"
    code, _, err = finish([sys.executable, "-c", create], tmp_path)
    assert code == 1 and err.count("Traceback") == 1
    line = err.splitlines()[-1]
    assert line.startswith("ImportError: the horovod backend needs Horovod built for this MXNet (")
    assert line.endswith("docs/guides/horovod.md says how")


def test_a_cluster_without_an_engine_says_so_in_a_line(environment, tmp_path):
    (tmp_path / "mxnet.py").write_text("raise ModuleNotFoundError('none', name='mxnet')")
    forever = [environment / "bin" / "python", "-c", "import time; time.sleep(1000)"]
    command = [environment / "bin" / "bpslaunch", "--local", *forever]
    code, out, err = finish(command, tmp_path, PYTHONPATH=str(tmp_path))
    assert code == 1
    said = "gluon_gc needs MXNet 1.9.1 (none): install gluon_gc with pip install '.[mxnet]'"
    lines = out.splitlines()
    assert lines and "Traceback" not in err
    assert all(
        re.match(r"\[(scheduler|server) ?\d?\] gluon_gc: \1: " + re.escape(said), x) for x in lines
    )
