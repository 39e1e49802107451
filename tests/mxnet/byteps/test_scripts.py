"""A script with the arguments and calls of BytePS's published ones, under bpslaunch, for an epoch.

The script (byteps_scripts/mnist.py) is our own. A user of a published one changes the import and
the device. It runs as users start it: a cluster on one machine, one machine with two devices, and
two machines whose roles are started by hand.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

from tests.mxnet.cluster.cluster import BPSLAUNCH
from tests.processes import clean_environ, free_port

SCRIPT = Path(__file__).parents[2] / "byteps_scripts" / "mnist.py"
WORDS = "--no-cuda --epochs 1 --batch-size 16 --j 1"
# As in the guide's worker.sh, but with lower thresholds because the networks are small.
GUIDE = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "BYTEPS_THREADPOOL_SIZE": "16",
    "BYTEPS_PARTITION_BYTES": "4096000",
    "BYTEPS_MIN_COMPRESS_BYTES": "1024",
    "BYTEPS_NUMA_ON": "1",
}
ENVIRON = {
    **clean_environ(),
    **GUIDE,
    "OMP_NUM_THREADS": "1",
    "BYTEPS_LOG_LEVEL": "INFO",
}
SUMMARY = re.compile(r"([\d,]+) elements?, in [^:]*: \{(.*?)\}")
WARNING = re.compile(r"(?:byteps_scripts|gluon_gc)/[\w/]+\.py:\d+: \w*Warning.*|.*nothing reads.*")


@pytest.fixture
def home(data, tmp_path):
    """Return MXNet's home folder, with the generated files as Gluon's data sets."""
    (tmp_path / "datasets").symlink_to(data)
    return str(tmp_path)


def start(folder, *words, **variables):
    """Start bpslaunch in a folder."""
    return subprocess.Popen(
        [sys.executable, str(BPSLAUNCH), *words],
        cwd=folder,
        env={**ENVIRON, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )


def finish(*processes):
    """Wait until all processes have ended with exit code 0; returns their output."""
    said = []
    try:
        for process in processes:
            said.append(process.communicate(timeout=100)[0])
            assert process.returncode == 0, said
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return "".join(said)


def assert_trained(said, folder, compressed):
    """Check that workers have equal parameters, from compressed gradients, without warnings."""
    first, second = (mx.nd.load(str(folder / f"{rank}.params")) for rank in range(2))
    assert first.keys() == second.keys()
    for key, array in first.items():
        assert np.isfinite(array.asnumpy()).all()
        np.testing.assert_array_equal(array.asnumpy(), second[key].asnumpy())
    (elements,) = (count for count, how in SUMMARY.findall(said) if compressed in how)
    assert int(elements.replace(",", "")) > 0.9 * sum(array.size for array in first.values())
    found = [float(number) for number in re.findall(r"accuracy=(\S+)", said)]
    assert len(found) == 2 and all(0 <= number <= 1 for number in found)
    assert not WARNING.findall(said)


def test_on_one_machine(home, tmp_path):
    words = f"{WORDS} --compressor randomk --k 32 --ef vanilla"
    script = [sys.executable, str(SCRIPT), *words.split()]
    local = ["--local", "-n", "2", "-s", "1"]
    said = finish(start(tmp_path, *local, *script, MXNET_HOME=home))
    compressed = "'compressor': 'randomk', 'ef': 'vanilla', 'exchange': 'two_way', 'k': 32"
    assert_trained(said, tmp_path, compressed)


def test_on_a_machine_with_two_devices(home, tmp_path):
    words = f"{WORDS} --compressor dithering --k 2 --normalize l2 --fp16-pushpull"
    line = f"{shlex.quote(sys.executable)} {shlex.quote(str(SCRIPT))} {words} 2>&1"
    machine = {
        "NVIDIA_VISIBLE_DEVICES": "0,1",
        "DMLC_ROLE": "worker",
        "DMLC_WORKER_ID": "0",
        "DMLC_NUM_WORKER": "1",
        "DMLC_NUM_SERVER": "2",
        "DMLC_PS_ROOT_URI": "192.0.2.1",
        "DMLC_PS_ROOT_PORT": "1234",
    }
    said = finish(start(tmp_path, line, MXNET_HOME=home, **machine))
    assert_trained(said, tmp_path, "'compressor': 'dithering', 'fp16': True")


def test_on_two_machines(home, tmp_path):
    words = (
        f"{WORDS} --compressor onebit --onebit-scaling --ef vanilla --compress-momentum nesterov"
    )
    cluster = {
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NODE_HOST": "127.0.0.1",
    }
    services = [start(tmp_path, DMLC_ROLE=role, **cluster) for role in ("scheduler", "server")]
    workers = []
    for rank in range(2):
        worker = {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(rank), "MXNET_HOME": home}
        script = [sys.executable, str(SCRIPT), *words.split()]
        workers.append(start(tmp_path, *script, **worker, **cluster))
    said = finish(*workers, *services)
    compressed = "'compressor': 'onebit', 'ef': 'vanilla', 'momentum': 'nesterov'"
    assert_trained(said, tmp_path, compressed)
