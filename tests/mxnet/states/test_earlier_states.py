"""Files of save_states that an earlier version wrote are loaded bit for bit."""

import tarfile
from collections import defaultdict

import pytest

from gluon_gc import state as checkpoint
from gluon_gc.algorithms import in_full
from tests.saved.mxnet_states import BY_WORKERS, FILE, OTHERS, requests_to_load, run

CASES = [
    *((f"{case}{workers}-", workers) for workers, cases in BY_WORKERS.items() for case in cases),
    *((f"{case}{before}.{now}-", now) for before, now in OTHERS for case in BY_WORKERS[before]),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a function: the folder of the old files, in which workers have saved them again."""
    folder, done = tmp_path_factory.mktemp("states"), defaultdict(bool)
    with tarfile.open(FILE) as archive:
        archive.extractall(folder)
    requests = requests_to_load(folder, "again.")

    def saved_by(workers):
        if not done[workers]:
            run(requests[workers], workers)
            done[workers] = True
        return folder

    return saved_by


@pytest.mark.parametrize("name, workers", CASES, ids=[name for name, _ in CASES])
def test_what_workers_load_is_what_they_save(files, name, workers):
    folder = files(workers)
    for rank in range(workers):
        file, again = folder / f"{name}{rank}", folder / f"again.{name}{rank}"
        one, other = checkpoint.read(str(file)), checkpoint.read(str(again))
        algorithm = one.header.get("algorithm")
        full = {**one.header, "algorithm": algorithm and in_full(algorithm)}
        assert other.header == full
        assert {key: array.tolist() for key, array in other.arrays.items()} == {
            key: array.tolist() for key, array in one.arrays.items()
        }
        contents = again.read_bytes(), file.read_bytes()
        if full != one.header:  # the file lacks options of later versions
            contents = tuple(map(without_header, contents))
        assert contents[0] == contents[1]


def without_header(content):
    """Return a file's content but for the header and the checksum of 16 bytes."""
    version, _, arrays = content.split(b"\n", 2)
    return version, arrays[:-16]
