"""MXNET_KVSTORE_BIGARRAY_BOUND, above which MXNet would spread arrays over servers."""

import numpy as np

from tests.mxnet.cluster.cluster import start_cluster
from tests.mxnet.cluster.jobs import gradients_of
from tests.mxnet.cluster.standing import run
from tests.mxnet.exchange.test_row_sparse import ROWS, WIDTH, WORDS
from tests.mxnet.exchange.test_two_way import arguments, check_replay, corrected

SMALL = {"MXNET_KVSTORE_BIGARRAY_BOUND": 1000, "BYTEPS_PARTITION_BYTES": 2**23}
LARGE = {"shapes": [(700, 1000), (33,)], "steps": 3}


def test_no_array_is_spread_whatever_the_user_sets():
    options = arguments(**LARGE)
    check_replay(run("steps", options, 2, 2, SMALL), options)
    plain = arguments(**LARGE, ef=None, momentum=None)
    plain["compression_params"] = {}
    for result in run("steps", plain, 2, 2, SMALL):
        average = sum(gradients_of(rank, 2, LARGE["shapes"])[0] for rank in range(2)) / 8
        np.testing.assert_allclose(result["g0_2"], average, rtol=1e-5, atol=1e-6)


def test_uncompressed_rows_and_pages_of_checkpoints_are_on_one_server(tmp_path):
    rows = {"sparse": True, "rows": ROWS, "width": WIDTH, "words": WORDS, "compression_params": {}}
    ours, usual = (run("embeddings", rows, 3, 2, variables) for variables in (SMALL, None))
    np.testing.assert_array_equal(ours[0]["weights"], usual[0]["weights"])
    job = {
        "folder": str(tmp_path),
        "name": "pages",
        "shapes": LARGE["shapes"],
        "compression_params": corrected()[0]["compression_params"],
        "partition_bytes": 2**23,
        "middle": 1,
        "end": 2,
    }
    expected = run("checkpoint", {**job, "begin": 0}, 2, 2, SMALL)
    resumed = run("checkpoint", {**job, "begin": 1}, 2, 2, SMALL)
    np.testing.assert_array_equal(resumed[0]["w0"], expected[0]["w0"])


def test_the_first_worker_says_that_it_is_raised(tmp_path):
    with start_cluster(tmp_path, "push_pull", servers=2, variables=SMALL) as cluster:
        cluster.results()
        line = "MXNET_KVSTORE_BIGARRAY_BOUND is raised from 1000 to 2147483647"
        assert cluster.log("worker0").count(line) == 1
        assert line not in cluster.log("worker1")
