"""The compressor of docs/design/adding-a-compressor.md needs three new files and no edits."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import mxnet
import pytest

from gluon_gc.compression import registry
from tests.docs.test_docs import ROOT, Page

NAME = "twobit"
FILES = {
    f"operators/core/compressors/{NAME}.cpp",
    f"gluon_gc/compression/{NAME}.py",
    f"tests/neutral/compressors/test_{NAME}.py",
}
BESIDE = "onebit"  # copy only this compressor, because compiling the others takes long

TRAINING = """
import mxnet as mx
import gluon_gc as bps

bps.init()
net = mx.gluon.nn.Dense(1, use_bias=False, in_units=4)
net.initialize(mx.init.Zero())
params = {"compressor": "twobit", "threshold": 0.5, "ef": "vanilla"}
trainer = bps.DistributedTrainer(
    net.collect_params(), "sgd", {"learning_rate": 1.0}, compression_params=params
)
for _ in range(2):
    with mx.autograd.record():
        out = net(mx.nd.array([[1.0, -1.0, 0.25, 0.0]]))
    out.backward()
    trainer.step(1)
print(net.weight.data().asnumpy().ravel().tolist())
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run Python in a copy of the tree with the page's three files; returns its output."""
    tree = tmp_path_factory.mktemp("tree")
    env = {name: value for name, value in os.environ.items() if name != "GLUON_GC_LIBRARY"}
    env["PYTHONPATH"] = str(tree)

    def run(*arguments):
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(command, cwd=tree, env=env, capture_output=True, encoding="utf-8")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    ends = (".py", ".cpp", ".cu")
    others = {f"{name}{end}" for name in registry if name != BESIDE for end in ends}
    left_out = shutil.ignore_patterns("*.so", "__pycache__", *others)
    for folder in ("operators", "gluon_gc", "tests"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=left_out)
    shutil.copy(ROOT / "bpslaunch.py", tree)
    page = Page(ROOT / "docs/design/adding-a-compressor.md")
    files = {file: code for _, code, file in page.blocks if file}
    assert files.keys() == FILES
    for file, code in files.items():
        assert not (tree / file).exists()
        (tree / file).write_text(code)
    mxnet_dir = Path(mxnet.__file__).parent
    quick = ("-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0")
    run("-m", "cmake", "-S", "operators", "-B", "build", f"-DMXNET_DIR={mxnet_dir}", *quick)
    assert "warning" not in run("-m", "cmake", "--build", "build", "--parallel", "2")
    shutil.copy(tree / "build" / "libgluon_gc.so", tree / "gluon_gc")
    return run


@pytest.mark.timeout(600)
def test_the_shared_tests_find_it_and_pass(run):
    shared = "tests/neutral/compressors", "tests/mxnet/exchange/test_two_way.py"
    output = run("-m", "pytest", "-v", "-p", "no:cacheprovider", *shared, "-k", NAME)
    assert f"test_codec.py::test_payloads_are_added_in_their_order[{NAME}] PASSED" in output
    assert f"test_{NAME}.py::" in output
    assert f"[{NAME}] PASSED" in output.partition("test_two_way.py::")[2]


@pytest.mark.timeout(600)
def test_it_trains(run):
    assert run("-c", TRAINING).splitlines()[-1] == "[-1.0, 1.0, -0.5, 0.0]"
