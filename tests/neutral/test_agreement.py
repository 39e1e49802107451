"""Workers with equal facts go on; otherwise all get an error that names the first difference."""

import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluon_gc.exchange import agreement

MESSAGE_BYTES = 60_000  # about the limit of a message to MXNet's servers


def outcomes(*of_workers):
    """Return the error of `reach` in each worker, given each worker's facts; None: no error."""
    workers = len(of_workers)
    barrier, messages, results = threading.Barrier(workers, timeout=10), {}, [None] * workers

    def work(rank):
        def ask(message):
            text = json.dumps(message)
            assert len(text) < MESSAGE_BYTES
            barrier.wait()
            messages[rank] = json.loads(text)
            barrier.wait()
            return agreement.compare([messages[other] for other in range(workers)])

        try:
            agreement.reach(rank, of_workers[rank], ask)
        except RuntimeError as error:
            results[rank] = str(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def tensors(count, **more):
    return [(f"the gradient of w{i}", {"elements": i, "k": 0.1, **more}) for i in range(count)]


@pytest.mark.parametrize("count", [0, 1, 31, 33, 5000])
def test_the_same_facts_are_agreed_on(count):
    assert outcomes(*[tensors(count)] * 3) == [None] * 3


@pytest.mark.parametrize("which", [0, 40, 4999])
def test_the_subject_the_key_and_both_values_are_told_to_all(which):
    other = tensors(5000)
    other[which][1]["k"] = 0.5
    problem = f"worker 2 has k 0.5 for the gradient of w{which}, but worker 0 has 0.1"
    said = outcomes(tensors(5000), tensors(5000), other)
    assert said == [f"the workers do not fit together: {problem}"] * 3


def test_something_that_only_one_worker_has_is_told():
    (said, *_) = outcomes(tensors(3), tensors(4))
    assert said.endswith("worker 1 has the gradient of w3, which worker 0 does not have")
    (said, *_) = outcomes(tensors(33), tensors(32))
    assert said.endswith("worker 0 has the gradient of w32, which worker 1 does not have")
    (said, *_) = outcomes([("w", {"a": 1})], [("w", {"a": 1, "seed": 7})])
    assert said.endswith("worker 1 has seed 7 for w, but worker 0 has none")


def test_settings_are_compared_without_being_stated(monkeypatch):
    monkeypatch.setenv("BYTEPS_PARTITION_BYTES", "4000")
    messages = []
    agreement.reach(0, [], lambda message: messages.append(message) or {})
    monkeypatch.setenv("BYTEPS_PARTITION_BYTES", "8000")
    agreement.reach(1, [], lambda message: messages.append(message) or {})
    assert agreement.compare(messages) == {"block": 0}


def test_subjects_may_be_called_otherwise():
    renamed = [(f"the gradient of net{i}", facts) for i, (_, facts) in enumerate(tensors(3))]
    assert outcomes(tensors(3), renamed) == [None, None]


@given(st.lists(st.dictionaries(st.text(max_size=3), st.floats(allow_nan=False))), st.data())
def test_any_change_of_a_value_is_noticed(values, data):
    facts = [(f"w{i}", one) for i, one in enumerate(values)]
    changed = [(subject, dict(one)) for subject, one in facts]
    keys = [(i, key) for i, (_, one) in enumerate(facts) for key in one]
    if keys:
        i, key = data.draw(st.sampled_from(keys))
        changed[i][1][key] = "something else"
        assert all("something else" in said for said in outcomes(facts, changed))


def test_long_values_are_compared_by_their_digests():
    facts = [[("w", {"shape": [i] * 10_000})] for i in (1, 2)]
    (said, *_) = outcomes(*facts)
    assert "SHA-256" in said and len(said) < 500
