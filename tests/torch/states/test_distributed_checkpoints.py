"""torch.distributed.checkpoint saves and loads states as the guide says, or an error names them."""

import io
import tempfile

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import gluon_gc.torch as bps
from tests.torch.common import (
    DITHERING,
    ONEBIT,
    SIGNS,
    Net,
    flat,
    loss_of,
    raised,
    sgd,
    wrapped,
)
from tests.torch.workers import on_workers

LOCAL_STEPS = {"name": "local_steps", "every": 2}
POWERSGD = {"name": "powersgd", "rank": 1}


def made(params, algorithm):
    """Return a new network, its optimizer, the model that computes its loss, and its state."""
    if algorithm is None:
        return wrapped(params, overrides={"last.bias": None})
    net = Net()
    optimizer = bps.DistributedOptimizer(
        sgd(net), net.named_parameters(), compression_params=params, algorithm=algorithm
    )
    return net, optimizer, net, optimizer.compression_state


def train(net, optimizer, model, steps):
    for step in steps:
        optimizer.param_groups[0]["lr"] = 0.1 * 0.8**step
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    return flat(net)


def as_bytes(state):
    box = io.BytesIO()
    torch.save(state.state_dict(), box)
    return box.getvalue()


def as_entries(state):
    return state.state_dict()


def saved(params, algorithm, packed):
    """Save a checkpoint after some steps. Return its folder, and the weights some steps later."""
    folder = bps.broadcast_object(tempfile.mkdtemp())
    net, optimizer, model, state = made(params, algorithm)
    train(net, optimizer, model, range(5))
    whole = {"net": net.state_dict(), "compression": {str(bps.rank()): packed(state)}}
    dcp.save(whole, checkpoint_id=folder)
    expected = train(net, optimizer, model, range(5, 8))
    state.close()
    return folder, expected


@pytest.mark.parametrize(
    "params, algorithm",
    [
        (ONEBIT, None),
        ({**DITHERING, "momentum": "nesterov"}, None),
        (SIGNS, LOCAL_STEPS),
        (None, POWERSGD),
    ],
)
@on_workers(2)
def test_a_state_that_is_saved_as_bytes_goes_on_bit_for_bit(params, algorithm):
    folder, expected = saved(params, algorithm, as_bytes)
    net, optimizer, model, state = made(params, algorithm)
    given = {"net": net.state_dict(), "compression": {str(bps.rank()): b""}}
    dcp.load(given, checkpoint_id=folder)
    net.load_state_dict(given["net"])
    box = io.BytesIO(given["compression"][str(bps.rank())])
    state.load_state_dict(torch.load(box, weights_only=True))
    assert torch.equal(train(net, optimizer, model, range(5, 8)), expected)
    state.close()


@pytest.mark.parametrize("params, algorithm", [(ONEBIT, None), (SIGNS, LOCAL_STEPS)])
@on_workers(2)
def test_entries_that_a_new_state_lacks_are_missed_by_name(params, algorithm):
    folder, _ = saved(params, algorithm, as_entries)
    net, _, _, state = made(params, algorithm)
    key = str(bps.rank())
    given = {"compression": {key: state.state_dict()}}
    dcp.load(given, checkpoint_id=folder)
    before = flat(net)
    said = "of the entries that were saved, such as "
    raised(ValueError, said, lambda: state.load_state_dict(given["compression"][key]))
    assert torch.equal(flat(net), before)
    state.close()


@on_workers(2)
def test_entries_that_are_saved_can_be_converted():
    folder, expected = saved(ONEBIT, None, as_entries)
    net, optimizer, model, state = made(ONEBIT, None)
    file = f"{folder}/{bps.rank()}.pt"
    dcp_to_torch_save(folder, file)
    whole = torch.load(file, weights_only=True)
    net.load_state_dict(whole["net"])
    state.load_state_dict(whole["compression"][str(bps.rank())])
    assert torch.equal(train(net, optimizer, model, range(5, 8)), expected)
    state.close()


@on_workers(2)
def test_a_checkpoint_in_place_keeps_weights_and_anchors_apart():
    """Right after a round they are equal here, but not in the checkpoint."""
    folder, expected = saved(SIGNS, LOCAL_STEPS, as_entries)
    net, optimizer, model, state = made(SIGNS, LOCAL_STEPS)
    train(net, optimizer, model, range(2))
    key = str(bps.rank())
    given = {"compression": {key: state.state_dict()}}
    dcp.load(given, checkpoint_id=folder)
    state.load_state_dict(given["compression"][key])
    assert torch.equal(train(net, optimizer, model, range(5, 8)), expected)
    state.close()
