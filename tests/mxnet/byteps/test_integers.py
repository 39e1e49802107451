"""Integers in byteps_push_pull on real backends: results are exact, or an error is raised."""

import pytest

from tests.mxnet.cluster.standing import run, run_horovod, run_machine

VALUES = {"int8": 100, "uint8": 200, "int32": 2**30, "int64": 2**62 + 1}


@pytest.mark.parametrize("start", [run, run_horovod, run_machine])
def test_averages_are_exact_and_a_sum_that_does_not_fit_is_an_error_on_all_workers(start):
    if start is run_horovod:
        pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
    for result in start("integer_sums", VALUES, workers=2):
        for dtype, value in VALUES.items():
            average = result[f"{dtype} average"]
            assert average.dtype == dtype
            assert average.tolist() == [value, 0]  # value + 0.5 and -0.5, rounded towards 0
            rule = f"the sum of tensor '{dtype} sum' over all workers must be in"
            assert str(result[f"{dtype} sum"]).startswith(rule)
    for result in start("integer_sums", {"int64": 2**61, "uint8": 3}, workers=2):
        assert result["int64 sum"].tolist() == [2**62 + 1, -1]
        assert result["uint8 sum"].tolist() == [7, 0]
