"""Tensors on several devices; every PyTorch has "meta" as a second device."""

import pytest
import torch

from gluon_gc.torch.optimizer import distributed
from gluon_gc.torch.transport import staging


def zeros(device):
    return torch.nn.Parameter(torch.zeros(3, device=device))


def test_gradients_on_several_devices_do_not_travel_together():
    a, b, c = zeros("cpu"), zeros("meta"), zeros("meta")
    first, second = distributed._buckets({"a": a, "b": b, "c": c}, set())
    assert [id(one) for one in first] == [id(c), id(b)] and second[0] is a


def test_tensors_on_several_devices_are_refused_with_where_they_are():
    tensors = {"a": torch.zeros(3), "b": torch.zeros(3, device="meta")}
    with pytest.raises(ValueError, match="got 'a' on cpu, 'b' on meta"):
        staging.Staged(tensors)
