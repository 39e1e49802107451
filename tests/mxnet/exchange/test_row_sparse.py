"""Row-sparse gradients of several workers, compared with dense gradients."""

import numpy as np
import pytest

from tests.mxnet.cluster.standing import run, run_horovod, run_machine

ROWS, WIDTH = 3000, 4
WORDS = [  # for each step and each of three workers
    [[1, 2999, 1], [2999, 0], [7]],
    [[5], [], [5, 5, 6]],
    [list(range(0, 3000, 2)), [3], list(range(1000))],
    [[8], [9], [10]],
]


def on_servers(arguments):
    return run("embeddings", arguments, workers=3, servers=2)


def on_horovod(arguments):
    pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
    return run_horovod("embeddings", arguments, workers=3)


def on_one_machine(arguments):
    return run_machine("embeddings", arguments, workers=3)


@pytest.mark.parametrize("backend", [on_servers, on_horovod, on_one_machine])
def test_rows_are_summed_as_dense_gradients_are(backend):
    results = {}
    for sparse in (True, False):
        job = {"sparse": sparse, "rows": ROWS, "width": WIDTH, "words": WORDS}
        results[sparse] = backend({**job, "compression_params": {}})
    (first, *others), (dense, *_) = results[True], results[False]
    for other in others:
        np.testing.assert_array_equal(other["weights"], first["weights"])
    np.testing.assert_allclose(first["weights"], dense["weights"], rtol=1e-6)
    assert (first["weights"][:, [10, 2999]] != 1).all() and (first["weights"][:, 2001] == 1).all()


def test_bytes_are_those_of_the_rows():
    job = {"sparse": True, "rows": ROWS, "width": WIDTH, "words": WORDS[3:] * 3}
    results = run("embeddings", {**job, "compression_params": {}}, workers=3, servers=2)
    for result in results:
        assert result["pushed"] == 2 * (4 * WIDTH + 12 + 4)
