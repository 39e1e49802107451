"""Compressed gradients over a real parameter server."""

import itertools
from pathlib import Path

import numpy as np
import pytest

import gluon_gc as bps
from gluon_gc.compression import parse
from tests import replay
from tests.compressors import COMPRESSORS, ONE_OF_EACH
from tests.mxnet.cluster.jobs import (
    backward,
    gradients_of,
    parameters,
    wait_for,
    weights_of,
)
from tests.mxnet.cluster.standing import run, run_local

SHAPES = [(50, 20), (33,), (1,), (257, 3)]
STEPS = 12
RATES = [0.1] * 4 + [0.05] * 4 + [0.2] * 4
CHUNK = 300  # elements, as BYTEPS_PARTITION_BYTES says in PARTITION
PARTITION = {"BYTEPS_PARTITION_BYTES": 4 * CHUNK}


def steps(
    shapes,
    steps,
    compression_params,
    optimizer_params,
    dtype="float32",
    batch_size=1,
    learning_rates=None,
    epochs=None,
    overrides=None,
    trainer=None,
    folder=None,
):
    """Train on known gradients; returns the gradients after each step and the final weights.

    learning_rates and epochs have one value per step; overrides are compression_params by the
    parameter's number. With a folder, worker 1 begins a step only after worker 0's call of step()
    has returned, except the first, because all workers must agree on the tensors there.
    """
    params = parameters(shapes, dtype)
    for i, override in (overrides or {}).items():
        params[i].compression_params = override
    given, more = dict(optimizer_params), trainer or {}
    trainer = bps.DistributedTrainer(
        params, "sgd", given, compression_params=compression_params, **more
    )
    assert given == optimizer_params
    result = {"row": bps.rank()}
    for step in range(steps):
        if learning_rates:
            trainer.set_learning_rate(learning_rates[step])
        if epochs:
            trainer.set_epoch(epochs[step])
        backward(params, gradients_of(bps.rank(), step, shapes, dtype))
        returned = Path(folder, f"returned{step}") if folder else None
        if returned and step > 0 and bps.rank() == 1:
            wait_for(returned)
        trainer.step(batch_size)
        if returned and bps.rank() == 0:
            returned.touch()
        for i, param in enumerate(params):
            result[f"g{i}_{step}"] = param.grad().asnumpy()
    return {**result, **weights_of(params)}


def arguments(name="onebit", ef="vanilla", momentum="nesterov", exchange=None, **more):
    """Return the arguments of `steps` for one of COMPRESSORS."""
    decay = 0.95 if ef == "corrected" else None
    params = {**COMPRESSORS[name], "ef": ef, "ef_decay": decay, "momentum": momentum}
    if exchange:
        params["exchange"] = exchange
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


def ways_of(names, **more):
    """Return arguments by name: each feedback, with and without momentum, and other dtypes.

    The other examples of a compressor have feedback and momentum only.
    """
    ways = {}
    for name in names:
        if name not in ONE_OF_EACH:
            ways[name] = arguments(name, "corrected", **more)
            continue
        feedbacks = [None, "vanilla", "corrected"]
        if COMPRESSORS[name]["compressor"] == "randomk":
            feedbacks.append("sparse")
        for ef, momentum in itertools.product(feedbacks, [None, "nesterov"]):
            ways[f"{name}-{ef}-{momentum}"] = arguments(name, ef, momentum, **more)
        for dtype in ("float16", "float64"):
            ways[f"{name}-{dtype}"] = arguments(name, dtype=dtype, **{"steps": 5, **more})
    return ways


def corrected(names=ONE_OF_EACH, **more):
    """Parametrize by compressor, with feedback and momentum."""
    ways = [arguments(name, "corrected", **more) for name in names]
    return pytest.mark.parametrize("options", ways, ids=names)


def check_replay(results, options, chunk_elements=10**9, local_size=1):
    """Compare the gradients after each step, and the final weights, with the NumPy replay.

    All workers must have the same bits. `local_size` workers of a machine share their messages.
    """
    assert_identical(results)
    params = options["compression_params"]
    params = parse(params, 0.9 if params["momentum"] else None)
    dtype = np.dtype(options.get("dtype", "float32"))
    work = np.float64 if dtype == np.float64 else np.float32
    workers = len(results)
    senders = workers // local_size
    # The order in which the server sums.
    order = range(senders) if local_size > 1 else np.argsort([result["row"] for result in results])
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
            decoded = [
                path.step([g[part] for g in gradients], ratio, order)
                for path, part in zip(paths, parts)
            ]
            expected = np.concatenate(decoded)
            np.testing.assert_allclose(
                results[0][f"g{i}_{step}"].ravel(), expected, rtol=tolerance, atol=tolerance
            )
            weight -= RATES[step] * expected
        np.testing.assert_allclose(
            results[0][f"w{i}"].ravel(), weight, rtol=weight_tolerance, atol=weight_tolerance
        )


def assert_equal(result, expected):
    """Compare two results bit for bit, except the ranks of their workers."""
    assert result.keys() == expected.keys()
    for name in expected.keys() - {"row"}:
        np.testing.assert_array_equal(result[name], expected[name], err_msg=name)


def assert_identical(results):
    for result in results[1:]:
        assert_equal(result, results[0])


@pytest.mark.parametrize("workers, servers", [(3, 1), (1, 2)])
def test_workers_and_servers_agree_with_a_numpy_replay(workers, servers):
    check_replay(run(steps, arguments(), workers, servers), arguments())


WAYS = ways_of(COMPRESSORS)


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_every_feedback_momentum_and_dtype_agrees_with_a_numpy_replay(options):
    check_replay(run(steps, options, workers=2, servers=2), options)


@corrected()
def test_tensors_cut_into_chunks_over_two_servers_agree_with_a_numpy_replay(options):
    check_replay(run(steps, options, 2, 2, PARTITION), options, CHUNK)


@corrected(optimizer_params={"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01})
@pytest.mark.parametrize("variables", [{}, PARTITION], ids=["whole", "chunks"])
def test_one_worker_with_one_server_gets_bit_for_bit_what_local_gets(options, variables):
    (result,) = run(steps, options, 1, 1, variables)
    assert_equal(result, run_local(steps, options, variables))
