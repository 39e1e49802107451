"""Trainers with gradients on GPUs: averages and states match the CPU's bit for bit."""

import numpy as np
import pytest

from gluon_gc import kernels
from tests.compressors import COMPRESSORS
from tests.mxnet.cluster.standing import run, run_local

SHAPES = [(50, 20), (33,), (1,), (257, 30)]
ON_CUDA = [
    name for name, params in COMPRESSORS.items() if kernels.compressors()[params["compressor"]].cuda
]
each_compressor = pytest.mark.parametrize("name", ON_CUDA)
CPU, GPU = [[["cpu", 0]]], [[["gpu", 0]]]
TWO_CPUS, TWO_GPUS = [[["cpu", 0], ["cpu", 1]]], [[["gpu", 0], ["gpu", 1]]]


def ways(name, contexts):
    """Return arguments of `jobs.averages` with different feedback, momentum and dtypes."""
    arguments = []
    for ef, momentum, dtype in (
        (None, None, "float32"),
        ("vanilla", "nesterov", "float32"),
        ("corrected", None, "float64"),
        ("vanilla", None, "float16"),
    ):
        if dtype == "float16" and contexts in (TWO_CPUS, TWO_GPUS):
            continue  # MXNet's sum of float16 arrays does not run here
        params = {**COMPRESSORS[name], "ef": ef, "momentum": momentum}
        if params["compressor"] == "dithering" and contexts != GPU and contexts != TWO_GPUS:
            params["fixed_width"] = True  # GPUs always use fixed width
        arguments.append(
            {
                "shapes": SHAPES,
                "steps": 4,
                "compression_params": params,
                "contexts": contexts,
                "momentum": 0.9 if momentum else 0.0,
                "dtype": dtype,
            }
        )
    clipped = {**arguments[1], "trainer": {"max_grad_norm": 5.0}}
    plain = {**arguments[0], "compression_params": {"fp16": True}}
    return [*arguments, clipped, plain]


def assert_equal(gpu, cpu):
    """Check that all workers' results are equal, including NaNs."""
    for ours, theirs in zip(gpu, cpu):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert np.array_equal(
                ours[key], theirs[key], equal_nan=ours[key].dtype.kind == "f"
            ), key


@each_compressor
@pytest.mark.parametrize("cpu, gpu", [(CPU, GPU), (TWO_CPUS, TWO_GPUS)], ids=["one", "two"])
def test_local_training(name, cpu, gpu):
    expected = run_local("several_averages", ways(name, cpu))
    assert_equal([run_local("several_averages", ways(name, gpu))], [expected])


@pytest.mark.parametrize("cpu, gpu", [(CPU, GPU), (TWO_CPUS, TWO_GPUS)], ids=["one", "two"])
def test_dgc(cpu, gpu):
    """dgc has its own momentum and clipping."""

    def ways_of(contexts):
        params = {"compressor": "dgc", "k": 0.02, "gradient_clipping": 3.0}
        one = {"shapes": SHAPES, "steps": 4, "compression_params": params, "momentum": 0.9}
        return [{**one, "contexts": contexts, "dtype": dtype} for dtype in ("float32", "float64")]

    expected = run("several_averages", ways_of(cpu))
    assert_equal(run("several_averages", ways_of(gpu)), expected)


@each_compressor
@pytest.mark.parametrize("cpu, gpu", [(CPU, GPU), (TWO_CPUS, TWO_GPUS)], ids=["one", "two"])
def test_the_parameter_server(name, cpu, gpu):
    expected = run("several_averages", ways(name, cpu), servers=2)
    assert_equal(run("several_averages", ways(name, gpu), servers=2), expected)


@each_compressor
def test_workers_with_and_without_a_gpu_train_together(name):
    mixed = [*GPU, *CPU]
    assert_equal(
        run("several_averages", ways(name, mixed)), run("several_averages", ways(name, CPU))
    )
