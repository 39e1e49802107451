"""The options that BytePS's scripts pass for every compressor, in a trainer."""

import re
import warnings

import mxnet as mx
import numpy as np
import pytest

import gluon_gc as bps
from gluon_gc.algorithms.local_steps import LocalSteps
from gluon_gc.algorithms.requirements import require_fitting_compression
from tests.mxnet.cluster.jobs import backward, gradients

SHAPES = [(40, 5), (7,)]
OPTIMIZER = {"learning_rate": 0.125, "momentum": 0.875}
# BytePS's ImageNet script: the defaults of its command line, and a seed.
SCRIPT = {
    "compressor": "",
    "ef": "",
    "momentum": "",
    "scaling": False,
    "k": 1.0,
    "partition": "linear",
    "normalize": "max",
    "seed": 2020,
    "fp16": False,
}
FEEDBACK = {"ef": "vanilla", "momentum": "nesterov"}
COMMANDS = {
    "baseline": ({}, ["seed"]),
    "fp16": ({"fp16": True}, ["seed"]),
    "baseline with options": (
        {**FEEDBACK, "scaling": True, "k": 0.5, "normalize": "l2"},
        ["ef", "momentum", "scaling", "k", "normalize", "seed"],
    ),
    "onebit": ({"compressor": "onebit", "scaling": True, **FEEDBACK}, ["seed"]),
    "topk": ({"compressor": "topk", "k": 0.25, "scaling": True}, ["scaling", "seed"]),
    "randomk": ({"compressor": "randomk", "k": 0.25, "normalize": "l2"}, ["normalize"]),
    "dithering": ({"compressor": "dithering", "k": 2.0, "partition": "natural"}, []),
    "bytegrad": ({"compressor": "bytegrad", "partition": "natural"}, ["partition", "seed"]),
    "dgc": ({"compressor": "dgc", "k": 0.25, **FEEDBACK}, ["ef"]),
}


def step(compression, overrides=None):
    """Return the weights after a step, and the trainer's warnings."""
    params = []
    for i, shape in enumerate(SHAPES):
        param = mx.gluon.Parameter(f"p{i}", shape=shape)
        param.initialize(mx.init.Constant(1.0))
        params.append(param)
    for i, override in (overrides or {}).items():
        params[i].compression_params = override
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        trainer = bps.DistributedTrainer(
            params, "sgd", OPTIMIZER, compression_params=compression, kvstore="local"
        )
        backward(params, gradients(0, SHAPES))
        trainer.step(2)
        weights = [param.data().asnumpy() for param in params]
    return weights, [warning for warning in warned if warning.category is UserWarning]


def keys_of(warning):
    """Return the keys that a warning names; the warning must point at this file."""
    assert warning.filename == __file__
    return re.findall(r"'(\w+)' (?:is not for|needs)", str(warning.message))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_script_trains_with_at_most_one_warning(command):
    given, expected = COMMANDS[command]
    compression = {**SCRIPT, **given}
    weights, warned = step(compression)
    assert [keys_of(warning) for warning in warned] == ([expected] if expected else [])
    for warning in warned:
        why = f"is not for {given['compressor']}" if "compressor" in given else "needs a compressor"
        assert str(warning.message).count(f"{why}, got") == len(expected)
    needed = {key: value for key, value in compression.items() if key not in expected}
    alone, none = step(needed)
    assert none == []
    for a, b in zip(weights, alone):
        np.testing.assert_array_equal(a, b)


def test_the_keys_of_parameters_are_in_the_same_warning():
    onebit = {**SCRIPT, "compressor": "onebit"}
    _, (warning,) = step(onebit, {0: onebit, 1: {"compressor": "bytegrad", "k": 9}})
    assert keys_of(warning) == ["seed", "k"]


def test_declared_tensors_and_stores_warn_too():
    with pytest.warns(UserWarning, match="'seed' is not for onebit, got 3") as warned:
        bps.byteps_declare_tensor("t", compressor="onebit", seed=3)
    assert warned[0].filename == __file__
    with pytest.warns(UserWarning, match="'seed' is not for onebit, got 3") as warned:
        mx.kv.create("GluonGCLocal").set_gradient_compression({"compressor": "onebit", "seed": 3})
    assert warned[0].filename == __file__
    bps.shutdown()  # to forget the tensor


def test_signs_without_their_scale_are_warned_of(logged):
    require_fitting_compression(LocalSteps(), {"compressor": "onebit", "scaling": True}, None)
    assert not logged.text
    require_fitting_compression(LocalSteps(), {"compressor": "onebit"})
    said = "algorithm local_steps arrives as 1 or -1: set 'scaling' to True"
    assert said in logged.text
