"""Jobs on one machine, which need no settings."""

import subprocess
import sys

import pytest

from tests.mxnet.cluster.cluster import launch
from tests.processes import clean_environ

ALONE = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": 1, "DMLC_WORKER_ID": 0}
STEP = """
import mxnet as mx
import gluon_gc as bps

bps.init()
weight = mx.gluon.Parameter("weight", shape=(40,))
weight.initialize(mx.init.One())
compression = {"compressor": "onebit", "scaling": True}
trainer = bps.DistributedTrainer(
    [weight], "sgd", {"learning_rate": 1.0}, compression_params=compression
)
with mx.autograd.record():
    loss = (weight.data() * (bps.rank() + 1)).sum()
loss.backward()
trainer.step(1)
places = bps.rank(), bps.size(), bps.local_rank(), bps.local_size()
from gluon_gc.mxnet.byteps.runtime import default_exchange
print(default_exchange().type, *places, set(weight.data().asnumpy().tolist()))
bps.shutdown()
"""


@pytest.mark.parametrize("servers", [{}, {"DMLC_NUM_SERVER": 1}])
def test_one_worker_trains_without_a_scheduler(servers):
    assert launch(STEP, **ALONE, **servers) == ["local 0 1 0 1 {0.0}"]


@pytest.mark.parametrize(
    "several",
    [
        {"BYTEPS_LOCAL_SIZE": 2},
        {"NVIDIA_VISIBLE_DEVICES": "0,1", "DMLC_NUM_SERVER": 2, "DMLC_PS_ROOT_URI": "192.0.2.1"},
    ],
)
def test_several_workers_train_together_without_a_scheduler(several):
    lines = launch(STEP, **ALONE, **several)
    assert sorted(lines) == [
        "[worker 0] machine 0 2 0 2 {-0.5}",
        "[worker 1] machine 1 2 1 2 {-0.5}",
    ]


def test_a_local_job_without_servers_is_one_machines():
    assert sorted(launch(STEP, "--local", "-n", "2", "-s", "0")) == [
        "[worker 0] machine 0 2 0 2 {-0.5}",
        "[worker 1] machine 1 2 1 2 {-0.5}",
    ]


def test_a_misspelt_variable_is_named_once_with_the_nearest():
    lines = launch(STEP, **ALONE, BYTEPS_LOCAL_SIZE=2, BYTEPS_PARTITON_BYTES=1)
    assert [line for line in lines if "PARTITON" in line] == [
        "[worker 0] gluon_gc: nothing reads the variable BYTEPS_PARTITON_BYTES; "
        "did you mean BYTEPS_PARTITION_BYTES?"
    ]


@pytest.mark.parametrize(
    "role, said",
    [
        ("Worker", "must be one of worker, server, scheduler, got 'Worker'"),
        ("server", "must be worker for a training script, got 'server'"),
        ("worker ", "trains"),
        ("", "trains"),
    ],
)
def test_a_wrong_role_is_refused_before_mxnet_serves(role, said):
    """MXNet runs its own server in `import mxnet`, unless the role is exactly "worker"."""
    script = "import gluon_gc as bps; bps.init(); print('trains')"
    environ = {**clean_environ(), "DMLC_ROLE": role, "DMLC_NUM_WORKER": "1", "DMLC_NUM_SERVER": "0"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert said in done.stdout + done.stderr
