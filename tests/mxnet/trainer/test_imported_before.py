"""Libraries whose symbols are global before gluon_gc is imported change nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import clean_environ

ROOT = Path(__file__).resolve().parents[3]
TRAINING = """
import gluon_gc as bps
{after}
bps.init()
param = mx.gluon.Parameter("w", shape=(4,))
param.initialize("ones")
onebit = {{"compressor": "onebit"}}
trainer = bps.DistributedTrainer([param], "sgd", {{"learning_rate": 1.0}}, 0, onebit)
with mx.autograd.record():
    loss = (param.data() * mx.nd.array([1, -1, 1, -1])).sum()
loss.backward()
trainer.step(1)
print(param.data().asnumpy().tolist())
"""
GLOBAL = "import ctypes, mxnet as mx; ctypes.CDLL(mx.base._LIB._name, ctypes.RTLD_GLOBAL)"
HOROVOD = "import horovod.mxnet"


@pytest.mark.parametrize(
    "before, after",
    [(GLOBAL, ""), (HOROVOD, ""), ("", HOROVOD)],
    ids=["libmxnet is global", "horovod first", "horovod second"],
)
def test_a_step_is_right_in_every_order_of_imports(before, after):
    if HOROVOD in (before, after):
        pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
    code = f"{before}\nimport mxnet as mx{TRAINING.format(after=after)}"
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=ROOT, env=clean_environ(), capture_output=True, encoding="utf-8", timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "[0.0, 2.0, 0.0, 2.0]\n"), done.stderr
