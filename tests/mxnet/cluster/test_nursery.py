"""The nursery starts the processes of clusters, also after a test has called `bps.init`."""

import sys

import gluon_gc as bps
from tests.mxnet.cluster.cluster import WORKER, nursery, of_no_cluster


def test_init_does_not_make_later_processes_import_mxnet_again():
    command = [sys.executable, str(WORKER), "job"]
    assert nursery().serves(command, of_no_cluster())
    bps.init()
    assert nursery().serves(command, of_no_cluster())
    assert not nursery().serves(command, {**of_no_cluster(), "MXNET_CPU_TEMP_COPY": "3"})
