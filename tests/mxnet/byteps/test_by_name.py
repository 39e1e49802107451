"""A plain gluon.Trainer that names one of our stores; the script only imports gluon_gc."""

import subprocess
import sys

import pytest

from tests.mxnet.cluster.cluster import TIMEOUT, launch
from tests.processes import clean_environ

ORDERS = ["import mxnet as mx, gluon_gc", "import gluon_gc, mxnet as mx"]
STEP = """
import os
weight = mx.gluon.Parameter("weight", shape=(40,))
weight.initialize(mx.init.One())
trainer = mx.gluon.Trainer(
    [weight], "sgd", {{"learning_rate": 1.0}}, kvstore="{store}",
    compression_params={{"compressor": "onebit", "scaling": True}},
)
with mx.autograd.record():
    factor = mx.nd.arange(40) + 40 * int(os.environ.get("DMLC_WORKER_ID", 0))
    loss = (weight.data() * factor).sum()
loss.backward()
trainer.step(1)
print(set(weight.data().asnumpy().tolist()))
"""
"""Worker 0 has gradients 0 to 39, worker 1 has 40 to 79. onebit decodes them as their means."""


def alone(source):
    process = subprocess.run(
        [sys.executable, "-c", source],
        env=clean_environ(),
        capture_output=True,
        encoding="utf-8",
        timeout=TIMEOUT,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.parametrize("order", ORDERS)
def test_mxnet_knows_our_stores_by_name(order):
    names = ["GluonGCLocal", "GluonGCHorovod", "GluonGCParameterServer"]
    known = f"[mx.kvstore.KVStoreBase.kv_registry[n.lower()].__name__ for n in {names}]"
    assert (
        alone(f"{order}\nprint({known}, mx.kv.create('GluonGCLocal').type)") == f"{names} local\n"
    )


@pytest.mark.parametrize("order", ORDERS)
def test_one_device_compresses(order):
    assert alone(order + STEP.format(store="GluonGCLocal")) == "{-18.5}\n"


def test_a_store_of_mxnets_is_made_as_before():
    source = f"{ORDERS[0]}\nfrom mxnet.gluon import trainer"
    kinds = "[trainer._create_kvstore(name, 1, {})[0] for name in (None, 'local', 'device')]"
    assert alone(f"{source}\nprint({kinds})") == "[None, None, None]\n"


MODULE = """
output = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=1)
module = mx.mod.Module(output, label_names=None)
module.bind([("data", (2, 3))])
module.init_params()
try:
    module.init_optimizer(kvstore={store})
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("store", ["'gluongclocal'", "mx.kv.create('GluonGCLocal')"])
def test_the_module_api_is_told_what_to_use_instead(order, store):
    (said,) = alone(order + MODULE.format(store=store)).splitlines()
    assert "not for the Module API: pass kvstore=None and bps.DistributedOptimizer" in said


@pytest.mark.parametrize("order", ORDERS)
def test_workers_do_not_diverge(order):
    lines = launch(order + STEP.format(store="GluonGCParameterServer"), "--local", "-np", "2")
    assert sorted(lines) == ["[worker 0] {-78.0}", "[worker 1] {-78.0}"]


def test_each_trainer_of_a_process_may_name_a_store():
    step = STEP.format(store="GluonGCParameterServer")
    lines = launch(ORDERS[0] + step + step, "--local", "-np", "2")
    assert sorted(lines) == 2 * ["[worker 0] {-78.0}"] + 2 * ["[worker 1] {-78.0}"]


def test_workers_of_horovod_do_not_diverge():
    source = ORDERS[0] + STEP.format(store="GluonGCHorovod")
    lines = launch(source, "--local", "-np", "2", "--backend", "horovod")
    # Both workers have gradients 0 to 39.
    assert len([line for line in lines if line.endswith("{-38.0}")]) == 2
