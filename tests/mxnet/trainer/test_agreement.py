"""Workers whose weights would diverge get an error before the first gradient is sent."""

import mxnet as mx
import numpy as np
import pytest
from mxnet.contrib.amp.loss_scaler import LossScaler

import gluon_gc as bps
from tests.mxnet.cluster.jobs import backward, gradients_of, parameters
from tests.mxnet.cluster.standing import on_workers

LOCAL = (
    'algorithm {"name": "local_steps", "every": %d, "outer_lr": 0.7, "outer_momentum": 0.5, '
    '"nesterov": true, "fragments": 1, "overlap": 0, "mix": 0.0, "start": 0, "overrides": null}'
)

SGD = {"learning_rate": 0.5, "momentum": 0.5}


def train(
    optimizer="sgd",
    shapes=((3, 4), (5,)),
    loss_scaler=False,
    of_last=None,
    ignores=False,
    optimizer_params=None,
    **more,
):
    """Train a step. `of_last` has attributes of the last parameter."""
    params = parameters(shapes)
    for name, value in (of_last or {}).items():
        setattr(params[-1], name, value)
    trainer = bps.DistributedTrainer(params, optimizer, {**SGD, **(optimizer_params or {})}, **more)
    if loss_scaler:
        trainer._amp_loss_scaler, trainer._amp_original_scale = LossScaler(), 1.0
    backward(params, [np.ones(shape, np.float32) for shape in shapes])
    trainer.step(1, ignore_stale_grad=ignores)
    mx.nd.waitall()


def train_with(**optimizer_params):
    train(optimizer_params=optimizer_params)


def scheduled(**kwargs):
    return mx.lr_scheduler.FactorScheduler(10, base_lr=0.5, **kwargs)


def update(odd):
    optimizer = bps.DistributedOptimizer(mx.optimizer.SGD(learning_rate=0.5 + odd))
    optimizer.update(0, mx.nd.ones(2), mx.nd.ones(2), None)


def defer(odd):
    param = mx.gluon.Parameter("w", shape=(3, 0 if odd else 2), allow_deferred_init=True)
    param.initialize()
    bps.DistributedTrainer([param], "sgd")


def push_pull(dtype="float32", **more):
    bps.byteps_push_pull(mx.nd.ones(2, dtype=dtype), **more)


# What worker 0 (odd is 0) and worker 1 do, which must be the same.
CALLS = {
    "rate": lambda odd: train_with(learning_rate=0.5 + odd),
    "class": lambda odd: train(["sgd", "nag"][odd]),
    "wd": lambda odd: train_with(wd=0.25 * odd),
    "momentum": lambda odd: train_with(momentum=0.5 + 0.25 * odd),
    "clip": lambda odd: train_with(**({"clip_gradient": 1.0} if odd else {})),
    "precision": lambda odd: train_with(multi_precision=bool(odd)),
    "scheduler": lambda odd: train_with(**({"lr_scheduler": scheduled()} if odd else {})),
    "first rate": lambda odd: train_with(lr_scheduler=scheduled(), learning_rate=0.5 + odd),
    "factor": lambda odd: train_with(lr_scheduler=scheduled(factor=0.5 + 0.25 * odd)),
    "lr_mult": lambda odd: train(of_last={"lr_mult": 1.0 + odd}),
    "wd_mult": lambda odd: train(of_last={"wd_mult": 1.0 + odd}),
    "nonfinite": lambda odd: train(on_nonfinite=["raise", "skip"][odd]),
    "norm": lambda odd: train(max_grad_norm=1.0 + odd),
    "shape": lambda odd: train(shapes=((3, 4), (6, 1)[: 2 - odd])),
    "stale": lambda odd: train(ignores=bool(odd)),
    "AMP": lambda odd: train(loss_scaler=bool(odd)),
    "compressor": lambda odd: train(compression_params={"compressor": "topk", "k": 1 + odd}),
    "algorithm": lambda odd: train(algorithm=[None, "local_steps"][odd]),
    "every": lambda odd: train(algorithm={"name": "local_steps", "every": 2 + odd}),
    "deferred": defer,
    "optimizer": update,
    "name": lambda odd: push_pull(name="ab"[odd]),
    "sum": lambda odd: push_pull(name="c", is_average=odd),
    "dtype": lambda odd: push_pull(["int8", "int32"][odd], name="d"),
}
SAID = {
    "rate": "has learning_rate 1.5 for the optimizer, but worker 0 has 0.5",
    "class": 'has class "NAG" for the optimizer, but worker 0 has "SGD"',
    "wd": "has wd 0.25 for the optimizer, but worker 0 has 0.0",
    "momentum": "has momentum 0.75 for the optimizer, but worker 0 has 0.5",
    "clip": "has clip_gradient 1.0 for the optimizer, but worker 0 has none",
    "precision": "has multi_precision true for the optimizer, but worker 0 has false",
    "scheduler": 'has lr_scheduler "FactorScheduler" for the optimizer, but worker 0 has none',
    "first rate": "has learning_rate 1.5 for the optimizer, but worker 0 has 0.5",
    "factor": "has factor 0.75 for the lr_scheduler, but worker 0 has 0.5",
    "lr_mult": "has learning rate's multiplier 2.0 for parameter p1, but worker 0 has 1.0",
    "wd_mult": "has weight decay's multiplier 2.0 for parameter p1, but worker 0 has 1.0",
    "nonfinite": 'has on_nonfinite "skip" for the gradient of p1, but worker 0 has "raise"',
    "norm": "has max_grad_norm 2.0 for the trainer, but worker 0 has 1.0",
    "shape": "has shape [6] for parameter p1, but worker 0 has [6, 1]",
    "stale": "has ignore_stale_grad true for the trainer, but worker 0 has false",
    "AMP": "has AMP true for the trainer, but worker 0 has false",
    "compressor": "has k 2 for the gradient of p1, but worker 0 has 1",
    "algorithm": f"has {LOCAL % 30} for the trainer, but worker 0 has none",
    "every": f"has {LOCAL % 3} for the trainer, but worker 0 has {(LOCAL % 2)[10:]}",
    "deferred": (
        'has a value that "comes with the first batch, which sets the shape" for parameter w, but '
        'worker 0 has "is there"'
    ),
    "optimizer": "has learning_rate 1.5 for the optimizer, but worker 0 has 0.5",
    "name": 'has name "b" for byteps_push_pull, but worker 0 has "a"',
    "sum": "has is_average true for byteps_push_pull, but worker 0 has false",
    "dtype": 'has dtype "int32" for byteps_push_pull, but worker 0 has "int8"',
}


@pytest.mark.parametrize("kind", CALLS)
@on_workers(2, "machine")
def test_workers_compare_their_trainers_and_tensors_before_the_first_exchange(kind):
    compare(kind)


@pytest.mark.parametrize("kind", ["shape", "every", "deferred", "name"])
@on_workers(2, "servers", "horovod")
def test_workers_of_other_engines_compare_them_too(kind):
    compare(kind)


def compare(kind):
    train()
    with pytest.raises(RuntimeError) as raised:
        CALLS[kind](bps.rank())
    said = f"the workers do not fit together: worker 1 {SAID[kind]}"
    assert str(raised.value) == said
    train()


W = "the weights of w differ between worker 0 and worker 1 before the update of step 9"
ADAM = {"optimizer": "adam", "optimizer_params": {"learning_rate": 0.1}}
ONEBIT_ADAM = {**ADAM, "algorithm": {"name": "onebit_adam", "freeze_step": 3}}


def drift(changes=None, by_hand=False, **more):
    """Train for 20 steps on equal gradients; returns the last step.

    `changes` is what differs on worker 1 before step 4: the weight "w", the "frozen" parameter or
    the running "mean". With `by_hand` weights differ for a while in each step.
    """
    mx.random.seed(bps.rank())
    params = {
        "w": mx.gluon.Parameter("w", shape=(30, 10)),
        "frozen": mx.gluon.Parameter("frozen", shape=(5,), grad_req="null"),
        "mean": mx.gluon.Parameter("mean", shape=(5,), differentiable=False),
    }
    for param in params.values():
        param.initialize("ones")
    settings = {"optimizer": "sgd", "optimizer_params": {"learning_rate": 0.1}, **more}
    trainer = bps.DistributedTrainer(list(params.values()), **settings)
    for step in range(1, 21):
        if step == 4 and bps.rank() == 1 and changes:
            params[changes].set_data(params[changes].data() * 1.25)
        gradient = gradients_of(0, step, [(30, 10)])
        try:
            if not by_hand:
                backward([params["w"]], gradient)
                trainer.step(1)
                continue
        except RuntimeError as error:
            assert W in str(error)
            return step
        weight = params["w"].data().copy()
        params["w"].set_data(weight + bps.rank())  # as sharpness-aware minimization does
        backward([params["w"]], gradient)
        trainer.allreduce_grads(1)
        params["w"].set_data(weight)
        trainer.update(1)
        for _ in range(bps.rank()):  # local steps
            backward([params["w"]], gradient)
            trainer.update(1)
        bps.broadcast_parameters([params["w"]])
    return step


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "sgld"},
        {"compression_params": {"compressor": "onebit"}, "changes": "w"},
        {**ONEBIT_ADAM, "changes": "w"},
        {"algorithm": "powersgd", "changes": "w"},
    ],
    ids=["sgld", "onebit", "onebit_adam", "powersgd"],
)
@on_workers(2)
def test_weights_that_differ_are_an_error_on_all_workers_in_the_same_step(settings):
    assert drift(**settings) == 17


@pytest.mark.parametrize(
    "settings",
    [
        {"by_hand": True},
        {"changes": "frozen"},
        {"changes": "mean"},
        {"optimizer": "sgld", "algorithm": {"name": "local_steps", "every": 9}},
        ONEBIT_ADAM,
        {"algorithm": "powersgd"},
    ],
    ids=["by hand", "frozen", "mean", "local_steps", "onebit_adam", "powersgd"],
)
@on_workers(2)
def test_weights_that_are_equal_or_may_differ_are_no_error(settings):
    assert drift(**settings) == 20
