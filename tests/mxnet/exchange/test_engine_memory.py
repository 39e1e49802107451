"""MXNet arrays that use NumPy's memory."""

import subprocess
import sys
import time

import mxnet as mx
import numpy as np

from gluon_gc.mxnet.engine.memory import as_ndarray

OUTLIVES = """
import json, sys
import numpy as np, mxnet as mx
from gluon_gc.mxnet.engine.memory import as_ndarray
json.kept = as_ndarray(np.zeros(3))  # json was imported first, and is cleared after MXNet
"""


def test_they_share_the_memory_and_give_it_back():
    memory = np.arange(6, dtype=np.float32).reshape(2, 3)
    before = sys.getrefcount(memory)
    array = as_ndarray(memory)
    np.testing.assert_array_equal(array.asnumpy(), memory)
    array[:] = 7
    array.wait_to_read()
    assert (memory == 7).all() and sys.getrefcount(memory) == before + 1
    del array
    mx.nd.waitall()
    deadline = time.monotonic() + 10
    while sys.getrefcount(memory) > before:  # an engine thread frees it
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_may_outlive_what_python_has_of_mxnet():
    done = subprocess.run([sys.executable, "-c", OUTLIVES], capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
