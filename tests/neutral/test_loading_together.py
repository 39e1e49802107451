"""Either all workers load a checkpoint, or none does."""

import functools

import pytest

from gluon_gc.exchange import agreement
from gluon_gc.state import States, fitting
from gluon_gc.state.fitting import if_all_can


def agreeing(stated):
    """Return an `agree` for two workers; `stated` has the values that differ on the other one."""

    def agree(facts):
        (subject, values), *_ = facts
        others = [(subject, {**values, **stated})]
        answers = iter(())

        def ask(message):
            nonlocal answers
            own = {**message, "rank": 0}
            other = dict(own, rank=1)
            if "digests" in own:
                other["digests"] = [str(others)] if stated else own["digests"]
            else:
                other["facts"] = [own["facts"][0], *([s, _texts(v)] for s, v in others)]
            return agreement.compare([own, other])

        agreement.reach(0, facts, ask)

    return agree


def _texts(values):
    return {key: f'"{value}"' for key, value in values.items()}


def facts(prepared):
    return [("load_states", {"file": prepared})]


def test_what_was_prepared_is_returned_if_all_agree():
    assert (
        if_all_can(agreeing({}), "load_states", "file", lambda: "of step 3", facts) == "of step 3"
    )


def test_the_other_workers_are_told_of_a_worker_that_refuses():
    messages = []

    def refuse():
        raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged"):
        if_all_can(messages.append, "load_states", "file", refuse, facts)
    assert messages == [[("load_states", {"file": "that it refuses"})]]


def test_its_own_error_says_more_than_that_of_the_comparison():
    def refuse():
        raise ValueError("damaged")

    def disagree(facts):
        raise RuntimeError("the workers do not fit together")

    with pytest.raises(ValueError, match="damaged"):
        if_all_can(disagree, "load_states", "file", refuse, facts)


def test_a_worker_whose_checkpoint_fits_hears_of_another_that_refuses():
    said = 'worker 1 has file "that it refuses" for load_states, but worker 0 has "of step 3"'
    with pytest.raises(RuntimeError, match=said):
        agree = agreeing({"file": "that it refuses"})
        if_all_can(agree, "load_states", "file", lambda: "of step 3", facts)


def saved(world_size, rank):
    return f"of {rank}", States({"world_size": world_size, "rank": rank, "steps": 1}, {}, b"")


def test_a_workers_own_file_must_be_of_its_rank_and_number_of_workers():
    check = functools.partial(
        fitting.by_rank, [saved(2, 1)], several=False, remedy="pass all files"
    )
    check(world_size=2, rank=1)
    others = (3, 1, "the world_size is 2 there.*pass all files"), (2, 0, "the rank is 1")
    for world_size, rank, said in others:
        with pytest.raises(ValueError, match=said):
            check(world_size=world_size, rank=rank)


def test_the_files_of_all_workers_may_be_of_another_number_of_workers():
    files = [saved(2, 1), saved(2, 0)]
    found = fitting.by_rank(files, several=True, world_size=3, rank=2, remedy="")
    assert [name for name, _ in found] == ["of 0", "of 1"]
