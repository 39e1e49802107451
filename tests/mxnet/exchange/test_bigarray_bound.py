"""MXNET_KVSTORE_BIGARRAY_BOUND, above which MXNet would divide arrays among servers."""

import numpy as np

from tests.mxnet.cluster.cluster import start_cluster
from tests.mxnet.cluster.jobs import gradients_of, ranks
from tests.mxnet.cluster.standing import run
from tests.mxnet.exchange.test_row_sparse import embeddings
from tests.mxnet.exchange.test_two_way import arguments, check_replay, steps
from tests.mxnet.states.test_checkpoint import checkpointed

SMALL = {"MXNET_KVSTORE_BIGARRAY_BOUND": 1000, "BYTEPS_PARTITION_BYTES": 2**23}
LARGE = {"shapes": [(700, 1000), (33,)], "steps": 3}


def test_compressed_arrays_are_whole_whatever_the_user_sets():
    options = arguments(**LARGE)
    check_replay(run(steps, options, 2, 2, SMALL), options)


def test_uncompressed_arrays_are_whole():
    plain = {**arguments(**LARGE, momentum=None), "compression_params": {}}
    for result in run(steps, plain, 2, 2, SMALL):
        average = sum(gradients_of(rank, 2, LARGE["shapes"])[0] for rank in range(2)) / 8
        np.testing.assert_allclose(result["g0_2"], average, rtol=1e-5, atol=1e-6)


def test_uncompressed_rows_are_on_one_server():
    ours, usual = (run(embeddings, {"sparse": True}, 3, 2, v) for v in (SMALL, None))
    np.testing.assert_array_equal(ours[0][0], usual[0][0])


def test_pages_of_checkpoints_are_on_one_server(tmp_path):
    job = {
        "file": str(tmp_path / "pages"),
        "shapes": LARGE["shapes"],
        "compression_params": arguments(ef="corrected")["compression_params"],
        "partition_bytes": 2**23,
        "middle": 1,
        "end": 2,
    }
    expected = run(checkpointed, {**job, "begin": 0}, 2, 2, SMALL)
    resumed = run(checkpointed, {**job, "begin": 1}, 2, 2, SMALL)
    np.testing.assert_array_equal(resumed[0]["w0"], expected[0]["w0"])


def test_the_first_worker_says_that_it_is_raised(tmp_path):
    with start_cluster(tmp_path, ranks, servers=2, variables=SMALL) as cluster:
        cluster.results()
        line = "MXNET_KVSTORE_BIGARRAY_BOUND is raised from 1000 to 2147483647"
        assert cluster.log("worker0").count(line) == 1
        assert line not in cluster.log("worker1")
