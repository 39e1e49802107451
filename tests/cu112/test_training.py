"""Trainers with gradients on GPUs: averages and states match the CPU's bit for bit."""

import mxnet as mx
import numpy as np
import pytest

import gluon_gc as bps
from gluon_gc import kernels
from gluon_gc.mxnet.byteps.runtime import default_exchange
from gluon_gc.mxnet.state import tensor_states
from tests.compressors import COMPRESSORS
from tests.mxnet.cluster.jobs import gradients_of
from tests.mxnet.cluster.standing import run, run_local

SHAPES = [(50, 20), (33,), (1,), (257, 30)]
ON_CUDA = [
    name for name, params in COMPRESSORS.items() if kernels.compressors()[params["compressor"]].cuda
]
each_compressor = pytest.mark.parametrize("name", ON_CUDA)
CPU, GPU = [[["cpu", 0]]], [[["gpu", 0]]]
TWO_CPUS, TWO_GPUS = [[["cpu", 0], ["cpu", 1]]], [[["gpu", 0], ["gpu", 1]]]


def averages(
    compression_params, contexts, dtype="float32", momentum=0.0, trainer=None, shapes=SHAPES
):
    """Average known gradients on some contexts; returns the averages and the saved state.

    Each entry of contexts lists one rank's contexts as device type and number; the last entry holds
    for all further ranks. Each context has its own gradients.
    """
    contexts = [mx.Context(*context) for context in contexts[min(bps.rank(), len(contexts) - 1)]]
    params = []
    for i, shape in enumerate(shapes):
        params.append(mx.gluon.Parameter(f"p{i}", shape=shape, dtype=dtype))
        params[-1].initialize(init=mx.init.One(), ctx=contexts)
    optimizer = {"learning_rate": 0.1, "momentum": momentum}
    more = trainer or {}
    trainer = bps.DistributedTrainer(
        params, "nag", optimizer, compression_params=compression_params, **more
    )
    result = {}
    for step in range(4):
        for c, context in enumerate(contexts):
            values = gradients_of(10 * bps.rank() + c, step, shapes, dtype)
            for param, gradient in zip(params, values):
                mx.nd.array(gradient, dtype=dtype).copyto(param.grad(context))
        trainer.allreduce_grads()
        trainer.applied()
        for i, param in enumerate(params):
            for c, context in enumerate(contexts):
                result[f"g{i}_{step}_{c}"] = param.grad(context).asnumpy()
    for key, array in tensor_states.state(default_exchange(), trainer._averaging.names()):
        result["/".join(map(str, key))] = array
    result["stats"] = np.array(list(trainer.compression_stats()["total"].values())[:3])
    return result


WAYS = [
    {"compression_params": {"ef": ef, "momentum": momentum}, "dtype": dtype}
    for ef, momentum, dtype in (
        (None, None, "float32"),
        ("vanilla", "nesterov", "float32"),
        ("corrected", None, "float64"),
        ("vanilla", None, "float16"),
    )
]
WAYS += [{**WAYS[1], "trainer": {"max_grad_norm": 5.0}}, {"compression_params": {"fp16": True}}]


def job(name, way, contexts):
    """Return arguments of `averages` for a compressor, with one of WAYS."""
    params = {**COMPRESSORS[name], **way["compression_params"]}
    if "fp16" in params:
        params = way["compression_params"]
    elif params["compressor"] == "dithering" and contexts not in (GPU, TWO_GPUS):
        params["fixed_width"] = True  # GPUs always use fixed width
    momentum = 0.9 if params.get("momentum") else 0.0
    return {**way, "compression_params": params, "contexts": contexts, "momentum": momentum}


each_way = pytest.mark.parametrize("way", WAYS)
each_number = pytest.mark.parametrize(
    "cpu, gpu", [(CPU, GPU), (TWO_CPUS, TWO_GPUS)], ids=["one", "two"]
)


def skip_float16_on_two(way, contexts):
    if way.get("dtype") == "float16" and contexts == TWO_GPUS:
        pytest.skip("MXNet's sum of float16 arrays does not run here")


def assert_equal(gpu, cpu):
    """Check that all workers' results are equal, including NaNs."""
    for ours, theirs in zip(gpu, cpu):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert np.array_equal(
                ours[key], theirs[key], equal_nan=ours[key].dtype.kind == "f"
            ), key


@each_way
@each_compressor
@each_number
def test_local_training(name, cpu, gpu, way):
    skip_float16_on_two(way, gpu)
    expected = run_local(averages, job(name, way, cpu))
    assert_equal([run_local(averages, job(name, way, gpu))], [expected])


@each_number
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dgc(cpu, gpu, dtype):
    """dgc has its own momentum and clipping."""
    params = {"compressor": "dgc", "k": 0.02, "gradient_clipping": 3.0}
    options = {"compression_params": params, "momentum": 0.9, "dtype": dtype}
    expected = run(averages, {**options, "contexts": cpu})
    assert_equal(run(averages, {**options, "contexts": gpu}), expected)


@each_way
@each_compressor
@each_number
def test_the_parameter_server(name, cpu, gpu, way):
    skip_float16_on_two(way, gpu)
    expected = run(averages, job(name, way, cpu), servers=2)
    assert_equal(run(averages, job(name, way, gpu), servers=2), expected)


@each_way
@each_compressor
def test_workers_with_and_without_a_gpu_train_together(name, way):
    mixed = [*GPU, *CPU]
    assert_equal(run(averages, job(name, way, mixed)), run(averages, job(name, way, CPU)))
