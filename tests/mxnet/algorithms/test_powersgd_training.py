"""DistributedTrainer with powersgd, in one process."""

import re

import numpy as np
import pytest

from gluon_gc import state as checkpoint
from gluon_gc.mxnet.algorithms.algorithm import MXNet
from gluon_gc.state import Key
from tests.mxnet.cluster.jobs import backward, gradients, make
from tests.mxnet.states.test_states import write

SHAPES = [(40, 3, 3, 3), (7,), (30, 20)]
POWERSGD = {"name": "powersgd", "rank": 2}
SGD = {"learning_rate": 0.125}
TOTAL = Key(0, "local", "total")


def made(compression_params=None, contexts=1, algorithm=POWERSGD, **more):
    return make(SHAPES, dict(SGD), compression_params, contexts, algorithm=algorithm, **more)


def train(params, trainer, steps):
    for step in steps:
        backward(params, gradients(step, SHAPES))
        trainer.step(2)
    return [param.data().asnumpy() for param in params]


def assert_equal(arrays, others):
    for one, other in zip(arrays, others):
        np.testing.assert_array_equal(one, other)


def train_and_save(files):
    params, trainer = made()
    train(params, trainer, range(3))
    for file in files:
        trainer.save_states(file)
    return params, trainer


def test_a_checkpoint_has_the_factors_once_and_each_workers_total(tmp_path):
    file = str(tmp_path / "states")
    params, trainer = train_and_save([file])
    others, other = made()
    other.load_states(file)
    assert_equal(train(params, trainer, range(3, 6)), train(others, other, range(3, 6)))
    kinds = {(key.node, key.what) for key in checkpoint.read(file).arrays}
    factors = {("trainer", "left_factor"), ("trainer", "right_factor")}
    assert kinds == {("local", "parameter"), ("local", "total"), *factors}


def test_the_mean_of_the_residuals_of_two_workers_is_kept(tmp_path):
    files = [str(tmp_path / str(rank)) for rank in range(2)]
    train_and_save(files)
    totals = []
    for rank, file in enumerate(files):
        states = checkpoint.read(file)
        arrays = {key: array.copy() for key, array in states.arrays.items()}
        arrays[TOTAL] += rank
        totals.append(arrays[TOTAL])
        header = {**states.header, "world_size": 2, "rank": rank}
        write(file, states._replace(header=header, arrays=arrays))
    _, trainer = made()
    trainer.load_states(files, strict=False)
    trainer.save_states(str(tmp_path / "one"))
    one = checkpoint.read(str(tmp_path / "one")).arrays
    np.testing.assert_allclose(one[TOTAL], sum(totals) / 2, atol=1e-5)


def test_on_a_gpu_the_products_are_mxnets(monkeypatch):
    expected = train(*made(), range(6))
    monkeypatch.setattr(MXNet, "in_host_memory", lambda self, array: False)
    for array, other in zip(expected, train(*made(), range(6))):
        np.testing.assert_allclose(array, other, atol=1e-5)


def test_a_compressor_is_refused_and_fp16_is_not():
    said = "compression_params['compressor'] must be left out with algorithm powersgd, got 'topk'"
    with pytest.raises(ValueError, match=re.escape(said)):
        made({"compressor": "topk", "k": 3})
    exact, rounded = (train(*made(params), range(4)) for params in (None, {"fp16": True}))
    assert all(np.allclose(*pair, atol=0.05) for pair in zip(exact, rounded))
