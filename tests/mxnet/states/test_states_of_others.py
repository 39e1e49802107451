"""load_states with strict=False: files from another cluster, and of other parameters."""

import re

import numpy as np
import pytest

from gluon_gc import state as checkpoint
from gluon_gc.state import Key
from tests.mxnet.states.test_states import SHAPES, contents, rewrite, trained, write

DITHERING = {"compressor": "dithering", "k": 8, "seed": 7, "ef": "vanilla"}


@pytest.fixture
def three(tmp_path):
    """Return the files of three workers with different residuals and momenta."""
    files = [str(tmp_path / name) for name in ("b", "a", "c")]
    for rank, file in enumerate(files):
        trained(steps=rank + 1)[1].save_states(file)
        as_of_three(file, rank)
    return files


def as_of_three(file, rank, **header):
    """Make a file look like one of three workers'; only rank 0's has the aggregator's states."""
    states = checkpoint.read(file)
    arrays = {p: a.copy() for p, a in states.arrays.items() if rank == 0 or p.node != "aggregator"}
    parameters = [{**one, "senders": 3} for one in states.header["parameters"]]
    of_three = dict(world_size=3, rank=rank, steps=9, parameters=parameters)
    write(file, states._replace(header={**states.header, **of_three, **header}, arrays=arrays))


def arrays_of(file):
    return checkpoint.read(str(file)).arrays


def assert_refused(files, message, trainer=None):
    trainer = trainer or trained()[1]
    before = contents(trainer)
    with pytest.raises(ValueError, match=message):
        trainer.load_states(files, strict=False)
    assert contents(trainer) == before


def test_residuals_of_the_workers_of_a_node_count_once(three, tmp_path):
    residual = Key(0, "worker", "residual")
    for file in three:
        states = checkpoint.read(file)
        arrays = {**states.arrays, residual: arrays_of(three[2])[residual].copy()}
        parameters = [{**one, "senders": 1} for one in states.header["parameters"]]
        header = {**states.header, "parameters": parameters}
        write(file, states._replace(header=header, arrays=arrays))
    _, trainer = trained()
    trainer.load_states(three, strict=False)
    trainer.save_states(str(tmp_path / "again"))
    again, before = arrays_of(tmp_path / "again"), arrays_of(three[2])
    np.testing.assert_allclose(again[residual], before[residual], rtol=1e-6)


def test_an_aggregator_that_every_worker_has_saved_counts_once(three, tmp_path):
    """Files of older versions from one machine's workers have it."""
    before = arrays_of(three[0])
    for file in three[1:]:
        states = checkpoint.read(file)
        own = {key: a.copy() for key, a in states.arrays.items() if key.node != "aggregator"}
        copies = {key: a.copy() for key, a in before.items() if key.node == "aggregator"}
        write(file, states._replace(arrays={**own, **copies}))
    _, trainer = trained()
    trainer.load_states(three, strict=False)
    trainer.save_states(str(tmp_path / "again"))
    again = arrays_of(tmp_path / "again")
    for key in {key for key in before if key.node == "aggregator"}:
        np.testing.assert_array_equal(again[key], before[key])


def test_a_single_file_must_have_the_aggregators(tmp_path):
    """With Horovod each worker saves some of them."""
    file = str(tmp_path / "file")
    trained(steps=3)[1].save_states(file)
    states = checkpoint.read(file)
    own = {key: a.copy() for key, a in states.arrays.items() if key.node != "aggregator"}
    write(file, states._replace(arrays=own))
    missing = "the aggregator's residual of 'p0' is missing there, but .*: pass the files of all"
    assert_refused(file, missing)


def test_as_many_workers_take_their_own(tmp_path):
    file = str(tmp_path / "file")
    _, saved = trained(steps=3)
    saved.save_states(file)
    _, trainer = trained()
    trainer.load_states([file], strict=False)
    assert contents(trainer)[1] == contents(saved)[1]


def test_a_rank_that_is_missing_or_there_twice_is_named(three):
    assert_refused(three[1:], r"all 3 workers are needed, but those of ranks \[0\] are missing")
    assert_refused([], "must have one file for each rank, got none")
    rewrite(three[2], rank=1)
    assert_refused(three, f"'{three[1]}' and '{three[2]}' are both of rank 1")


@pytest.mark.parametrize("key, value", [("steps", 8), ("world_size", 4)])
def test_files_of_several_steps_or_clusters_are_refused(three, key, value):
    rewrite(three[1], **{key: value})
    message = f"'{three[1]}' and '{three[0]}' were not saved together: the {key} is {value} in one"
    assert_refused(three, message)


def test_a_list_of_files_is_for_those_who_say_so(three):
    with pytest.raises(ValueError, match="a list of files needs strict=False"):
        trained()[1].load_states(three)


def test_what_is_wrong_with_one_of_many_is_still_wrong(three):
    assert_refused(
        three,
        "the compressor of parameter 0 .* is onebit there, but dithering here",
        trained(DITHERING, steps=1)[1],
    )
    assert_refused(three[0], "the world_size is 3 there, but 1 here")
    with open(three[1], "r+b") as file:
        file.truncate(200)
    assert_refused(three, f"'{three[1]}' is damaged")


def test_parameters_may_be_new_or_gone(tmp_path, logged):
    file = str(tmp_path / "file")
    _, saved = trained(steps=3)
    saved.save_states(file)
    states = checkpoint.read(file)
    for parameter, name in zip(states.header["parameters"], ("p1", "p7")):
        parameter["name"] = name
    parameters = states.header["parameters"]
    write(file, states._replace(header={**states.header, "parameters": parameters}))
    _, trainer = trained(shapes=[(5,), SHAPES[0], (11,)])
    with pytest.raises(ValueError, match="the number of parameters is 2 there, but 3 here"):
        trainer.load_states(file)
    trainer.load_states(file, strict=False)
    assert re.search(r"\['p7'\] are ignored.*\['p0', 'p2'\] start from zero", logged.text)
    trainer.save_states(str(tmp_path / "again"))
    again = arrays_of(tmp_path / "again")
    for key, array in arrays_of(file).items():
        if key.tensor == 0 and key.what != "stream":
            np.testing.assert_array_equal(again[key._replace(tensor=1)], array)
    assert not again[Key(0, "worker", "residual")].any()
    states, other = trainer._updaters[0].states, saved._updaters[0].states
    assert states.keys() == {1} and other.keys() == {0, 1}
