"""Steps that are left out leave no trace on workers, aggregators and servers."""

import numpy as np
import pytest

from tests.mxnet.cluster.standing import run, run_horovod, run_machine
from tests.mxnet.trainer.test_undo import KINDS, SHAPES, VARIABLES

ONEBIT = {"compressor": "onebit", "scaling": True, "ef": "corrected", "momentum": "nesterov"}
COMPRESSIONS = {
    "uncompressed": None,
    "onebit": ONEBIT,
    "topk": {"compressor": "topk", "k": 0.3, "ef": "vanilla"},
    "gathered": {"compressor": "dgc", "k": 0.2, "seed": 7},
    "stateless": {"compressor": "onebit", "scaling": True},
    "drawn": {"compressor": "blockwise", "stochastic": True, "seed": 7, "ef": "vanilla"},
}


def check(results):
    """Compare training with steps that are left out and without them."""
    for result in results:
        names = [name.partition("/")[2] for name in result if name.startswith("without/")]
        assert {"steps", "w0"} < set(names)
        for name in names:
            array = result[f"with/{name}"]
            np.testing.assert_array_equal(array, result[f"without/{name}"], err_msg=name)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_no_step_that_is_left_out_comes_back_from_servers(compression):
    arguments = {"compression_params": COMPRESSIONS[compression], "shapes": SHAPES, "kinds": KINDS}
    check(run("left_out", {**arguments, "saves": True}, servers=2, variables=VARIABLES))


@pytest.mark.parametrize("compression", ["onebit", "drawn", "stateless"])
def test_no_step_that_is_left_out_comes_back_from_a_machines_workers(compression):
    arguments = {"compression_params": COMPRESSIONS[compression], "shapes": SHAPES, "kinds": KINDS}
    check(run_machine("left_out", arguments, variables=VARIABLES))


@pytest.mark.parametrize("compression", ["uncompressed", "onebit", "drawn"])
def test_no_step_that_is_left_out_comes_back_from_horovods_workers(compression):
    pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
    arguments = {"compression_params": COMPRESSIONS[compression], "shapes": SHAPES, "kinds": KINDS}
    check(run_horovod("left_out", arguments, variables=VARIABLES))


def test_no_step_that_is_left_out_comes_back_from_several_workers_of_a_machine_and_a_server():
    arguments = {"compression_params": ONEBIT, "shapes": SHAPES, "kinds": KINDS}
    check(run("left_out", arguments, variables={**VARIABLES, "BYTEPS_LOCAL_SIZE": 2}))


@pytest.mark.parametrize("start", [run, run_machine])
def test_a_step_that_finds_different_weights_sends_nothing(start):
    topk = {"compressor": "topk", "k": 0.3, "ef": "vanilla"}
    results = start("caught", {"compression_params": topk, "shapes": SHAPES}, variables=VARIABLES)
    assert [result["last"] for result in results] == [16, 16]
    check(results)
