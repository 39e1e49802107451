"""The files of save_states: what is refused, and what stays when saving fails."""

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
from gluon_gc import checkpoint
from gluon_gc.mxnet import carried
from tests.test_trainer import make, train

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
    """All that a trainer carries from step to step."""
    states = trainer._updaters[0].get_states(dump_optimizer=False)
    arrays = carried.state(trainer._store, trainer._names())
    return states, {name: array.tobytes() for name, array in arrays.items()}


def assert_refused(file, trainer, message):
    """It is, with the file's name, and nothing has changed."""
    before = contents(trainer)
    with pytest.raises(ValueError, match=re.escape(f"'{file}' ") + message):
        trainer.load_states(str(file))
    assert contents(trainer) == before


@pytest.mark.parametrize(
    "here, message",
    [
        (None, "momentum is 0.9 there, but None here"),
        ({"compressor": "topk", "k": 3, "ef": "vanilla"}, "momentum is 0.9 there, but None here"),
        (
            {"compressor": "topk", "k": 3, "ef": "corrected", "momentum": "nesterov"},
            r"compression of parameter 0 \('p0' there, 'p0' here\) is .*onebit.* but .*topk",
        ),
        ({**ONEBIT, "ef": "vanilla"}, "compression of parameter 0 .*'corrected'.* but .*'vanilla'"),
        ({**ONEBIT, "ef": ""}, "compression of parameter 0 .*'ef': 'corrected'.* there, but"),
        ({**ONEBIT, "scaling": False}, "compression of parameter 0 .*True.* there, but .*False"),
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
    states = checkpoint.read(str(saved))
    checkpoint.write(str(saved), states._replace(header={**states.header, thing: 5}))
    assert_refused(saved, trained()[1], f"does not fit: the {thing} is 5 there, but {here} here")


def test_chunks_of_another_size_are_refused(saved, monkeypatch):
    monkeypatch.setenv("BYTEPS_PARTITION_BYTES", "240")
    missing = "0/0-120/aggregator/residual is .* there, but missing here; .*BYTEPS_PARTITION_BYTES"
    assert_refused(saved, trained()[1], f"does not fit: {missing}")


def test_a_flipped_bit_anywhere_is_refused(saved):
    data = saved.read_bytes()
    _, trainer = trained()
    for at in [0, 5, *np.linspace(18, len(data) - 1, 40).astype(int)]:
        damaged = bytearray(data)
        damaged[at] ^= 4
        saved.write_bytes(damaged)
        assert_refused(saved, trainer, "is (not a file of|damaged: its checksum)")


def test_a_file_that_is_cut_off_or_goes_on_is_refused(saved):
    data = saved.read_bytes()
    _, trainer = trained()
    for cut in (*np.linspace(0, len(data) - 1, 20).astype(int), len(data) + 1):
        saved.write_bytes((data + b"\0")[:cut])
        assert_refused(saved, trainer, "is (not a file of|damaged: its checksum)")


def test_a_file_of_another_format_is_refused(saved):
    saved.write_bytes(saved.read_bytes().replace(b"states 1\n", b"states 2\n", 1))
    assert_refused(saved, trained()[1], "has format 2, but this gluon_gc reads 1")


def test_a_stock_trainers_file_is_refused(tmp_path):
    weights, _ = make(SHAPES, SGD)
    trainer = mx.gluon.Trainer(weights, "sgd", dict(SGD))
    train(weights, trainer, SHAPES, 1)
    trainer.save_states(str(tmp_path / "stock"))
    message = "is not a file of .*; it may be one of gluon.Trainer.save_states"
    assert_refused(tmp_path / "stock", trained()[1], message)


def test_parameters_of_other_names_load(tmp_path):
    """Gluon counts the nets that a process has made."""
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
    assert contents(trainers[1])[1] == contents(trainers[0])[1]


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


def test_what_is_loaded_is_what_is_saved_before_any_step(saved, tmp_path):
    _, trainer = make(SHAPES, SGD, ONEBIT)
    trainer.load_states(str(saved))
    trainer.save_states(str(tmp_path / "again"))
    there, again = checkpoint.read(str(saved)), checkpoint.read(str(tmp_path / "again"))
    assert json.dumps(there.header) == json.dumps(again.header)
    assert there.arrays.keys() == again.arrays.keys()
    for name, array in there.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array, err_msg=name)


# Saving that fails


SAVE = """
    import os, resource, signal, sys
    import mxnet as mx, numpy as np
    from gluon_gc import checkpoint

    def save(value):
        states = checkpoint.States({"value": value}, {"a": np.full(300_000, value)}, b"")
        checkpoint.write(sys.argv[1], states)
"""


def run(code, file):
    code = textwrap.dedent(SAVE) + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", code, str(file)], capture_output=True, text=True, timeout=120
    )


def assert_whole(file, value):
    states = checkpoint.read(str(file))
    assert states.header["value"] == value
    assert (states.arrays["a"] == value).all()


@pytest.fixture
def old(tmp_path):
    folder = tmp_path / "states"
    folder.mkdir()
    states = checkpoint.States({"value": 1}, {"a": np.full(300_000, 1.0)}, b"")
    checkpoint.write(str(folder / "file"), states)
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
    checkpoint.write(str(old), checkpoint.States({}, {}, b""))
    new = f"{old}.{os.getpid()}.tmp"
    assert done == [new, (new, str(old)), str(old.parent)]


def test_a_link_goes_on_leading_to_the_file(old):
    link = old.parent / "latest"
    link.symlink_to(old.name)
    checkpoint.write(str(link), checkpoint.States({"value": 2.0}, {"a": np.full(1, 2.0)}, b""))
    assert link.is_symlink()
    assert_whole(old, 2.0)
