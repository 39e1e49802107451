"""state_dicts that an earlier version saved are loaded bit for bit."""

import pytest
import torch
import torch.distributed as dist

from tests.saved.torch_states import CASES, OTHERS, RESHARDED, WORKERS, checksums, loaded, read
from tests.torch.workers import run


def loads_its_own(case):
    expected = read()[case]
    assert_equal(loaded(case, expected[dist.get_rank()]), expected)


def loads_all(case):
    found = read()
    expected = found[f"{case} of {dist.get_world_size()}"]
    assert checksums(loaded(case, found[case])) == expected


@pytest.mark.parametrize("case", CASES)
def test_each_worker_loads_its_own(case):
    run(loads_its_own, WORKERS, case=case)


@pytest.mark.parametrize("workers", OTHERS)
@pytest.mark.parametrize("case", RESHARDED)
def test_other_workers_load_all(case, workers):
    run(loads_all, workers, case=case)


def assert_equal(one, other, path=""):
    """Check that two nested values are equal, bit for bit, with keys in the same order."""
    assert type(one) is type(other), path
    if isinstance(one, dict):
        assert list(one) == list(other), path
        for key, value in one.items():
            assert_equal(value, other[key], f"{path}/{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), path
        for number, pair in enumerate(zip(one, other)):
            assert_equal(*pair, f"{path}/{number}")
    elif isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), path
        assert one.numpy().tobytes() == other.numpy().tobytes(), path
    else:
        assert one == other, path
