"""Compressed gradients over a real parameter server."""

import numpy as np
import pytest

from tests import replay
from tests.distributed.cluster import run, run_local
from tests.distributed.jobs import gradients_of

SHAPES = [(50, 20), (33,), (1,), (257, 3)]
STEPS = 20
RATES = [0.1] * 5 + [0.05] * 5 + [0.2] * 10


def arguments(ef="vanilla", scaling=True, momentum="nesterov", **more):
    return arguments_of({"compressor": "onebit", "scaling": scaling}, ef, momentum, **more)


def arguments_of(compressor, ef="vanilla", momentum="nesterov", **more):
    """Arguments of `jobs.steps` for a compressor with its own options."""
    params = {**compressor, "ef": ef, "momentum": momentum}
    optimizer = {"learning_rate": 0.1, "momentum": 0.9} if momentum else {"learning_rate": 0.1}
    return {
        "shapes": SHAPES,
        "steps": STEPS,
        "compression_params": params,
        "batch_size": 4,
        "optimizer_params": optimizer,
        "learning_rates": RATES,
        **more,
    }


def check_replay(results, options, workers, chunk_elements=10**9):
    """Compare gradients after every step, and the weights in the end, with the NumPy replay."""
    params = options["compression_params"]
    dtype = np.dtype(options.get("dtype", "float32"))
    work = np.float64 if dtype == np.float64 else np.float32
    mu = 0.9 if params["momentum"] else None
    order = np.argsort([int(result["row"]) for result in results])
    tolerance = {2: 2e-3, 4: 2e-5, 8: 1e-12}[dtype.itemsize]
    weight_tolerance = max(50 * tolerance, 1e-7)  # MXNet keeps the learning rate in float32
    for i, shape in enumerate(options["shapes"]):
        n = int(np.prod(shape))
        weight = np.full(n, i + 1.0)
        parts = replay.chunks(n, chunk_elements)
        paths = [replay.TwoWay(workers, params, mu) for _ in parts]
        previous = RATES[0]
        for step in range(options["steps"]):
            gradients = [
                gradients_of(rank, step, options["shapes"], dtype)[i].ravel().astype(work)
                * work(1 / (options["batch_size"] * workers))
                for rank in order
            ]
            ratio = previous / RATES[step]
            previous = RATES[step]
            expected = np.concatenate(
                [path.step([g[part] for g in gradients], ratio) for path, part in zip(paths, parts)]
            )
            for result in results:
                np.testing.assert_allclose(
                    result[f"g{i}_{step}"].ravel(), expected, rtol=tolerance, atol=tolerance
                )
            weight -= RATES[step] * expected
        np.testing.assert_allclose(
            results[0][f"w{i}"].ravel(), weight, rtol=weight_tolerance, atol=weight_tolerance
        )


def assert_identical(results):
    for result in results[1:]:
        for name in result:
            if name != "row":
                np.testing.assert_array_equal(result[name], results[0][name])


@pytest.mark.parametrize("workers, servers", [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (3, 2)])
def test_workers_and_servers_agree_with_a_numpy_replay(tmp_path, workers, servers):
    options = arguments()
    results = run(tmp_path, "steps", options, workers, servers)
    check_replay(results, options, workers)
    assert_identical(results)


@pytest.mark.parametrize(
    "ef, scaling, momentum",
    [
        (None, True, None),
        ("vanilla", True, None),
        ("corrected", True, "nesterov"),
        ("vanilla", False, "nesterov"),
    ],
)
def test_every_feedback_agrees_with_a_numpy_replay(tmp_path, ef, scaling, momentum):
    options = arguments(ef, scaling, momentum)
    results = run(tmp_path, "steps", options, workers=2, servers=2)
    check_replay(results, options, workers=2)
    assert_identical(results)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_float_dtypes_agree_with_a_numpy_replay(tmp_path, dtype):
    options = arguments(dtype=dtype, steps=5)
    results = run(tmp_path, "steps", options, workers=2, servers=1)
    check_replay(results, options, workers=2)
    assert_identical(results)


def test_a_tensor_cut_into_chunks_over_two_servers_agrees_with_a_numpy_replay(tmp_path):
    options = arguments("corrected")
    results = run(tmp_path, "steps", options, 2, 2, {"BYTEPS_PARTITION_BYTES": 400})
    check_replay(results, options, workers=2, chunk_elements=100)
    assert_identical(results)


@pytest.mark.parametrize("variables", [{}, {"BYTEPS_PARTITION_BYTES": 1000}])
def test_one_worker_with_one_server_gets_bit_for_bit_what_local_gets(tmp_path, variables):
    for name in ("cluster", "local"):
        (tmp_path / name).mkdir()
    options = arguments(
        "corrected", optimizer_params={"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}
    )
    (result,) = run(tmp_path / "cluster", "steps", options, 1, 1, variables)
    local = run_local(tmp_path / "local", "steps", options, variables)
    for name in local:
        np.testing.assert_array_equal(result[name], local[name], err_msg=name)


TOPK = {"compressor": "topk", "k": 0.05}


@pytest.mark.parametrize("ef", [None, "vanilla", "corrected"])
@pytest.mark.parametrize("momentum", [None, "nesterov"])
def test_topk_with_every_feedback_agrees_with_a_numpy_replay(tmp_path, ef, momentum):
    options = arguments_of(TOPK, ef, momentum)
    results = run(tmp_path, "steps", options, workers=2, servers=2)
    check_replay(results, options, workers=2)
    assert_identical(results)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_topk_of_other_float_dtypes_agrees_with_a_numpy_replay(tmp_path, dtype):
    options = arguments_of(TOPK, dtype=dtype, steps=5)
    results = run(tmp_path, "steps", options, workers=2, servers=1)
    check_replay(results, options, workers=2)
    assert_identical(results)


def test_topk_of_chunks_over_two_servers_agrees_with_a_numpy_replay(tmp_path):
    options = arguments_of({"compressor": "topk", "k": 50.0}, "corrected")
    results = run(tmp_path, "steps", options, 2, 2, {"BYTEPS_PARTITION_BYTES": 400})
    check_replay(results, options, workers=2, chunk_elements=100)
    assert_identical(results)


def test_topk_of_one_worker_with_one_server_gets_bit_for_bit_what_local_gets(tmp_path):
    for name in ("cluster", "local"):
        (tmp_path / name).mkdir()
    options = arguments_of(TOPK, "corrected")
    (result,) = run(tmp_path / "cluster", "steps", options, 1, 1)
    local = run_local(tmp_path / "local", "steps", options)
    for name in local:
        np.testing.assert_array_equal(result[name], local[name], err_msg=name)
