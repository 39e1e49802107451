"""Steps that are left out leave no trace in weights, residuals, momentum and random streams."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gluon_gc as bps
from gluon_gc.mxnet.state import tensor_states
from tests.compressors import COMPRESSORS
from tests.mxnet.cluster.jobs import backward, gradients, gradients_of, make, parameters
from tests.mxnet.cluster.standing import on_each_engine, run, run_machine

KINDS = ["skipped", "unapplied", "not_applied"]
SHAPES = [(30, 7), (2,), (90,)]
VARIABLES = {"BYTEPS_PARTITION_BYTES": 400, "BYTEPS_MIN_COMPRESS_BYTES": 40}  # p1 is uncompressed
OPTIMIZER = {"learning_rate": 0.1, "momentum": 0.9}
ONEBIT = {"compressor": "onebit", "scaling": True, "ef": "vanilla", "momentum": "nesterov"}
EXAMPLES = {name: {**given, "ef": "corrected"} for name, given in COMPRESSORS.items()}
EXAMPLES = {name: {**given, "momentum": "nesterov"} for name, given in EXAMPLES.items()}
EXAMPLES["dgc"] = {"compressor": "dgc", "k": 0.2, "seed": 7}


@pytest.fixture(autouse=True, scope="module")
def small_chunks():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in VARIABLES.items():
            patch.setenv(name, str(value))
        yield


def leave_out(trainer, kind, batch_size=1):
    """Exchange the current gradients in a step that is left out."""
    if kind == "skipped":
        trainer.step(batch_size)
    elif kind == "unapplied":
        trainer.allreduce_grads(batch_size)
    else:
        with trainer.not_applied():
            trainer.allreduce_grads(batch_size)


def trained(compression, kind, **more):
    """Train four steps, each after a step of this kind that is left out; None: without them."""
    more["on_nonfinite"] = "skip" if kind == "skipped" else "raise"
    params, trainer = make(SHAPES, dict(OPTIMIZER), compression, optimizer="nag", **more)
    for step in range(4):
        trainer.set_learning_rate(0.1 / (1 + step))
        if kind is not None:
            values = gradients(step + 10, SHAPES)
            if kind == "skipped":
                values[2][-1] = np.nan
            backward(params, values)
            leave_out(trainer, kind)
        backward(params, gradients(step, SHAPES))
        trainer.step(1)
    return state_of(params, trainer)


def state_of(params, trainer):
    averaging = trainer._averaging
    arrays = {f"weight {param.name}": param.data().asnumpy() for param in params}
    for key, array in tensor_states.state(averaging.exchange, averaging.names()):
        arrays[key._replace(tensor=key.tensor.partition(".")[2])] = array
    arrays.update(averaging.arrays())
    arrays["steps"] = averaging.steps
    arrays["rates"] = sorted(averaging.learning_rates.last.items())
    return arrays


def assert_same(ours, expected):
    assert ours.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(ours[name], array, err_msg=str(name))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("example", EXAMPLES)
def test_a_step_that_is_left_out_leaves_no_trace(example, kind):
    compression = EXAMPLES[example]
    assert_same(trained(compression, kind), trained(compression, None))


@st.composite
def loops(draw):
    """Draw steps: how many parameters have gradients, and the kind of a step that is left out."""
    kinds = draw(st.lists(st.sampled_from([None, *KINDS]), min_size=1, max_size=7))
    return [(draw(st.integers(1, 3)), kind) for kind in kinds]


@settings(max_examples=25, deadline=None)
@given(loops(), st.sampled_from(sorted(EXAMPLES)), st.sampled_from([None, 3.0]))
def test_any_loop_is_training_without_the_steps_that_are_left_out(loop, example, max_norm):
    def train(steps):
        more = dict(on_nonfinite="skip", max_grad_norm=max_norm)
        params, trainer = make(SHAPES, dict(OPTIMIZER), EXAMPLES[example], optimizer="nag", **more)
        for number, count, kind in steps:
            trainer.set_learning_rate(0.1 / (1 + number))
            values = gradients(number, SHAPES)[:count]
            if kind == "skipped":
                values[-1][-1] = np.inf
            backward(params[:count], values)
            if kind == "unapplied":
                trainer.allreduce_grads(1, ignore_stale_grad=True)
            elif kind == "not_applied":
                with trainer.not_applied():
                    trainer.allreduce_grads(1, ignore_stale_grad=True)
            else:
                trainer.step(1, ignore_stale_grad=True)
        return state_of(params, trainer)

    steps = [(number, *step) for number, step in enumerate([*loop, (3, None)])]
    assert_same(train(steps), train([step for step in steps if step[2] is None]))


@pytest.mark.parametrize("kind", KINDS)
def test_float16_gradients_and_several_contexts_leave_no_trace(kind):
    more = {"dtype": "float16", "contexts": 2}
    assert_same(trained(ONEBIT, kind, **more), trained(ONEBIT, None, **more))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ef", ["vanilla", "corrected"])
def test_rows_of_a_step_that_is_left_out_leave_no_trace(kind, ef):
    def train(kind):
        net = mx.gluon.nn.Embedding(50, 6, sparse_grad=True, prefix="net_")
        net.initialize(mx.init.Constant(1.0))
        compression = {"compressor": "topk", "k": 5, "ef": ef}
        trainer = bps.DistributedTrainer(
            net.collect_params(),
            "sgd",
            {"learning_rate": 0.1},
            compression_params=compression,
            kvstore="local",
            on_nonfinite="skip" if kind == "skipped" else "raise",
        )

        def run_backward(words, factor):
            with mx.autograd.record():
                loss = (net(mx.nd.array(words)) ** 2 * factor).sum()
            loss.backward()

        for step in range(4):
            trainer.set_learning_rate(0.1 / (1 + step // 2))
            if kind is not None:
                run_backward([step, 7, 8], np.nan if kind == "skipped" else 3)
                leave_out(trainer, kind)
            run_backward([step, step + 1, 7], 1)
            trainer.step(1)
        return state_of([net.weight], trainer)

    assert_same(train(kind), train(None))


def test_only_trainers_that_may_leave_steps_out_keep_a_second_state():
    def earlier(trainer):
        channels = trainer._averaging.exchange.channels
        codecs = [channel.coder for channel in channels if channel.coder is not None]
        return [array for codec in codecs for array in codec.memory.earlier]

    params, trainer = make(SHAPES, dict(OPTIMIZER), ONEBIT, optimizer="nag")
    for step in range(2):
        backward(params, gradients(step, SHAPES))
        trainer.step(1)
        assert not earlier(trainer)
    backward(params, gradients(2, SHAPES))
    trainer.allreduce_grads()
    assert earlier(trainer)


def test_averages_that_an_adding_gradient_may_still_contain_are_an_error():
    params, trainer = make(SHAPES, dict(OPTIMIZER), ONEBIT, optimizer="nag", grad_req="add")
    backward(params, gradients(0, SHAPES))
    trainer.allreduce_grads()
    backward(params, gradients(1, SHAPES))
    with pytest.raises(RuntimeError, match="averaged twice without update.*p2 has grad_req='add'"):
        trainer.allreduce_grads()
    trainer.update(1)


def test_adding_gradients_are_taken_back_if_the_script_says_so():
    def train(extra):
        params, trainer = make(SHAPES, dict(OPTIMIZER), ONEBIT, optimizer="nag", grad_req="add")
        for step in range(3):
            for values in [step + 10] * extra + [step]:
                for param in params:
                    param.zero_grad()
                backward(params, gradients(values, SHAPES))
                if values != step:
                    leave_out(trainer, "not_applied")
            trainer.step(1)
        return state_of(params, trainer)

    assert_same(train(1), train(0))


def test_an_error_in_the_block_is_no_reason_to_keep_an_adding_gradients_exchange():
    def train(extra):
        params, trainer = make(SHAPES, dict(OPTIMIZER), ONEBIT, optimizer="nag", grad_req="add")
        for step in range(3):
            if extra:
                backward(params, gradients(step + 10, SHAPES))
                with pytest.raises(KeyError), trainer.not_applied():
                    trainer.allreduce_grads(1)
                    raise KeyError
            for param in params:
                param.zero_grad()
            backward(params, gradients(step, SHAPES))
            trainer.step(1)
        return state_of(params, trainer)

    assert_same(train(True), train(False))


@mx.optimizer.register
class Refusing(mx.optimizer.SGD):
    """SGD that raises an error in an update if `refuses` is set."""

    refuses = False

    def update_multi_precision(self, *args):
        if self.refuses:
            raise ArithmeticError("too large")
        super().update_multi_precision(*args)


def refuse(params, trainer, number, *calls):
    """Make a step whose update raises."""
    backward(params, gradients(number, SHAPES))
    trainer.optimizer.refuses = True
    with pytest.raises(ArithmeticError):
        for call in calls:
            getattr(trainer, call)(1)
    trainer.optimizer.refuses = False


TOPK = {"compressor": "topk", "k": 0.3, "ef": "vanilla"}


@pytest.mark.parametrize("compression", [TOPK, ONEBIT])
@pytest.mark.parametrize(
    "calls, on_nonfinite", [(["step"], "skip"), (["allreduce_grads", "update"], "raise")]
)
def test_a_step_whose_update_raises_is_taken_back(calls, on_nonfinite, compression):
    def train(extra):
        more = dict(optimizer="refusing", on_nonfinite=on_nonfinite)
        params, trainer = make(SHAPES, {**OPTIMIZER, "wd": 0.01}, compression, **more)
        for step in range(4):
            if extra and step == 2:
                refuse(params, trainer, 10, *calls)
            backward(params, gradients(step, SHAPES))
            trainer.step(1)
        return state_of(params, trainer)

    assert_same(train(True), train(False))


@pytest.mark.parametrize("averages", [True, False])
def test_an_update_that_finds_a_stale_gradient_changes_nothing(averages):
    params, trainer = make(SHAPES, {**OPTIMIZER, "wd": 0.01}, ONEBIT)
    for step in range(2):
        backward(params, gradients(step, SHAPES))
        trainer.allreduce_grads(1)
        trainer.update(1)
    before = state_of(params, trainer)
    backward(params[1:], gradients(2, SHAPES)[1:])
    if averages:
        trainer.allreduce_grads(1)
    with pytest.raises(UserWarning, match="`p0` on context"):
        trainer.update(1)
    with trainer.not_applied():  # takes the exchange back
        pass
    assert_same(state_of(params, trainer), before)


def test_if_it_cannot_be_taken_back_the_script_says_how_it_goes_on():
    def train(extra):
        params, trainer = make(SHAPES, {"learning_rate": 0.1}, TOPK, optimizer="refusing")
        for step in range(4):
            if extra and step == 2:
                refuse(params, trainer, step, "step")
                for _ in range(2):
                    backward(params, gradients(step + 1, SHAPES))
                    with pytest.raises(RuntimeError, match=r"call trainer.applied\(\) on all work"):
                        trainer.step(1)
                trainer.applied()
                continue
            backward(params, gradients(step, SHAPES))
            trainer.step(1)
        return {name: a for name, a in state_of(params, trainer).items() if "weight" not in name}

    assert_same(train(True), train(False))


def test_an_update_that_raises_is_no_error_where_an_exchange_leaves_no_trace():
    params, trainer = make(SHAPES, {"learning_rate": 0.1}, None, optimizer="refusing")
    refuse(params, trainer, 0, "step")
    backward(params, gradients(1, SHAPES))
    trainer.step(1)
    assert trainer._averaging.steps == 1


def test_a_script_that_applies_averages_itself_says_so(logged):
    def train(says):
        params, trainer = make([(90,)], {"learning_rate": 1.0}, {**ONEBIT, "momentum": None})
        given = np.zeros(90, np.float32)
        for step in range(30):
            values = gradients(step, [(90,)]) if step < 10 else [np.zeros(90, np.float32)]
            backward(params, values)
            trainer.allreduce_grads(1)
            params[0].set_data(params[0].data() - params[0].grad())
            given -= values[0]
            if says:
                trainer.applied()
        return np.abs(params[0].data().asnumpy() - 1 - given).max()

    error = train(False)
    assert "call trainer.applied() afterwards" in logged.text
    assert train(True) < error / 10


@pytest.mark.parametrize("call", ["step", "update"])
def test_an_update_where_nothing_is_applied_is_refused(call):
    params, trainer = make(SHAPES, dict(OPTIMIZER), ONEBIT, optimizer="nag")
    backward(params, gradients(0, SHAPES))
    before = params[0].data().asnumpy()
    with pytest.raises(RuntimeError, match=rf"{call}\(\) updates parameters.*not_applied\(\)"):
        with trainer.not_applied():
            trainer.allreduce_grads(1)
            getattr(trainer, call)(1)
    np.testing.assert_array_equal(params[0].data().asnumpy(), before)
    backward(params, gradients(1, SHAPES))
    trainer.step(1)


@pytest.mark.parametrize("remedy", ["update", "not_applied"])
def test_states_are_saved_before_an_exchange_or_after_its_update(remedy, tmp_path):
    def train(saves):
        params, trainer = make(SHAPES, dict(OPTIMIZER), ONEBIT, optimizer="nag")
        for step in range(4):
            backward(params, gradients(step, SHAPES))
            trainer.allreduce_grads(1)
            if step == 2 and saves:
                with pytest.raises(RuntimeError, match=r"save_states\(\) cannot save.* of p2, "):
                    trainer.save_states(str(tmp_path / "states"))
            if step != 2 or remedy == "update":
                trainer.update(1)
            if step == 2 and saves:
                if remedy == "not_applied":
                    with trainer.not_applied():
                        pass
                trainer.save_states(str(tmp_path / "states"))
                trainer.load_states(str(tmp_path / "states"))
        return state_of(params, trainer)

    assert_same(train(True), train(False))


def test_a_cluster_is_suspended_without_an_exchange_that_is_not_applied():
    def train(suspends):
        bps.init()
        params, _ = make(SHAPES, {})
        options = dict(optimizer_params=dict(OPTIMIZER), compression_params=ONEBIT)
        trainer = bps.DistributedTrainer(params, "nag", **options)
        for step in range(4):
            backward(params, gradients(step, SHAPES))
            if step == 2:
                trainer.allreduce_grads(1)
            else:
                trainer.step(1)
            if step == 2 and suspends:
                bps.suspend()
                bps.resume(1, 0)
        result = state_of(params, trainer)
        bps.shutdown()
        return result

    assert_same(train(True), train(False))


def test_averages_of_a_block_that_raised_are_not_applied():
    params, trainer = make(SHAPES, dict(OPTIMIZER), ONEBIT, optimizer="nag")
    backward(params, gradients(0, SHAPES))
    before = params[0].data().asnumpy()
    with pytest.raises(KeyError), trainer.not_applied():
        trainer.allreduce_grads(1)
        raise KeyError
    trainer.update(1, ignore_stale_grad=True)
    np.testing.assert_array_equal(params[0].data().asnumpy(), before)


def test_an_exchange_that_did_not_start_is_not_taken_back():
    def train(fails):
        params, trainer = make(SHAPES, dict(OPTIMIZER), ONEBIT, optimizer="nag")
        for step in range(4):
            if fails and step == 2:
                params[0].cast("float64")
                backward(params[:1], gradients(9, SHAPES)[:1])
                with pytest.raises(ValueError, match="must have 210 elements of float32"):
                    trainer.allreduce_grads(1)
                params[0].cast("float32")
            backward(params, gradients(step, SHAPES))
            trainer.allreduce_grads(1)
            trainer.update(1)
        return state_of(params, trainer)

    assert_same(train(True), train(False))


def test_an_algorithm_has_no_exchanges_to_take_back():
    algorithm = {"name": "local_steps", "every": 2}
    _, trainer = make(SHAPES, {"learning_rate": 0.1}, None, algorithm=algorithm)
    with pytest.raises(RuntimeError, match="not_applied"):
        with trainer.not_applied():
            pass


CORRECTED = {**ONEBIT, "ef": "corrected"}
COMPRESSIONS = {
    "uncompressed": None,
    "onebit": CORRECTED,
    "topk": TOPK,
    "gathered": EXAMPLES["dgc"],
    "stateless": {"compressor": "onebit", "scaling": True},
    "drawn": {"compressor": "blockwise", "stochastic": True, "seed": 7, "ef": "vanilla"},
}


def with_and_without_extra_steps(compression, folder=None):
    """Return the states after training with a step of each of KINDS before each step, and without.

    Worker 1 has the infinity of a step that is skipped. With a folder, the states are saved and
    loaded midway.
    """
    states = []
    for kinds in (KINDS, []):
        params = parameters(SHAPES)
        trainer = bps.DistributedTrainer(
            params, "nag", dict(OPTIMIZER), compression_params=compression, on_nonfinite="skip"
        )
        for step in range(4):
            trainer.set_learning_rate(0.1 / (1 + step))
            for number, kind in enumerate(kinds):
                extra = gradients_of(bps.rank(), 10 * step + number + 100, SHAPES)
                if kind == "skipped" and bps.rank() == 1:
                    extra[-1].ravel()[-1] = np.inf
                backward(params, extra)
                leave_out(trainer, kind)
            backward(params, gradients_of(bps.rank(), step, SHAPES))
            trainer.step(1)
            if step == 1 and folder:
                file = f"{folder}/{bps.rank()}"
                trainer.save_states(file)
                trainer.load_states(file)
        states.append(state_of(params, trainer))
    return states


def check(results):
    for ours, expected in results:
        assert_same(ours, expected)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_no_step_that_is_left_out_comes_back_from_servers(compression, tmp_path):
    job = {"compression": COMPRESSIONS[compression], "folder": str(tmp_path)}
    check(run(with_and_without_extra_steps, job, servers=2, variables=VARIABLES))


@pytest.mark.parametrize("compression", ["onebit", "drawn"])
@on_each_engine
def test_no_step_that_is_left_out_comes_back_from_other_workers(start, compression):
    job = {"compression": COMPRESSIONS[compression]}
    check(start(with_and_without_extra_steps, job, variables=VARIABLES))


def test_no_step_that_is_left_out_comes_back_from_several_workers_of_a_machine_and_a_server():
    variables = {**VARIABLES, "BYTEPS_LOCAL_SIZE": 2}
    check(run(with_and_without_extra_steps, {"compression": CORRECTED}, variables=variables))


def with_and_without_an_error(compression):
    """Return the states after training with an error about different weights, and without.

    The error is caught. Also returns the step that raised it; the second training has no such step.
    """
    states, last = [], None
    for other in (True, False):
        params = parameters(SHAPES, value=1)
        trainer = bps.DistributedTrainer(
            params, "sgd", {"learning_rate": 0.1}, compression_params=compression
        )
        for step in range(20):
            if not other and step == last:
                continue
            if other and step == 2 and bps.rank() == 1:
                params[0].set_data(params[0].data() + 0.5)
            backward(params, gradients_of(bps.rank(), step, SHAPES))
            try:
                trainer.step(1)
            except RuntimeError:
                last = step
                bps.broadcast_parameters(params)
        states.append(state_of(params, trainer))
    return states, last


@pytest.mark.parametrize("start", [run, run_machine])
def test_a_step_that_finds_different_weights_sends_nothing(start):
    results = start(with_and_without_an_error, {"compression": TOPK}, variables=VARIABLES)
    assert [last for _, last in results] == [16, 16]
    check([states for states, _ in results])
