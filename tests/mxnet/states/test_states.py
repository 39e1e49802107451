"""The files of save_states: errors, and the old file if saving fails."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap

import mxnet as mx
import numpy as np
import pytest

import gluon_gc as bps
from gluon_gc import state as checkpoint
from gluon_gc.mxnet.state import tensor_states
from tests.mxnet.cluster.jobs import backward, gradients, make, train

SHAPES = [(40, 3), (7,)]
SGD = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}
ONEBIT = {"compressor": "onebit", "ef": "corrected", "momentum": "nesterov", "scaling": True}


def trained(params=ONEBIT, shapes=SHAPES, steps=2, optimizer_params=SGD):
    weights, trainer = make(shapes, optimizer_params, params)
    train(weights, trainer, shapes, steps)
    return weights, trainer


@pytest.fixture
def saved(tmp_path):
    file = tmp_path / "states"
    trained()[1].save_states(str(file))
    return file


def contents(trainer):
    """Return all states of a trainer."""
    states = trainer._updaters[0].get_states(dump_optimizer=False)
    numbers = {tensor.name: number for (number, _), tensor in trainer._averaging.tensors.items()}
    arrays = tensor_states.state(trainer._averaging.exchange, trainer._averaging.names())
    return states, {(numbers[p.tensor], *p[1:]): array.tobytes() for p, array in arrays}


def write(file, states):
    """Write states to a file."""
    layout = {key: (array.shape, array.dtype.name) for key, array in states.arrays.items()}
    arrays = states.arrays.items()
    checkpoint.write(str(file), states.header, layout, arrays, states.optimizer)


def rewrite(file, **header):
    """Change entries of a file's header."""
    states = checkpoint.read(str(file))
    write(file, states._replace(header={**states.header, **header}))


def assert_refused(file, trainer, message):
    """Check that loading fails with the file's name and changes nothing."""
    before = contents(trainer)
    with pytest.raises(ValueError, match=re.escape(f"'{file}' ") + message):
        trainer.load_states(str(file))
    assert contents(trainer) == before


@pytest.mark.parametrize(
    "here, message",
    [
        (None, "compressor of parameter 0 .* is onebit there, but None here"),
        (
            {"compressor": "onebit", "ef": "corrected"},
            "compression of parameter 0 .*'mu': 0.9.* there, but .*'mu': None",
        ),
        (
            {"compressor": "topk", "k": 3, "ef": "corrected", "momentum": "nesterov"},
            r"compressor of parameter 0 \('p0' there, 'p0' here\) is onebit there, but topk here",
        ),
    ],
)
def test_a_file_of_another_compression_is_refused(saved, here, message):
    assert_refused(saved, trained(here)[1], f"does not fit: the {message}")


@pytest.mark.parametrize(
    "shapes, message",
    [
        (
            [(40, 3), (8,)],
            r"shape of parameter 1 \('p1' there, 'p1' here\) is \[7\] there, but \[8\]",
        ),
        ([(3, 40), (7,)], r"shape of parameter 0 .* is \[40, 3\] there, but \[3, 40\] here"),
        ([(40, 3)], "number of parameters is 2 there, but 1 here"),
    ],
)
def test_a_file_of_other_parameters_is_refused(saved, shapes, message):
    assert_refused(saved, trained(shapes=shapes)[1], f"does not fit: the {message}")


@pytest.mark.parametrize("thing, here", [("rank", 0), ("world_size", 1)])
def test_a_file_of_another_rank_or_number_of_workers_is_refused(saved, thing, here):
    rewrite(saved, **{thing: 5})
    remedy = "; pass the files of all workers" if thing == "world_size" else "$"
    message = f"does not fit: the {thing} is 5 there, but {here} here{remedy}"
    assert_refused(saved, trained()[1], message)


def test_a_file_of_another_format_is_refused(saved):
    saved.write_bytes(saved.read_bytes().replace(b"states 4\n", b"states 3\n", 1))
    assert_refused(saved, trained()[1], "has format 3, but this gluon_gc reads 4")


@pytest.mark.parametrize("optimizer, params", [("adam", {}), ("sgd", SGD), ("nag", SGD)])
@pytest.mark.parametrize("compression", [{"compressor": "onebit"}, ONEBIT])
def test_a_stock_trainers_file_loads_the_optimizers_state(
    tmp_path, logged, optimizer, params, compression
):
    """If the compressor applies momentum, it starts from zero, and the optimizer applies none."""
    if "momentum" in compression and not params:
        pytest.skip("adam has no momentum that a compressor could apply")
    weights, _ = make(SHAPES, SGD)
    stock = mx.gluon.Trainer(weights, optimizer, dict(params))
    train(weights, stock, SHAPES, 3)
    stock.save_states(str(tmp_path / "stock"))
    going_on = []
    for loads in (True, False):
        here, _ = make(SHAPES, SGD)
        for a, b in zip(here, weights):
            a.set_data(b.data())
        trainer = bps.DistributedTrainer(
            here, optimizer, dict(params), compression_params=compression, kvstore="local"
        )
        if loads:
            trainer.load_states(str(tmp_path / "stock"))
        else:
            with open(tmp_path / "stock", "rb") as file:
                trainer._updaters[0].set_states(file.read())
            trainer._optimizer = trainer._updaters[0].optimizer
            if "momentum" in compression:
                trainer._updaters[0].states.clear()
        going_on.append(train(here, trainer, SHAPES, 3))
    for loaded, expected in zip(*going_on):
        np.testing.assert_allclose(loaded, expected, rtol=1e-5, atol=1e-6)
    assert "momentum of compression start from zero" in logged.text


def test_what_was_carried_over_is_gone_after_a_stock_trainers_file(tmp_path):
    weights, _ = make(SHAPES, SGD)
    stock = mx.gluon.Trainer(weights, "sgd", dict(SGD))
    train(weights, stock, SHAPES, 1)
    stock.save_states(str(tmp_path / "stock"))
    _, trainer = trained()
    trainer.load_states(str(tmp_path / "stock"))
    _, arrays = contents(trainer)
    assert not any(any(array) for array in arrays.values())


def test_a_stock_trainers_file_that_does_not_fit_is_refused(tmp_path):
    file = tmp_path / "stock"
    weights, _ = make([*SHAPES, (3,)], SGD)
    stock = mx.gluon.Trainer(weights, "sgd", {**SGD, "momentum": 0.5})
    train(weights, stock, [*SHAPES, (3,)], 1)
    stock.save_states(str(file))
    assert_refused(
        file, trained()[1], "does not fit: it has states of parameter 2, but there are 2"
    )
    message = "does not fit: the momentum is 0.5 there, but 0.9 here"
    assert_refused(file, trained(shapes=[*SHAPES, (3,)])[1], message)
    file.write_bytes(b"\x80 and nothing that pickle knows")
    assert_refused(file, trained()[1], "is not a file of .*, nor of gluon.Trainer's")


def test_parameters_in_another_order_are_told_by_their_names(saved):
    here, _ = make(SHAPES, SGD)
    for a, b in zip(here, trained()[0]):
        a.set_data(b.data())
    other = bps.DistributedTrainer(
        here[::-1], "sgd", dict(SGD), compression_params=ONEBIT, kvstore="local"
    )
    other.load_states(str(saved))
    backward(here, gradients(2, SHAPES))
    other.step(2)
    expected, trainer = trained()
    backward(expected, gradients(2, SHAPES))
    trainer.step(2)
    for a, b in zip(here, expected):
        np.testing.assert_array_equal(a.data().asnumpy(), b.data().asnumpy())


def test_parameters_of_other_names_load_in_their_order(tmp_path, logged):
    """Gluon's names count the networks of the process."""
    trainers = []
    for net in [mx.gluon.nn.Dense(2, in_units=3) for _ in range(2)]:
        net.initialize()
        params = net.collect_params()
        trainer = bps.DistributedTrainer(
            params, "sgd", dict(SGD), compression_params=ONEBIT, kvstore="local"
        )
        train(list(params.values()), trainer, [(2, 3), (2,)], 2 + len(trainers))
        trainers.append(trainer)
    trainers[0].save_states(str(tmp_path / "states"))
    assert contents(trainers[1]) != contents(trainers[0])
    trainers[1].load_states(str(tmp_path / "states"))
    assert "its parameters have other names, and are matched by their order" in logged.text
    assert contents(trainers[1])[1] == contents(trainers[0])[1]


@pytest.mark.parametrize("form", [dict, list])
@pytest.mark.parametrize("has_positions", [True, False], ids=["new", "old"])
@pytest.mark.parametrize(
    "there, here",
    [
        (["dense8", "dense9"], ["dense9", "dense10"]),
        (["dense9", "dense10"], ["dense10", "dense11"]),
        (["dense9", "dense10"], ["dense99", "dense100"]),
        (["stem", "body"], ["z", "y"]),
    ],
    ids="->".join,
)
def test_parameters_of_other_names_load_in_the_order_of_the_network(
    tmp_path, there, here, has_positions, form
):
    """gluon.Trainer sorts the names of a dict as text, and older files have no positions."""
    if (there[0], has_positions, form) == ("stem", False, dict):
        pytest.skip("an older file does not have the order of names without numbers")
    file, shapes = tmp_path / "states", [(40,), (40,)]

    def made(names):
        params = {name: mx.gluon.Parameter(name, shape=(40,)) for name in names}
        for param in params.values():
            param.initialize(mx.init.One())
        trainer = bps.DistributedTrainer(
            params if form is dict else list(params.values()),
            "adam",
            compression_params={"compressor": "onebit", "scaling": True, "ef": "vanilla"},
            kvstore="local",
        )
        return list(params.values()), trainer

    params, trainer = made(there)
    train(params, trainer, shapes, 3)
    trainer.save_states(str(file))
    if not has_positions:
        parameters = checkpoint.read(str(file)).header["parameters"]
        rewrite(file, parameters=[without(parameter, "position") for parameter in parameters])
    resumed, other = made(here)
    for param, saved in zip(resumed, params):
        param.set_data(saved.data())
    other.load_states(str(file))
    expected = train(params, trainer, shapes, 2)
    for ours, theirs in zip(train(resumed, other, shapes, 2), expected):
        np.testing.assert_array_equal(ours, theirs)


def sharing_a_name(shapes=SHAPES):
    """Return two parameters of one name, and their trainer."""
    params = [mx.gluon.Parameter("w", shape=shape) for shape in shapes]
    for param in params:
        param.initialize(mx.init.One())
    trainer = bps.DistributedTrainer(
        params, "sgd", dict(SGD), compression_params=ONEBIT, kvstore="local"
    )
    return params, trainer


def test_parameters_that_share_a_name_load_in_their_order(tmp_path, logged):
    params, trainer = sharing_a_name()
    train(params, trainer, SHAPES, 3)
    trainer.save_states(str(tmp_path / "states"))
    _, other = sharing_a_name()
    other.load_states(str(tmp_path / "states"))
    assert contents(other) == contents(trainer)
    assert "other names" not in logged.text


@pytest.mark.parametrize("strict", [True, False])
def test_parameters_that_share_a_name_do_not_load_in_another_order(tmp_path, strict):
    file = str(tmp_path / "states")
    sharing_a_name()[1].save_states(file)
    _, other = sharing_a_name(SHAPES[::-1])
    said = f"'{file}' does not fit, because it has the name 'w' twice"
    with pytest.raises(ValueError, match=re.escape(said)):
        other.load_states(file, strict=strict)


@pytest.mark.parametrize(
    "algorithm", ["powersgd", "local_steps", {"name": "onebit_adam", "freeze_step": 1}]
)
def test_parameters_that_share_a_name_are_refused_with_an_algorithm(algorithm):
    name = algorithm if isinstance(algorithm, str) else algorithm["name"]
    said = f"algorithm {name} needs a name for each parameter, but params has the name 'w' twice"
    params, _ = sharing_a_name()
    with pytest.raises(ValueError, match=said):
        bps.DistributedTrainer(params, "adam", algorithm=algorithm, kvstore="local")


def without(mapping, key):
    return {name: value for name, value in mapping.items() if name != key}


def test_parameters_that_were_frozen_for_a_while_load_in_any_order(tmp_path):
    shapes = [(20,), (20,)]
    weights, trainer = make(shapes, SGD, ONEBIT)
    weights[1].grad_req = "null"
    train(weights[:1], trainer, shapes[:1], 1)
    weights[1].grad_req = "write"
    train(weights, trainer, shapes, 1)
    trainer.save_states(str(tmp_path / "states"))
    _, other = make(shapes, SGD, ONEBIT)
    other.load_states(str(tmp_path / "states"))
    assert contents(other)[1] == contents(trainer)[1]


def trained_while_frozen(frozen_in, reloaded=None, file=None):
    """Return the weights after 6 steps; weight 1 is frozen in the steps of the range `frozen_in`.

    Before the step `reloaded`, the trainer is saved, and a new one loads the file twice.
    """
    shapes = [(20,), (20,)]
    weights, trainer = make(shapes, SGD, ONEBIT)
    for step in range(6):
        weights[1].grad_req = "null" if step in frozen_in else "write"
        for _ in range(2 if step == reloaded else 0):
            trainer.save_states(file)
            trainer = bps.DistributedTrainer(
                weights, "sgd", dict(SGD), compression_params=ONEBIT, kvstore="local"
            )
            trainer.load_states(file)
        used = weights[: 1 if step in frozen_in else 2]
        backward(used, gradients(step, shapes)[: len(used)])
        trainer.step(2)
    return [weight.data().asnumpy() for weight in weights]


@pytest.mark.parametrize("frozen_in", [range(2, 4), range(3, 4), range(3)], ids=str)
def test_the_state_of_a_frozen_parameter_is_saved_and_loaded(tmp_path, frozen_in):
    expected = trained_while_frozen(frozen_in)
    for ours, theirs in zip(trained_while_frozen(frozen_in, 3, str(tmp_path / "s")), expected):
        np.testing.assert_array_equal(ours, theirs)


def test_the_state_of_a_frozen_parameter_outlasts_two_suspensions():
    results = []
    for suspends in (True, False):
        bps.init()
        weights, _ = make(SHAPES, SGD)
        trainer = bps.DistributedTrainer(weights, "sgd", dict(SGD), compression_params=ONEBIT)
        train(weights, trainer, SHAPES, 2)
        weights[1].grad_req = "null"
        for _ in range(2):
            if suspends:
                bps.suspend()
                bps.resume(1, 1)
            train(weights[:1], trainer, SHAPES[:1], 1)
        weights[1].grad_req = "write"
        results.append(train(weights, trainer, SHAPES, 1))
        bps.shutdown()
    for resumed, expected in zip(*results):
        np.testing.assert_array_equal(resumed, expected)


def test_a_file_from_before_a_parameter_was_frozen_loads_and_keeps_its_state(saved, tmp_path):
    weights, trainer = make(SHAPES, SGD, ONEBIT)
    weights[1].grad_req = "null"
    trainer.load_states(str(saved))
    trainer.save_states(str(tmp_path / "again"))
    there, again = checkpoint.read(str(saved)), checkpoint.read(str(tmp_path / "again"))
    for key, array in there.arrays.items():
        np.testing.assert_array_equal(again.arrays[key], array)


def test_what_is_loaded_is_what_is_saved_before_any_step(saved, tmp_path):
    _, trainer = make(SHAPES, SGD, ONEBIT)
    trainer.load_states(str(saved))
    trainer.save_states(str(tmp_path / "again"))
    there, again = checkpoint.read(str(saved)), checkpoint.read(str(tmp_path / "again"))
    assert json.dumps(there.header) == json.dumps(again.header)
    assert there.arrays.keys() == again.arrays.keys()
    for name, array in there.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array, err_msg=name)


# Failures while saving


SAVE = """
    import os, resource, signal, sys
    import mxnet as mx, numpy as np
    from tests.mxnet.states.test_states import numbered, write

    def save(value):
        write(sys.argv[1], numbered(value))
"""


def numbered(value, count=300_000):
    key = checkpoint.Key(0, "worker", "residual")
    return checkpoint.States({"value": value}, {key: np.full(count, value)}, b"")


def run(code, file):
    code = textwrap.dedent(SAVE) + textwrap.dedent(code)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(file)]
    return subprocess.run(command, env=environ, capture_output=True, encoding="utf-8", timeout=120)


def assert_whole(file, value):
    states = checkpoint.read(str(file))
    assert states.header["value"] == value
    (array,) = states.arrays.values()
    assert (array == value).all()


@pytest.fixture
def old(tmp_path):
    folder = tmp_path / "states"
    folder.mkdir()
    write(folder / "file", numbered(1.0))
    return folder / "file"


def test_a_full_disk_leaves_the_old_file_and_nothing_else(old):
    process = run(
        """
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
        save(2.0)
        """,
        old,
    )
    assert process.returncode == 1 and "File too large" in process.stderr
    assert_whole(old, 1.0)
    assert os.listdir(old.parent) == [old.name]


def test_a_process_that_is_killed_while_it_saves_leaves_the_old_file(old):
    process = run(
        """
        sync = os.fsync
        def killed(descriptor):
            sync(descriptor)
            os.kill(os.getpid(), signal.SIGKILL)
        os.fsync = killed
        save(2.0)
        """,
        old,
    )
    assert process.returncode == -signal.SIGKILL
    assert_whole(old, 1.0)
    assert run("save(3.0)", old).returncode == 0
    assert_whole(old, 3.0)


def test_what_is_saved_is_on_disk_before_it_takes_its_place(old, monkeypatch):
    done = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda fd: (done.append(os.readlink(f"/proc/self/fd/{fd}")), sync(fd))
    )
    monkeypatch.setattr(os, "replace", lambda *names: (done.append(names), replace(*names)))
    write(old, checkpoint.States({}, {}, b""))
    new = f"{old}.{os.getpid()}.tmp"
    assert done == [new, (new, str(old)), str(old.parent)]


def test_a_link_goes_on_leading_to_the_file(old):
    link = old.parent / "latest"
    link.symlink_to(old.name)
    write(link, numbered(2.0))
    assert link.is_symlink()
    assert_whole(old, 2.0)
