"""gluon_gc does not change the numbers that MXNet draws after a seed."""

import subprocess
import sys

import pytest

from tests.processes import clean_environ

DRAW = """
import mxnet as mx
mx.random.seed(1)
print(mx.nd.random.uniform(shape=2).asnumpy(), mx.nd.random.normal(shape=2).asnumpy())
"""
STEP = """
weight = mx.gluon.Parameter("weight", shape=(40,))
weight.initialize(mx.init.One())
compression = dict(compressor="onebit", ef="vanilla")
trainer = bps.DistributedTrainer([weight], "sgd", compression_params=compression)
mx.random.seed(2)
for _ in range(3):
    with mx.autograd.record():
        loss = (weight.data() * mx.nd.random.normal(shape=40)).sum()
    loss.backward()
    {step}
print(mx.nd.random.uniform(shape=2).asnumpy())
"""


def said(script, **variables):
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**clean_environ(), **variables},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize(
    "before", ["import gluon_gc", "import mxnet, gluon_gc", "import gluon_gc.mxnet.trainer.trainer"]
)
def test_to_import_gluon_gc_changes_nothing(before):
    assert said(f"{before}\n{DRAW}") == said(DRAW)


def test_with_one_copy_of_the_resource_nor_does_training():
    one_copy = {"MXNET_CPU_PARALLEL_RAND_COPY": "1"}
    begin = f"import gluon_gc as bps\nbps.init()\n{DRAW}"
    trained = said(begin + STEP.format(step="trainer.step(1)"), **one_copy)
    assert trained == said(begin + STEP.format(step="mx.nd.waitall()"), **one_copy)
    assert trained.startswith(said(DRAW))
