"""DDP's Join: workers with fewer batches than others."""

import contextlib

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join

from tests.torch.common import (
    DGC,
    ONEBIT,
    SIGNS,
    TOPK,
    flat,
    loss_of,
    same,
    wrapped,
)
from tests.torch.workers import on_workers

FEW, MANY = 2, 6  # batches in an epoch, of worker 0 and of the others


class Uneven:
    """Training in epochs, in which worker 0 has fewer batches than others.

    It joins. In the control, it takes part with gradients of zero instead.
    """

    def __init__(self, joins, params, **more):
        self.joins = joins
        self.net, self.optimizer, self.ddp, self.state = wrapped(params, **more)
        for group in self.optimizer.param_groups:
            group["weight_decay"] = 0.0
            if "momentum" not in params and params is not DGC:
                group["momentum"] = 0.0

    def train(self, epochs, few=FEW, overflow=None):
        for epoch in epochs:
            batches = few if self.joins and dist.get_rank() == 0 else MANY
            with Join([self.ddp]) if self.joins else contextlib.nullcontext():
                for batch in range(batches):
                    has_gradient = dist.get_rank() > 0 or batch < few
                    self._step(MANY * epoch + batch, has_gradient, batch == overflow)
        return self

    def _step(self, number, has_gradient, overflows):
        loss = loss_of(self.ddp, number) * (1 if has_gradient else 0)
        if overflows and dist.get_rank() > 0:
            loss = loss * float("inf")
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def coders(uneven):
    """Return the coders' arrays, without the momentum that optimizers apply in their steps."""
    return {
        name: {key: array for key, array in arrays.items() if not key.startswith("trainer")}
        for name, arrays in uneven.state.state_dict()["arrays"].items()
    }


def assert_equal(one, other, *about):
    assert torch.equal(flat(one.net), flat(other.net)), about
    assert same(coders(one), coders(other)), about
    assert one.state.steps == other.state.steps, about


@on_workers(2, 3)
def test_a_worker_that_has_joined_exchanges_gradients_of_zero():
    cases = (TOPK, 0), (TOPK, FEW), (SIGNS, FEW), ({}, FEW), (ONEBIT, 0), (DGC, FEW)
    for params, few in cases:
        joined, control = Uneven(True, params), Uneven(False, params)
        for epoch in range(1 if params in (ONEBIT, DGC) else 2):  # the optimizer has momentum
            joined.train([epoch], few)
            control.train([epoch], few)
            assert_equal(joined, control, params, few, epoch)
        joined.state.close()
        control.state.close()


@on_workers(2)
def test_a_step_that_others_skip_is_taken_back_by_a_worker_that_has_joined():
    joined, control = (Uneven(joins, TOPK, on_nonfinite="skip") for joins in (True, False))
    for overflow in (FEW + 1, MANY - 1):
        joined.train(range(2), overflow=overflow)
        control.train(range(2), overflow=overflow)
        assert_equal(joined, control, overflow)
    joined.state.close()
    control.state.close()


@on_workers(2)
def test_a_step_that_others_make_in_spite_of_an_infinity_is_no_error():
    joined = Uneven(True, TOPK, on_nonfinite="propagate").train(range(2), overflow=FEW + 1)
    assert joined.state.steps == 2 * MANY
    joined.state.close()
