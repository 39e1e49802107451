"""Compressed gradients over a real parameter server."""

import itertools

import numpy as np
import pytest

from gluon_gc.compression import parse
from tests import replay
from tests.compressors import COMPRESSORS, ONE_OF_EACH
from tests.mxnet.cluster.jobs import gradients_of
from tests.mxnet.cluster.standing import run, run_local

SHAPES = [(50, 20), (33,), (1,), (257, 3)]
STEPS = 12
RATES = [0.1] * 4 + [0.05] * 4 + [0.2] * 4


def arguments(name="onebit", ef="vanilla", momentum="nesterov", **more):
    """Return the arguments of `jobs.steps` for one of COMPRESSORS."""
    decay = 0.95 if ef == "corrected" else None
    params = {**COMPRESSORS[name], "ef": ef, "ef_decay": decay, "momentum": momentum}
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


def every_way(name):
    """Return arguments for each feedback, with and without momentum, and for the other dtypes."""
    feedbacks = [None, "vanilla", "corrected"]
    if COMPRESSORS[name]["compressor"] == "randomk":
        feedbacks.append("sparse")
    ways = [arguments(name, *way) for way in itertools.product(feedbacks, [None, "nesterov"])]
    return ways + [arguments(name, dtype=dtype, steps=5) for dtype in ("float16", "float64")]


def check_replay(results, options, chunk_elements=10**9, local_size=1):
    """Compare the gradients after each step, and the final weights, with the NumPy replay.

    `local_size` workers of a machine share their messages.
    """
    params = options["compression_params"]
    params = parse(params, 0.9 if params["momentum"] else None)
    dtype = np.dtype(options.get("dtype", "float32"))
    work = np.float64 if dtype == np.float64 else np.float32
    workers = len(results)
    senders = workers // local_size
    # The order in which the server sums.
    order = np.argsort([int(result["row"]) for result in results])
    if local_size > 1:
        order = range(senders)
    tolerance = {2: 2e-3, 4: 2e-5, 8: 1e-12}[dtype.itemsize]
    weight_tolerance = max(50 * tolerance, 1e-7)  # MXNet keeps the learning rate in float32
    for i, shape in enumerate(options["shapes"]):
        n = int(np.prod(shape))
        weight = np.full(n, i + 1.0)
        parts = replay.chunks(n, chunk_elements)
        sizes = [part.stop - part.start for part in parts]
        paths = [replay.Exchange(senders, params, size, i, work) for size in sizes]
        previous = RATES[0]
        for step in range(options["steps"]):
            gradients = [
                gradients_of(rank, step, options["shapes"], dtype)[i].ravel().astype(work)
                * work(1 / (options["batch_size"] * workers))
                for rank in range(workers)
            ]
            gradients = [
                sum(gradients[first + 1 : first + local_size], gradients[first])
                for first in range(0, workers, local_size)
            ]
            ratio = previous / RATES[step]
            previous = RATES[step]
            expected = np.concatenate(
                [
                    path.step([g[part] for g in gradients], ratio, order)
                    for path, part in zip(paths, parts)
                ]
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
            if not name.endswith("row"):
                np.testing.assert_array_equal(result[name], results[0][name])


def of_way(result, way):
    """Return the results of `jobs.several_steps` for its arguments number `way`."""
    prefix = f"{way}/"
    return {name[len(prefix) :]: v for name, v in result.items() if name.startswith(prefix)}


@pytest.mark.parametrize("workers, servers", [(1, 1), (2, 1), (3, 1), (1, 2), (3, 2), (2, 2)])
def test_workers_and_servers_agree_with_a_numpy_replay(workers, servers):
    options = arguments()
    results = run("steps", options, workers, servers)
    check_replay(results, options)
    assert_identical(results)


@pytest.mark.parametrize("name", COMPRESSORS)
def test_every_feedback_momentum_and_dtype_agrees_with_a_numpy_replay(name):
    ways = every_way(name)
    results = run("several_steps", ways, workers=2, servers=2)
    assert_identical(results)
    for way, options in enumerate(ways):
        check_replay([of_way(result, way) for result in results], options)


def corrected(**more):
    """Return the arguments of `jobs.several_steps` for each compressor."""
    return [arguments(name, "corrected", **more) for name in ONE_OF_EACH]


def test_tensors_cut_into_chunks_over_two_servers_agree_with_a_numpy_replay():
    ways = corrected()
    results = run("several_steps", ways, 2, 2, {"BYTEPS_PARTITION_BYTES": 400})
    assert_identical(results)
    for way, options in enumerate(ways):
        check_replay([of_way(result, way) for result in results], options, chunk_elements=100)


@pytest.mark.parametrize("variables", [{}, {"BYTEPS_PARTITION_BYTES": 1000}])
def test_one_worker_with_one_server_gets_bit_for_bit_what_local_gets(variables):
    ways = corrected(optimizer_params={"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01})
    (result,) = run("several_steps", ways, 1, 1, variables)
    local = run_local("several_steps", ways, variables)
    for key in local:
        np.testing.assert_array_equal(result[key], local[key], err_msg=key)
