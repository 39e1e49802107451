"""DistributedTrainer with an algorithm that needs Adam, in one process."""

import re

import mxnet as mx
import numpy as np
import pytest
from mxnet.contrib.amp.loss_scaler import LossScaler

from gluon_gc import state as checkpoint
from tests.algorithm_replay import ZERO_ONE, ZeroOneAdamReplay
from tests.mxnet.algorithms.adam_replay import corrected, onebit_replay
from tests.mxnet.cluster.jobs import backward, gradients, make
from tests.replay import mean_of_one

SHAPES = [(40, 3), (7,)]
ADAM = {"learning_rate": 0.01, "wd": 0.1, "beta2": 0.99}
FREEZE = {"name": "onebit_adam", "freeze_step": 4}
ONEBIT = {"compressor": "onebit", "scaling": True, "ef": "vanilla"}
TOPK = {"compressor": "topk", "k": 3, "ef": "vanilla"}


def made(compression_params=None, contexts=1, settings=ADAM, algorithm=FREEZE, **more):
    more = {"optimizer": "adam", "algorithm": algorithm, **more}
    return make(SHAPES, dict(settings), compression_params, contexts, **more)


def given(step):
    """Return the gradients of a step; the first row has none in the warm-up."""
    first, *others = gradients(step, SHAPES)
    first[0] *= step >= 4
    return first, *others


def train(params, trainer, steps):
    for step in steps:
        backward(params, given(step))
        trainer.step(2)


def mean_of(compression_params):
    """Return the average of one worker's vectors."""
    return mean_of_one(SHAPES, compression_params, uncompressed=("gradient",))


def first_values():
    return {f"p{i}": np.ones(shape, np.float32) for i, shape in enumerate(SHAPES)}


def replayed(expected, steps, contexts=1):
    for step in range(steps):
        scaled = [np.float32(0.5) * (np.float32(contexts) * gradient) for gradient in given(step)]
        expected.step([dict(zip(expected.v, scaled))])
    return expected


def assert_equal(params, trainer, x, m, v):
    for i, param in enumerate(params):
        for array, updater in zip(param.list_data(), trainer._updaters):
            np.testing.assert_array_equal(array.asnumpy(), x[param.name], err_msg=param.name)
            for moment, ours in zip(updater.states[i], (m, v)):
                np.testing.assert_array_equal(moment.asnumpy(), ours[param.name])


SETTINGS = [
    ADAM,
    {"learning_rate": 0.01, "clip_gradient": -1},  # -1: no clipping
    {**ADAM, "clip_gradient": 0.4, "epsilon": 1e-8},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("contexts", [1, 2])
@pytest.mark.parametrize("compression_params", [None, ONEBIT, TOPK], ids=str)
def test_onebit_adam_is_its_replay_bit_for_bit(compression_params, contexts, settings):
    params, trainer = made(compression_params, contexts, settings)
    train(params, trainer, range(11))
    expected = onebit_replay(first_values(), 4, mean_of(compression_params), **settings)
    replayed(expected, 11, contexts)
    assert_equal(params, trainer, expected.x, expected.m, expected.v)
    if "wd" not in settings:  # v is 0 in the first row
        np.testing.assert_array_equal(params[0].data().asnumpy()[0], np.ones(3))
    for counts in trainer._optimizer._all_index_update_counts.values():
        assert counts in ({}, {0: 11, 1: 11})
    stats = trainer.compression_stats()["tensors"]
    assert list(stats) == ["gradient of p0", "gradient of p1", "momentum of p0", "momentum of p1"]


@pytest.mark.parametrize("contexts", [1, 2])
@pytest.mark.parametrize("compression_params", [None, ONEBIT, TOPK], ids=str)
def test_zero_one_adam_is_its_replay_bit_for_bit(compression_params, contexts):
    params, trainer = made(compression_params, contexts, algorithm=ZERO_ONE)
    train(params, trainer, range(15))
    settings = {"betas": (0.9, 0.99), "lr": 0.01, "coupled": 0.1}
    mean = mean_of(compression_params)
    expected = ZeroOneAdamReplay([first_values()], corrected, mean=mean, **settings)
    replayed(expected, 15, contexts)
    assert_equal(params, trainer, *expected.workers, *expected.m, expected.v)


def test_multipliers_and_schedulers_apply_after_the_freeze():
    """A learning rate of 0 stops a parameter, and the scheduler counts all steps."""
    scheduler = mx.lr_scheduler.FactorScheduler(6, 0.5)
    params, trainer = made(ONEBIT, settings={**ADAM, "lr_scheduler": scheduler})
    params[1].lr_mult = 0
    train(params, trainer, range(10))
    np.testing.assert_array_equal(params[1].data().asnumpy(), np.ones(7))
    assert not np.array_equal(params[0].data().asnumpy(), np.ones((40, 3)))
    assert trainer.learning_rate == pytest.approx(0.005)


@pytest.mark.parametrize("devices", [[1], [0, 1]])
@pytest.mark.parametrize("algorithm", [None, FREEZE], ids=["adam", "onebit_adam"])
def test_a_checkpoint_continues_on_devices_with_other_ids(tmp_path, algorithm, devices):
    """MXNet's Adam counts the steps of each device id."""
    file = str(tmp_path / "states")
    never, trainer = made(algorithm=algorithm)
    train(never, trainer, range(6))
    trainer.save_states(file)
    params, other = made(contexts=devices, algorithm=algorithm)
    other.load_states(file)
    for param, expected in zip(params, never):
        param.set_data(expected.data())
    train(never, trainer, range(6, 8))
    for step in range(6, 8):
        backward(params, [gradient / len(devices) for gradient in given(step)])
        other.step(2)
    for param, expected in zip(params, never):
        for array in param.list_data():
            np.testing.assert_array_equal(array.asnumpy(), expected.data().asnumpy())


@pytest.mark.parametrize("algorithm", [FREEZE, ZERO_ONE], ids=["onebit_adam", "zero_one_adam"])
@pytest.mark.parametrize("stopped", [2, 8])
def test_a_parameter_that_a_checkpoint_lacks_trains_or_is_named(
    tmp_path, stopped, algorithm, logged
):
    """After the freeze, Adam's variance of the parameter stays zero."""
    file = str(tmp_path / "states")
    params, trainer = made(ONEBIT, algorithm=algorithm)
    train(params, trainer, range(stopped))
    trainer.save_states(file)
    more = [*SHAPES, (3, 2)]
    params, trainer = make(more, dict(ADAM), ONEBIT, optimizer="adam", algorithm=algorithm)
    trainer.load_states(file, strict=False)
    logged.clear()
    for step in range(stopped, 12):
        backward(params, gradients(step, more))
        trainer.step(2)
    new = params[2].data().asnumpy()
    assert np.isfinite(new).all() and (new != 1).all() == (stopped == 2)
    lines = [record.getMessage() for record in logged.records]
    assert ["does not train p2: Adam's variance is zero" in line for line in lines] == [True] * (
        stopped == 8
    )


@pytest.mark.parametrize("is_earlier", [False, True], ids=["present", "earlier"])
@pytest.mark.parametrize(
    "before, now",
    [
        (FREEZE, {**FREEZE, "freeze_step": 99}),
        ({**ZERO_ONE, "var_freeze_step": 99}, {**ZERO_ONE, "var_freeze_step": 1}),
    ],
    ids=["onebit_adam", "zero_one_adam"],
)
def test_after_a_change_of_options_steps_are_of_the_right_size(tmp_path, before, now, is_earlier):
    """Each step of Adam subtracts the learning rate, because all gradients are 1.

    A file of an earlier version lacks the numbers of updates of the variance.
    """
    file, ones = str(tmp_path / "states"), [np.ones(shape, np.float32) for shape in SHAPES]
    params, trainer = made(settings={"learning_rate": 0.01}, algorithm=before)
    for _ in range(20):
        backward(params, ones)
        trainer.step(1)
    trainer.save_states(file)
    if is_earlier:
        states = checkpoint.read(file)
        arrays = {key: a for key, a in states.arrays.items() if key.what != "frozen_steps"}
        layout = {key: (array.shape, array.dtype.name) for key, array in arrays.items()}
        checkpoint.write(file, states.header, layout, arrays.items(), states.optimizer)
    start = [param.data().asnumpy() for param in params]
    params, trainer = made(settings={"learning_rate": 0.01}, algorithm=now)
    trainer.load_states(file, strict=False)
    for _ in range(4):
        backward(params, ones)
        trainer.step(1)
    for param, before in zip(params, start):
        np.testing.assert_allclose(before - param.data().asnumpy(), 0.04, rtol=1e-3)


@pytest.mark.parametrize("bad_step", [2, 6])
def test_a_step_that_amp_skips_does_not_count(bad_step):
    params, trainer = made(ONEBIT)
    trainer._amp_loss_scaler, trainer._amp_original_scale = LossScaler(), 1.0
    expected, plain = made(ONEBIT)
    for step in range(8):
        loss_scale = np.float32(trainer._amp_loss_scaler.loss_scale)
        trainer._scale = 1.0 / loss_scale  # as amp.scale_loss does
        if step == bad_step:
            backward(params, [np.full(shape, np.inf, np.float32) for shape in SHAPES])
        else:
            backward(params, [loss_scale * gradient for gradient in given(step)])
            train(expected, plain, [step])
        trainer.step(2)
        for param, other in zip(params, expected):
            np.testing.assert_array_equal(param.data().asnumpy(), other.data().asnumpy())
    assert trainer._averaging.steps == 7
    assert trainer._optimizer._index_update_count == {0: 7, 1: 7}


def test_a_stale_gradient_counts_as_zeros():
    results = []
    for zeros in (False, True):
        params, trainer = made(TOPK, contexts=2)
        for step in range(8):
            first, second = given(step)
            if step % 3 == 1 and not zeros:
                backward(params[:1], [first])
                with pytest.raises(UserWarning, match="has not been updated by backward since"):
                    trainer.step(2)
            else:
                backward(params, [first, second * (step % 3 != 1)])
            trainer.step(2, ignore_stale_grad=True)
        results.append([param.data().asnumpy() for param in params])
    for one, other in zip(*results):
        np.testing.assert_array_equal(one, other)


def test_what_does_not_fit_is_refused_by_name():
    def refused(said, **more):
        with pytest.raises(ValueError, match=re.escape(said)):
            made(**more)

    said = "algorithm onebit_adam needs mxnet.optimizer.Adam, got "
    refused(f"{said}SGD", optimizer="sgd", settings={})
    refused(f"{said}Nadam", optimizer="nadam", settings={})
    refused("algorithm onebit_adam needs epsilon > 0, got 0", settings={"epsilon": 0})
    refused("max_grad_norm must be None with", max_grad_norm=1.0)
    refused("['momentum'] must be left out", compression_params={**ONEBIT, "momentum": "nesterov"})


@pytest.mark.parametrize("optimizer", ["sgd", mx.optimizer.Adam(epsilon=0)], ids=["sgd", "adam"])
def test_an_optimizer_that_a_file_brings_is_refused_in_the_next_step(tmp_path, optimizer):
    other, plain = mx.gluon.Parameter("p0", shape=(40, 3)), str(tmp_path / "plain")
    other.initialize(mx.init.One())
    trainer = mx.gluon.Trainer([other], optimizer)
    with mx.autograd.record():
        loss = other.data().sum()
    loss.backward()
    trainer.step(1)
    trainer.save_states(plain)
    params, trainer = made(ONEBIT)
    trainer.load_states(plain, strict=False)
    with pytest.raises(ValueError, match="algorithm onebit_adam needs (mxnet.optimizer.Adam|eps)"):
        train(params, trainer, [0])


@pytest.mark.parametrize(
    "compression_params, optimizer, algorithm, due",
    [
        (ONEBIT, "adam", None, True),
        ({**TOPK, "k": 0.001}, "adam", None, True),
        ({**TOPK, "k": 0.01}, "adam", None, False),
        (None, "adam", None, False),
        (ONEBIT, "sgd", None, False),
        (ONEBIT, "adam", FREEZE, False),
        (ONEBIT, "adam", "local_steps", False),
    ],
    ids=str,
)
def test_much_compression_of_adams_gradients_is_warned_of_once(
    compression_params, optimizer, algorithm, due, logged
):
    made(compression_params, settings={}, optimizer=optimizer, algorithm=algorithm)
    lines = [record.getMessage() for record in logged.records if record.levelname == "WARNING"]
    assert [line for line in lines if "use algorithm 'onebit_adam'" in line] == lines
    assert len(lines) == due
