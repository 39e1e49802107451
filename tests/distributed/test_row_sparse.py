"""Row-sparse gradients of several workers, beside a dense exchange."""

import numpy as np
import pytest

from tests.distributed.cluster import run, run_horovod

ROWS, WIDTH = 3000, 4
WORDS = [  # for each step, of each of three workers
    [[1, 2999, 1], [2999, 0], [7]],
    [[5], [], [5, 5, 6]],
    [list(range(0, 3000, 2)), [3], list(range(1000))],
    [[8], [9], [10]],
]


def on_servers(folder, arguments):
    return run(folder, "embeddings", arguments, workers=3, servers=2)


def on_horovod(folder, arguments):
    pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
    return run_horovod(folder, "embeddings", arguments, workers=3)


@pytest.mark.parametrize("backend", [on_servers, on_horovod])
def test_rows_are_summed_as_dense_gradients_are(tmp_path, backend):
    results = {}
    for sparse in (True, False):
        folder = tmp_path / str(sparse)
        folder.mkdir()
        job = {"sparse": sparse, "rows": ROWS, "width": WIDTH, "words": WORDS}
        results[sparse] = backend(folder, {**job, "compression_params": {}})
    (first, *others), (dense, *_) = results[True], results[False]
    for other in others:
        np.testing.assert_array_equal(other["weights"], first["weights"])
    np.testing.assert_allclose(first["weights"], dense["weights"], rtol=1e-6)
    assert (first["weights"][:, [10, 2999]] != 1).all() and (first["weights"][:, 2001] == 1).all()


def test_bytes_are_those_of_the_rows(tmp_path):
    job = {"sparse": True, "rows": ROWS, "width": WIDTH, "words": WORDS[3:] * 3}
    results = run(tmp_path, "embeddings", {**job, "compression_params": {}}, workers=3)
    for result in results:
        assert result["pushed"] == 2 * (4 * WIDTH + 12 + 4)
