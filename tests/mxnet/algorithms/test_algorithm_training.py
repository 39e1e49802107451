"""DistributedTrainer with an algorithm in one process; test_algorithms.py has several workers."""

import re
from dataclasses import dataclass

import mxnet as mx
import numpy as np
import pytest
from mxnet.contrib.amp.loss_scaler import LossScaler
from mxnet.gluon import Parameter

import gluon_gc as bps
from gluon_gc import state as checkpoint
from gluon_gc.algorithms import Algorithm, Round, registry
from tests.algorithm_replay import LocalStepsReplay
from tests.mxnet.cluster.jobs import backward, gradients, make, train
from tests.replay import mean_of_one

SHAPES = [(40, 3), (7,)]
SGD = {"learning_rate": 0.5}
LOCAL = {"name": "local_steps", "every": 3}
FULL = {
    "fragments": 2,
    "overlap": 1,
    "mix": 0.25,
    "start": 2,
    "overrides": {"p1": {"outer_lr": 1.0}},
}
ONEBIT = {"compressor": "onebit", "scaling": True, "ef": "vanilla"}
TOPK = {"compressor": "topk", "k": 3, "ef": "vanilla"}


@dataclass(frozen=True)
class TwoRounds(Algorithm):
    """Averages all parameters, then the column sums of matrices; keeps the sent sums as state."""

    name = "two_rounds"
    description = "for tests"
    own = ("sent",)

    def rounds(self, shapes):
        matrices = {name: shape[1:] for name, shape in shapes.items() if len(shape) == 2}
        return {"whole": shapes, "columns": matrices}

    def step(self, at, state):
        at.update()
        before = {name: 1.0 * x for name, x in at.parameters.items()}
        means = yield Round("whole", at.parameters)
        for name, x in at.parameters.items():  # a round does not change its vectors
            np.testing.assert_array_equal(x.asnumpy(), before[name].asnumpy())
        sums = {name: x.sum(axis=0) for name, x in before.items() if len(x.shape) == 2}
        columns = yield Round("columns", sums)
        state.setdefault("sent", {}).update(sums)
        for name, x in at.parameters.items():
            x[:] = means[name] + 0.01 * columns[name] if name in columns else means[name]


def trained(steps, compression_params=None, contexts=1, optimizer=SGD, algorithm=LOCAL, **more):
    params, trainer = make(
        SHAPES, optimizer, compression_params, contexts, algorithm=algorithm, **more
    )
    train(params, trainer, SHAPES, steps)
    return params, trainer


def replayed(steps, compression_params=None, contexts=1, **options):
    """Return the weights after `steps` steps of `train`, computed in NumPy."""
    worker = {f"p{i}": np.ones(shape, np.float32) for i, shape in enumerate(SHAPES)}
    mean = mean_of_one(SHAPES, compression_params)
    local = LocalStepsReplay([worker], mean=mean, **{"every": 3, **options})
    for step in range(steps):
        for name, gradient in zip(worker, gradients(step, SHAPES)):
            worker[name] -= np.float32(0.5) * (np.float32(0.5 * contexts) * gradient)
        local.after_step()
    return worker


def assert_equal(params, expected):
    for param, value in zip(params, expected.values()):
        for array in param.list_data():
            np.testing.assert_array_equal(array.asnumpy(), value, err_msg=param.name)


@pytest.mark.parametrize("contexts", [1, 2])
@pytest.mark.parametrize("options", [{}, FULL], ids=["plain", "full"])
@pytest.mark.parametrize("compression_params", [None, ONEBIT, TOPK], ids=str)
def test_local_steps_is_its_replay_bit_for_bit_on_all_contexts(
    compression_params, options, contexts
):
    params, trainer = trained(7, compression_params, contexts, algorithm={**LOCAL, **options})
    assert_equal(params, replayed(7, compression_params, contexts, **options))
    kind = "difference.0" if options else "difference"
    raw = trainer.compression_stats()["tensors"][f"{kind} of p0"]["raw_bytes"]
    assert raw == 40 * 3 * 4


@pytest.mark.parametrize("before, now", [(1, 2), (2, 1)])
def test_another_number_of_fragments_keeps_the_residuals(tmp_path, before, now):
    files = [str(tmp_path / str(fragments)) for fragments in (before, now)]
    _, trainer = trained(6, ONEBIT, algorithm={**LOCAL, "fragments": before})
    trainer.save_states(files[0])
    _, trainer = make(SHAPES, SGD, ONEBIT, algorithm={**LOCAL, "fragments": now})
    trainer.load_states(files[0], strict=False)
    trainer.save_states(files[1])
    saved, again = (dict(residuals(file)) for file in files)
    assert saved.keys() == again.keys() and len(saved) == 4
    for key, residual in saved.items():
        np.testing.assert_array_equal(again[key], residual)
        assert residual.any() or key.node == "aggregator"


def test_an_average_under_way_arrives_before_the_rounds_of_other_options(tmp_path):
    """The round of step 5 would arrive in step 9. As with every overlap, steps 6 to 8 are lost."""
    file = str(tmp_path / "states")
    options = {"name": "local_steps", "every": 5, "overlap": 4, "outer_lr": 1, "outer_momentum": 0}
    for steps, more in ((7, {}), (2, {"start": 20})):
        params, trainer = make(SHAPES, SGD, algorithm={**options, **more})
        if more:
            trainer.load_states(file, strict=False)
        for _ in range(steps):
            backward(params, [np.ones(shape, np.float32) for shape in SHAPES])
            trainer.step(1)
        trainer.save_states(file)
    for param in params:
        np.testing.assert_array_equal(param.data().asnumpy(), 1 - 0.5 * 6)


def test_a_file_from_before_the_choice_of_auto_is_for_a_new_trainer(tmp_path):
    file, auto = str(tmp_path / "states"), {"compressor": "auto", "accuracy": "aggressive"}
    algorithm = {"name": "local_steps"}
    params, trainer = trained(3, auto, algorithm=algorithm)
    trainer.save_states(file)
    weights = [param.data().asnumpy() for param in params]
    train(params, trainer, SHAPES, 9)
    with pytest.raises(ValueError, match='saved before "auto" has chosen, but here it has chosen'):
        trainer.load_states(file)
    params, trainer = make(SHAPES, SGD, auto, algorithm=algorithm)
    trainer.load_states(file)
    for param, weight in zip(params, weights):
        np.testing.assert_array_equal(param.data().asnumpy(), weight)


def residuals(file):
    """Yield the residuals in a file, without the number of their fragment."""
    for key, array in checkpoint.read(file).arrays.items():
        kind, _, what = key.what.partition("/")
        if what == "residual":
            yield key._replace(what=kind.partition(".")[0]), array


def test_saving_before_the_first_step_changes_nothing(tmp_path):
    results = []
    for saves in (False, True):
        params, trainer = make(SHAPES, SGD, algorithm=LOCAL)
        if saves:
            trainer.save_states(str(tmp_path / "states"))
        for param in params:
            param.set_data(5 * mx.nd.ones(param.shape))
        for step in range(4):
            backward(params, gradients(step, SHAPES))
            trainer.step(2)
        results.append([param.data().asnumpy() for param in params])
    for one, other in zip(*results):
        np.testing.assert_array_equal(one, other)


def test_states_of_another_algorithm_are_refused_and_nothing_changes(tmp_path):
    with_it, without = str(tmp_path / "with"), str(tmp_path / "without")
    trained(4)[1].save_states(with_it)
    trained(4, algorithm=None)[1].save_states(without)
    for file, algorithm, said in [
        (with_it, None, "the algorithm is {'name': 'local_steps', .* there, but None here"),
        (without, LOCAL, "the algorithm is None there, but {'name': 'local_steps', "),
        (with_it, "local_steps", "the algorithm is .*'every': 3, .* there, but .*'every': 30"),
    ]:
        params, trainer = make(SHAPES, SGD, algorithm=algorithm)
        with pytest.raises(ValueError, match=f"'{re.escape(file)}' does not fit: {said}"):
            trainer.load_states(file)
        assert_equal(params, {str(i): np.ones(shape) for i, shape in enumerate(SHAPES)})
    trainer.load_states(with_it, strict=False)
    assert_equal(params, replayed(4))


def test_a_file_without_the_anchor_of_a_parameter_is_refused(tmp_path):
    file = str(tmp_path / "states")
    params, trainer = trained(4)
    trainer.save_states(file)
    states = checkpoint.read(file)
    gone = checkpoint.Key(1, checkpoint.OF_ALL, "anchor")
    arrays = {key: array for key, array in states.arrays.items() if key != gone}
    layout = {key: (array.shape, array.dtype.name) for key, array in arrays.items()}
    checkpoint.write(file, states.header, layout, arrays.items(), states.optimizer)
    with pytest.raises(ValueError, match=r"the anchor of 'p1' is missing there, but \(7,\) of flo"):
        trainer.load_states(file)


def test_a_stale_gradient_updates_nothing_and_its_parameter_is_averaged():
    params, trainer = make(SHAPES, SGD, algorithm={**LOCAL, "every": 2}, contexts=2)
    backward(params, gradients(0, SHAPES))
    trainer.step(1)
    moved = params[1].data().asnumpy()
    with pytest.raises(UserWarning, match="has not been updated by backward since last"):
        backward(params[:1], gradients(1, SHAPES))
        trainer.step(1)
    trainer.step(1, ignore_stale_grad=True)
    first = params[1].list_data()[0].asnumpy()
    assert not np.array_equal(first, moved)  # the outer step has changed it
    np.testing.assert_array_equal(params[1].list_data()[1].asnumpy(), first)
    np.testing.assert_allclose(first, 1 + 0.7 * 1.5 * (moved - 1), atol=1e-5)


def test_what_does_not_fit_is_refused_by_name():
    def refused(kind, said, **more):
        with pytest.raises(kind, match=re.escape(said)):
            trained(0, **more)

    momentum = {**ONEBIT, "momentum": "nesterov"}
    with_momentum = {**SGD, "momentum": 0.9}
    refused(ValueError, "did you mean 'local_steps'?", algorithm="local")
    refused(
        ValueError,
        "compression_params['momentum'] must be left out with algorithm local_steps",
        compression_params=momentum,
        optimizer=with_momentum,
    )
    refused(ValueError, "max_grad_norm must be None with", max_grad_norm=1.0)
    refused(ValueError, "on_nonfinite must be 'raise' or 'propagate' with", on_nonfinite="skip")
    refused(ValueError, "but parameter p0 is float16: keep the model", dtype="float16")
    rows = Parameter("rows", shape=(3, 4), grad_stype="row_sparse")
    own = Parameter("own", shape=(3, 4))
    own.byteps_momentum_type = "nesterov"
    for param, said in [
        (rows, "parameter rows or its gradient is row_sparse"),
        (own, "compression_params['momentum'] must be left out"),
    ]:
        param.initialize()
        more = {"compression_params": ONEBIT, "kvstore": "local", "algorithm": LOCAL}
        with pytest.raises(ValueError, match=re.escape(said)):
            bps.DistributedTrainer([param], "sgd", with_momentum, **more)
    params, trainer = trained(1)
    for call in (
        trainer.allreduce_grads,
        lambda: trainer.update(1),
    ):
        with pytest.raises(RuntimeError, match="does not average gradients in every step"):
            call()
    params[1].grad_req = "null"
    backward(params[:1], gradients(1, SHAPES))
    with pytest.raises(ValueError, match="the grad_req of parameter p1 has changed"):
        trainer.step(1)


def test_what_is_not_finite_is_an_error_that_names_the_vector():
    params, trainer = trained(0, ONEBIT, algorithm={**LOCAL, "every": 1})
    backward(params, [np.full(shape, np.nan, np.float32) for shape in SHAPES])
    with pytest.raises(mx.MXNetError, match="the difference of p. has a NaN or an infinity"):
        trainer.step(1)


@pytest.mark.parametrize("options", [{"overlap": 5}, {"start": 20}], ids=str)
def test_training_goes_on_from_the_anchors_after_an_average_that_is_not_finite(options):
    """With an overlap, a round of the other fragment is under way when the average arrives."""
    options = {"name": "local_steps", "every": 6, "fragments": 2, **options}
    params, trainer = make(SHAPES, SGD, algorithm=options)
    failed = []
    for step in range(1, 25):
        try:
            given = gradients(step, SHAPES)
            if step == 3:
                given[0][:] = np.nan
            backward(params, given)
            trainer.step(1)
            mx.nd.waitall()
        except mx.MXNetError:
            failed.append(step)
    assert failed == ([3, 8] if "overlap" in options else [3])  # when it is known, when it arrives
    for param in params:
        assert np.isfinite(param.data().asnumpy()).all()


def test_a_step_that_amp_skips_is_a_step_of_the_algorithm():
    """The update is left out, and the round after it is made."""
    params, trainer = trained(0, algorithm={**LOCAL, "every": 2})
    trainer._amp_loss_scaler, trainer._amp_original_scale = LossScaler(), 1.0
    weights = [np.ones(shape, np.float32) for shape in SHAPES]
    for step in range(3):
        given, loss_scale = gradients(step, SHAPES), np.float32(trainer._amp_loss_scaler.loss_scale)
        trainer._scale = 1.0 / loss_scale  # as amp.scale_loss does
        overflow = np.float32(np.inf if step == 1 else loss_scale)
        backward(params, [overflow * np.abs(gradient) for gradient in given])
        trainer.step(2)
        if step == 1:
            weights = [1 + 0.7 * 1.5 * (weight - 1) for weight in weights]  # the first outer step
        else:
            weights = [w - 0.5 * np.abs(g) / 2 for w, g in zip(weights, given)]
        for param, weight in zip(params, weights):
            np.testing.assert_allclose(param.data().asnumpy(), weight, rtol=1e-5, atol=1e-5)


def test_the_summary_says_the_algorithm_and_counts_vectors():
    _, trainer = trained(0, ONEBIT)
    assert "algorithm {'name': 'local_steps', 'every': 3," in repr(trainer)
    assert "no vectors yet" in repr(trainer)
    _, trainer = trained(3, ONEBIT)
    assert "2 vectors of 127 elements" in repr(trainer)


def test_a_parameter_without_a_compressor_travels_as_it_is():
    params, _ = make(SHAPES, SGD, ONEBIT)
    params[0].compression_params = params[1].compression_params = None
    trainer = bps.DistributedTrainer(
        params, "sgd", SGD, compression_params=ONEBIT, kvstore="local", algorithm=LOCAL
    )
    train(params, trainer, SHAPES, 7)
    assert_equal(params, replayed(7))


def test_a_worker_goes_on_after_resume_with_its_own_parameters_and_state():
    def steps(params, trainer, numbers):
        for step in numbers:
            backward(params, gradients(step, SHAPES))
            trainer.step(2)

    def made():
        params = make(SHAPES, SGD)[0]
        more = {"compression_params": ONEBIT, "algorithm": LOCAL}
        return params, bps.DistributedTrainer(params, "sgd", SGD, **more)

    bps.init()
    try:
        params, trainer = made()
        steps(params, trainer, range(4))
        bps.suspend()
        bps.resume(num_workers=1, num_servers=0)
        steps(params, trainer, range(4, 8))
        assert_equal(params, replayed(8, ONEBIT))
        bps.suspend()
        bps.shutdown()  # forgets the cluster
        bps.init()
        with pytest.raises(RuntimeError, match="local_steps goes on after bps.resume only with"):
            steps(params, trainer, [8])
    finally:
        bps.shutdown()


def test_each_kind_of_round_has_residuals_of_its_own_and_a_worker_keeps_its_state(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(registry, "two_rounds", TwoRounds)
    file = str(tmp_path / "states")
    params, trainer = trained(3, ONEBIT, algorithm="two_rounds")
    trainer.save_states(file)
    kinds = {(*key[:3],) for key in checkpoint.read(file).arrays if key.node != "aggregator"}
    residuals = {(0, "columns/residual"), (0, "whole/residual"), (1, "whole/residual")}
    expected = {(number, "worker", what) for number, what in residuals}
    expected |= {(0, "local", "sent"), (0, "local", "parameter"), (1, "local", "parameter")}
    assert kinds == expected
    resumed, other = make(SHAPES, SGD, ONEBIT, algorithm="two_rounds")
    other.load_states(file)
    for ours, of_trainer in ((params, trainer), (resumed, other)):
        backward(ours, gradients(3, SHAPES))
        of_trainer.step(2)
    assert_equal(resumed, {param.name: param.data().asnumpy() for param in params})
    tensors = trainer.compression_stats()["tensors"]
    assert list(tensors) == ["whole of p0", "whole of p1", "columns of p0"]
    assert tensors["columns of p0"]["raw_bytes"] == 3 * 4
