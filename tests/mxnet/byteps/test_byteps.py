"""BytePS's own spellings of options, for tensors and parameters."""

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import Parameter

import gluon_gc as bps
from gluon_gc.compression import byteps, parse, registry
from tests.mxnet.cluster.jobs import backward, gradients

SHAPES = [(40, 5), (7,)]


def byteps_(**options):
    """Return options with BytePS's prefix."""
    return {f"byteps_{name}": value for name, value in options.items()}


MOMENTUM = byteps_(momentum_type="nesterov", momentum_mu=0.9)
NATURAL = dict(dithering_partition="1", dithering_normalize=1)
DITHERING = dict(compressor_type="dithering", compressor_dithering_normalize="l2")
# The spellings of BytePS's trainer and of its C++ registry, and ours.
SPELLED = [
    (dict(compressor_type="onebit", compressor_onebit_scaling="True"), {"scaling": True}),
    (dict(compressor_type="onebit", compressor_onebit_scaling="false"), {"scaling": False}),
    (
        dict(compressor_type="topk", compressor_k="0.001", ef_type="vanilla"),
        {"k": 0.001, "ef": "vanilla"},
    ),
    (
        dict(compressor_type="topk", compressor_k="3", error_feedback_type="Vanilla"),
        {"k": 3, "ef": "vanilla"},
    ),
    (
        dict(compressor_type="randomk", compressor_k=32, compressor_ef_type="sparse", seed="2020"),
        {"k": 32, "ef": "sparse", "seed": 2020},
    ),
    (
        dict(compressor_type="dithering", compressor_k="2", **NATURAL),
        {"k": 2, "partition": "natural", "normalize": "l2"},
    ),
    (
        dict(**DITHERING, compressor_k=4, compressor_dithering_partition="linear"),
        {"k": 4, "normalize": "l2"},
    ),
]
SPELLED = [
    (byteps_(**theirs), {"compressor": theirs["compressor_type"], **ours})
    for theirs, ours in SPELLED
]
each_spelling = pytest.mark.parametrize("spelled, ours", SPELLED)


def make(attributes, compression=None, momentum=0.0, shapes=SHAPES):
    """Return parameters with these attributes, and their trainer."""
    params = []
    for i, shape in enumerate(shapes):
        param = Parameter(f"p{i}", shape=shape)
        param.initialize(mx.init.Constant(1.0))
        for name, value in attributes.items():
            setattr(param, name, value)
        params.append(param)
    optimizer = {"learning_rate": 0.125, "momentum": momentum, "wd": 0.01}
    trainer = bps.DistributedTrainer(
        params, "sgd", optimizer, compression_params=compression, kvstore="local"
    )
    return params, trainer


def weights(attributes, compression=None, **more):
    """Return the weights after three steps."""
    params, trainer = make(attributes, compression, **more)
    for step in range(3):
        backward(params, gradients(step, SHAPES))
        trainer.step(2)
    return [param.data().asnumpy() for param in params]


def assert_equal(ours, others):
    for a, b in zip(ours, others):
        np.testing.assert_array_equal(a, b)


@each_spelling
def test_every_spelling_means_what_ours_does(spelled, ours):
    assert byteps.translate(spelled).parse() == parse(ours)


@pytest.mark.parametrize("name", registry)
def test_every_option_of_every_compressor_can_be_spelled(name):
    for key, option in registry[name].keys().items():
        for spelling in (f"byteps_compressor_{key}", f"byteps_compressor_{name}_{key}"):
            assert byteps.spellings()[spelling].key == key
            assert type(byteps.spellings()[spelling].option.rule) is type(option.rule)


@each_spelling
def test_parameters_may_have_them_as_attributes(spelled, ours):
    if "seed" in registry[ours["compressor"]].keys():
        spelled, ours = {**spelled, "byteps_seed": 7}, {**ours, "seed": 7}
    assert_equal(weights(spelled), weights({}, ours))
    assert any((a != b).any() for a, b in zip(weights(spelled), weights({})))


def test_attributes_that_name_no_compressor_add_to_the_trainers_params():
    topk = {"compressor": "topk", "k": 0.5}
    assert_equal(weights({"byteps_compressor_k": "3"}, topk), weights({}, {**topk, "k": 3}))


def test_attributes_that_name_a_compressor_stand_alone():
    onebit = {"byteps_compressor_type": "onebit"}
    topk = {"compressor": "topk", "k": 0.5, "ef": "vanilla"}
    assert_equal(weights(onebit, topk), weights({}, {"compressor": "onebit"}))


def test_an_attribute_can_switch_the_trainers_compressor_off():
    onebit = {"compressor": "onebit", "ef": "vanilla"}
    assert_equal(weights({"byteps_compressor_type": ""}, onebit), weights({}))


def test_momentum_is_the_attributes_where_the_optimizer_has_none_as_in_bytepss_examples():
    spelled = {"byteps_compressor_type": "onebit", **MOMENTUM}
    params, trainer = make(spelled)
    m = np.float32(0)
    for step in range(3):
        values = gradients(step, SHAPES)
        backward(params, values)
        trainer.step(1)
        m = np.float32(0.9) * m + values[0]
        sent = values[0] + np.float32(0.9) * m
        np.testing.assert_array_equal(params[0].grad().asnumpy(), np.where(sent < 0, -1, 1))


def test_momentum_may_be_told_twice_if_it_is_the_same():
    ours = {"compressor": "onebit", "momentum": "nesterov"}
    spelled = {"byteps_compressor_type": "onebit", **MOMENTUM}
    assert_equal(weights(spelled, momentum=0.9), weights({}, ours, momentum=0.9))


@pytest.mark.parametrize(
    "given, problem",
    [
        (
            dict(compresor_type="onebit"),
            "'byteps_compresor_type' is not .*'byteps_compressor_type'?",
        ),
        (dict(momentum="nesterov"), "did you mean 'byteps_momentum_mu'?"),
        (
            dict(compressor_type="randomk", compressor_onebit_scaling="true"),
            "onebit_scaling' is an option of 'onebit', but the compressor is 'randomk'",
        ),
        (dict(compressor_onebit_scaling=True), "'onebit', but the compressor is None"),
        (
            dict(compressor_type="topk", compressor_k=1, topk_k=2),
            "'byteps_compressor_k' and 'byteps_topk_k' mean the same; give one of them",
        ),
        (dict(compressor_type="onebits"), r"\['compressor'\] must be .*, got 'onebits'"),
        (dict(compressor_type=1), r"\['compressor'\] must be .*, got 1"),
        (
            dict(compressor_type="dithering", compressor_k="many"),
            r"\['k'\] must be a whole number >= 1, got 'many'",
        ),
        (
            dict(compressor_type="dithering", compressor_k=2, partition=2),
            r"\['partition'\] must be 'linear' or 'natural', got 2",
        ),
        (
            dict(compressor_type="onebit", momentum_mu=0.9),
            "byteps_momentum_mu needs a compressor and 'byteps_momentum_type'; got 0.9",
        ),
        (
            dict(compressor_type="onebit", momentum_type="nesterov", momentum_mu="much"),
            "byteps_momentum_mu must be a number >= 0, got 'much'",
        ),
        (
            dict(compressor_type="onebit", momentum_type="nesterov"),
            r"\['momentum'\] needs an optimizer with momentum > 0, .*'byteps_momentum_mu'",
        ),
    ],
)
def test_what_byteps_would_not_take_is_refused_of_tensors_and_parameters(given, problem):
    given = byteps_(**given)
    with pytest.raises((ValueError, TypeError), match=problem):
        bps.byteps_declare_tensor("refused", **given)
    with pytest.raises((ValueError, TypeError), match=problem):
        make(given)


def test_another_momentum_than_the_optimizers_is_refused():
    with pytest.raises(ValueError, match="must be the optimizer's momentum, 0.5, .*; got 0.9"):
        make({"byteps_compressor_type": "onebit", **MOMENTUM}, momentum=0.5)


def test_a_parameter_says_it_in_one_way():
    both = {"compression_params": None, "byteps_compressor_type": "onebit"}
    with pytest.raises(ValueError, match="p0 has compression_params and 'byteps_compressor_type'"):
        make(both)


def test_an_option_that_does_nothing_is_warned_of():
    with pytest.warns(UserWarning, match="'seed' is not for onebit, got 3"):
        make({"byteps_compressor_type": "onebit", "byteps_seed": 3})


@pytest.fixture
def joined():
    """A single worker."""
    bps.init(lazy=False)  # an argument that only BytePS has
    yield
    bps.shutdown()


def test_tensors_may_be_declared_so(joined):
    spelled = {"byteps_compressor_type": "onebit", "byteps_compressor_onebit_scaling": "true"}
    bps.byteps_declare_tensor("signs", **spelled)
    tensor = mx.nd.array([1, -2, 3, -6])
    bps.byteps_push_pull(tensor, name="signs")
    np.testing.assert_array_equal(tensor.asnumpy(), [3, -3, 3, -3])


def test_tensors_may_be_declared_with_momentum(joined):
    bps.byteps_declare_tensor("m", byteps_compressor_type="topk", byteps_topk_k=4, **MOMENTUM)
    for expected in (1 + 0.9, 1 + 0.9 * 1.9):
        tensor = mx.nd.ones(4)
        bps.byteps_push_pull(tensor, name="m")
        np.testing.assert_allclose(tensor.asnumpy(), expected, rtol=1e-6)


def test_declarations_and_residuals_outlive_suspend_but_not_shutdown(joined):
    topk = {"byteps_compressor_type": "topk", "byteps_compressor_k": 1, "byteps_ef_type": "vanilla"}
    bps.byteps_declare_tensor("g", **topk)
    results = []
    for leave in (bps.suspend, bps.shutdown, None):
        tensor = mx.nd.array([4, 3, 1])
        bps.byteps_push_pull(tensor, name="g")
        results.append(tensor.asnumpy().tolist())
        if leave is not None:
            leave()
            bps.resume(1, 1)
    assert results == [[4, 0, 0], [0, 6, 0], [4, 3, 1]]


def test_residuals_outlive_suspend_in_an_except_block(joined):
    bps.byteps_declare_tensor("g", compressor="topk", k=1, ef="vanilla")
    for expected in ([4, 0, 0], [0, 6, 0]):
        tensor = mx.nd.array([4, 3, 1])
        bps.byteps_push_pull(tensor, name="g")
        assert tensor.asnumpy().tolist() == expected
        try:
            next(iter(()))
        except StopIteration:
            bps.suspend()
        bps.resume(1, 1)


def test_tensors_without_a_name_are_each_one_of_their_own(joined):
    for size in (3, 5):
        tensor = mx.nd.arange(size)
        bps.byteps_push_pull(tensor)
        np.testing.assert_array_equal(tensor.asnumpy(), np.arange(size))
    with pytest.raises(ValueError, match=r"'noname.2' must have 5 elements .* got shape \(3,\)"):
        bps.byteps_push_pull(mx.nd.ones(3), name="noname.2")
