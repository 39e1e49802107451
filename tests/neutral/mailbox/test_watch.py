"""python -m gluon_gc.mailbox shows a run: its rounds, its workers, and what goes wrong."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from datetime import datetime, timezone
from types import SimpleNamespace

import numpy as np
import pytest

from gluon_gc.algorithms.local_steps import LocalSteps
from gluon_gc.compression import parse
from gluon_gc.exchange.plan import Tensor
from gluon_gc.mailbox import history, objects
from gluon_gc.mailbox.__main__ import draw, json_lines, main, text_lines
from gluon_gc.mailbox.history import History, WorkerRow
from gluon_gc.mailbox.packing import Packing
from gluon_gc.mailbox.participant import Contribution
from gluon_gc.mailbox.run import Run
from gluon_gc.mailbox.store import Store, StoreError
from tests.processes import clean_environ, free_port, heed_interrupts

KIND = "difference"
BEGIN = 1_700_000_000  # seconds since 1970
A, B, C, D, E = (f"{letter}-1-00000{letter}" for letter in "abcde")  # names of workers
NEW = "new-1-00000f"
SHAPES = {"w": (3, 4), "b": (4,)}


def entry(worker, weight=1.0, bytes=100, steps=None, seconds=None, loss=None):
    """Return what a result tells about a worker that it counts."""
    about = {"steps": steps, "seconds": seconds, "loss": loss}
    return {"worker": worker, "digest": "", "bytes": bytes, "weight": weight, **about}


class MadeRun:
    """A run in a folder, whose objects a test writes one by one."""

    def __init__(self, folder, kinds=(KIND,)):
        self.folder, self.store = folder, Store(str(folder))
        facts = [
            ["", {"framework": '"torch"'}],
            ["the algorithm", {"algorithm": '"local_steps"', "outer_lr": "0.7"}],
            ["parameter w", {"name": '"w"', "shape": "[3, 4]", "compressor": '"topk"', "k": "0.1"}],
            ["parameter b", {"name": '"b"', "shape": "[4]", "fp16": "false"}],
        ]
        self.store.put("job", objects.pack({"format": 1, "version": "1.2.3", "facts": facts}))
        for kind in kinds:
            self.state(0, kind=kind)

    def _put(self, name, header, at):
        self.store.put(name, objects.pack(header))
        os.utime(self.folder / name, (BEGIN + at, BEGIN + at))

    def state(self, number, kind=KIND):
        self._put(objects.state_name(kind, number), {"round": number, "arrays": []}, at=0)

    def payload(self, number, worker, at, kind=KIND):
        self._put(objects.payload_name(kind, number, worker), {}, at)

    def leaver(self, number, worker, kind=KIND):
        self._put(objects.leaver_name(kind, number, worker), {}, at=0)

    def result(self, number, at, *counted, excluded=None, left=(), kind=KIND):
        """Write a result, and the payloads of all workers that it names, one second before."""
        excluded = excluded or {}
        for worker in [*(each["worker"] for each in counted), *excluded]:
            self.payload(number, worker, at - 1, kind)
        header = {"counted": counted, "excluded": excluded, "left": left}
        self._put(objects.result_name(kind, number), header, at)

    def remove(self, number, kind=KIND):
        shutil.rmtree(self.folder / objects.round_folder(kind, number))


@pytest.fixture
def run(tmp_path):
    """Return a run that has only begun."""
    return MadeRun(tmp_path / "run")


def read(run):
    """Return the history of a run."""
    found = History(run.store)
    found.read()
    return found


def rounds_of(run):
    return history.round_rows(KIND, read(run).rounds[KIND])


def workers_of(run):
    rows = history.worker_rows(KIND, read(run).rounds[KIND])
    return {row.worker: row for row in rows}


def text_of(run, at=0):
    """Return the text of a run, `at` seconds after its begin."""
    found = read(run)
    now = datetime.fromtimestamp(BEGIN + at, timezone.utc)
    return "\n".join(text_lines(history.run_row(run.store.url, found.jobs), found.rounds, now))


# Rows


def test_the_row_of_a_run_has_its_settings(run):
    row = history.run_row(run.store.url, read(run).jobs)
    assert row == {
        "url": run.folder.as_uri(),
        "version": "1.2.3",
        "framework": "torch",
        "parameters": 16,
        "arrays": 2,
        "algorithm": {"algorithm": "local_steps", "outer_lr": 0.7},
        "compressors": {"topk k=0.1": 1, "none": 1},
    }


def test_the_row_of_a_round_sums_over_its_workers(run):
    run.result(1, 10, entry(A, 2.0, 100, loss=3.0), entry(B, 1.0, 50))
    run.result(2, 42, entry(A, 2.0, 100, loss=2.0), entry(B, 1.0, 50, loss=1.0))
    first, second = rounds_of(run)
    assert (first.round, first.weight, first.bytes, first.loss) == (1, 3.0, 150, 3.0)
    assert (second.round, second.weight, second.bytes, second.loss) == (2, 3.0, 150, 1.5)
    assert (first.seconds, second.seconds) == (None, 32.0)
    assert second.time == datetime.fromtimestamp(BEGIN + 42, timezone.utc)
    assert [each["worker"] for each in second.counted] == [A, B]


def test_the_row_of_a_round_tells_who_joined_went_was_late_or_excluded(run):
    run.result(1, 10, entry(A), entry(B), entry(C), entry(D))
    run.result(2, 20, entry(A), entry(E), excluded={C: "parameter w has a NaN"})
    run.payload(2, D, 21)
    row = rounds_of(run)[1]
    assert (row.joined, row.gone, row.late) == ([E], [B], [D])
    assert row.excluded == {C: "parameter w has a NaN"}


def test_a_worker_that_was_late_does_not_join_again(run):
    run.result(1, 10, entry(A), entry(B))
    run.result(2, 20, entry(A))
    run.payload(2, B, 21)
    run.result(3, 30, entry(A), entry(B))
    assert rounds_of(run)[2].joined == []


def test_the_first_round_that_is_left_tells_neither_seconds_nor_who_joined(run):
    run.state(6)
    run.result(7, 70, entry(A))
    (row,) = rounds_of(run)
    assert (row.round, row.seconds, row.joined) == (7, None, [])


def test_the_row_of_a_worker_has_its_share_and_its_speed(run):
    run.result(1, 10, entry(A, 1.0, steps=5, seconds=1.0))
    run.result(2, 20, entry(A, 3.0, steps=15, seconds=5.0, loss=0.5), entry(B, 1.0, steps=1))
    rows = workers_of(run)
    assert rows[A] == WorkerRow(KIND, A, 2, 0.75, 15, 2.5, 0.5, "counted", None, None)
    assert rows[B] == WorkerRow(KIND, B, 2, 0.25, 1, None, None, "counted", None, None)


def test_each_worker_has_its_status(run):
    workers = [f"{name}-1-abcdef" for name in ("here", "lost", "left", "late", "bad", "back")]
    here, lost, left, late, bad, back = workers
    run.result(4, 40, *map(entry, workers))
    run.result(5, 50, entry(here), left=[left], excluded={bad: "parameter w has a NaN"})
    run.payload(5, late, 51)
    run.payload(6, back, 52)
    rows = workers_of(run)
    statuses = {worker: row.status for worker, row in rows.items()}
    assert statuses == {
        here: "counted",
        lost: "missing",
        left: "left",
        late: "late",
        bad: "excluded",
        back: "back",
    }
    assert {rows[worker].since for worker in workers[1:]} == {5}
    assert rows[lost].since_time == datetime.fromtimestamp(BEGIN + 50, timezone.utc)


def test_the_row_of_the_open_round_tells_who_is_there_and_who_is_awaited(run):
    run.result(1, 10, entry(A), entry(B), entry(C))
    run.leaver(2, C)
    run.payload(2, A, 12)
    run.payload(2, NEW, 13)
    row = history.open_row(KIND, read(run).rounds[KIND])
    assert (row.round, row.awaited) == (2, [B])
    times = {worker: put.timestamp() - BEGIN for worker, put in row.present.items()}
    assert times == {A: 12, NEW: 13}


def test_files_that_other_programs_have_put_there_are_no_workers(run):
    run.result(1, 10, entry(A), entry(B))
    for name in (".DS_Store", "Thumbs.db"):
        run.payload(1, name, 11)
        run.payload(2, name, 12)
        run.leaver(2, name)
    (row,) = rounds_of(run)
    assert (row.late, row.joined) == ([], [])
    assert history.open_row(KIND, read(run).rounds[KIND]).present == {}


# A run that is cleaned up meanwhile


def test_rounds_that_are_removed_after_a_listing_are_left_out(run):
    run.result(1, 10, entry(A))
    run.result(2, 20, entry(A))
    listed, list_all = [], run.store.list

    def list_and_remove(prefix):
        listed.extend(list_all(prefix))
        run.remove(1)
        (run.folder / objects.state_name(KIND, 0)).unlink()
        return listed

    run.state(1)
    run.store.list = list_and_remove
    assert [row.round for row in rounds_of(run)] == [2]
    assert objects.result_name(KIND, 1) in {each.name for each in listed}


def test_rounds_that_are_removed_stay_known_to_who_has_read_them(run):
    run.result(1, 10, entry(A), entry(B))
    found = read(run)
    run.state(2)
    run.result(2, 20, entry(A))
    run.remove(1)
    found.read()
    rows = history.round_rows(KIND, found.rounds[KIND])
    assert [(row.round, row.seconds, row.gone) for row in rows] == [(1, None, []), (2, 10.0, [B])]


def test_real_workers_are_read_while_they_clean_up(tmp_path):
    """Two workers make 30 rounds, and remove most of them while a reader looks again and again."""
    params = {"w": parse({"compressor": "topk", "k": 2}), "b": parse(None)}
    dtypes = dict.fromkeys(SHAPES, "float32")
    url = str(tmp_path)

    def work(name):
        run = Run(url, "torch", min_workers=2, grace=0.02, keep=1, worker_name=name)
        run.join(LocalSteps(), params, SHAPES, dtypes)
        values = {key: np.ones(np.prod(shape), "float32") for key, shape in SHAPES.items()}
        tensors = [
            Tensor(key, array.size, "float32", params[key], index, key)
            for index, (key, array) in enumerate(values.items())
        ]
        worker = run.participant(KIND, Packing(tensors))
        worker.join({"anchor": values})
        for number in range(1, 31):
            about = {"steps": 5 * number, "seconds": float(number), "loss": 1 / number}
            state = {"anchor": values} if worker.saves else None
            worker.take_part(Contribution(values, 5.0, about), state)
        run.close()

    threads = [threading.Thread(target=work, args=[name]) for name in ("first", "second")]
    for thread in threads:
        thread.start()
    reader, seen = None, set()
    while any(thread.is_alive() for thread in threads):
        if reader is None and (tmp_path / "job").exists():
            reader = History(Store(url))
        if reader is not None:
            reader.read()
            fresh = History(Store(url))
            fresh.read()
            seen |= set(fresh.rounds[KIND].results)
    reader.read()
    rounds = reader.rounds[KIND]
    assert rounds.last == 30 and len(list((tmp_path / KIND / "rounds").glob("*/result"))) == 30
    assert len(list((tmp_path / KIND / "rounds").glob("*/payloads/*"))) < 10
    assert seen
    rows = history.worker_rows(KIND, rounds)
    assert [row.worker.split("-")[0] for row in rows] == ["first", "second"]
    assert [(row.share, row.steps, row.steps_per_second) for row in rows] == [(0.5, 150, 5.0)] * 2
    compressors = history.run_row(url, reader.jobs)["compressors"]
    assert sorted(compressors.values()) == [1, 1] and "none" in compressors


# Text, JSON and pictures


def test_the_text_tells_since_when_a_worker_is_missing(run):
    run.result(1, 10, entry(A), entry(B))
    run.result(2, 20, entry(A))
    assert "missing since round 2 (01:05 ago)" in text_of(run, at=85)
    assert "missing since round 2 (2:01:05 ago)" in text_of(run, at=20 + 2 * 3600 + 65)


def test_the_text_has_a_line_for_each_round(run):
    run.result(1, 10, entry(A, 8.0, 1_250_000, loss=2.5))
    run.result(2, 20, entry(A, 8.0, 1_250_000), excluded={B: "parameter w has a NaN"})
    lines = text_of(run).splitlines()
    first, second = (line for line in lines if line.startswith("     "))
    time = datetime.fromtimestamp(BEGIN + 10).strftime("%m-%d %H:%M:%S")
    assert first.split() == ["1", *time.split(), "1", "8", "1.25", "MB", "2.5000"]
    assert second.endswith(f"joined {B}; excluded {B}: parameter w has a NaN")


def test_each_kind_of_round_has_its_tables(tmp_path):
    run = MadeRun(tmp_path / "run", kinds=("difference.0", "difference.1"))
    run.result(1, 10, entry(A), kind="difference.1")
    text = text_of(run)
    first, second = text.index("Rounds of difference.0"), text.index("Rounds of difference.1")
    assert "Round 1 is open" in text[first:second] and "Round 2 is open" in text[second:]


def test_a_run_in_a_subfolder_is_another_one(tmp_path):
    MadeRun(tmp_path).result(1, 10, entry(A))
    MadeRun(tmp_path / "other").result(1, 20, entry(B))
    read = History(Store(str(tmp_path)))
    read.read()
    assert set(read.rounds) == {KIND}


def test_a_run_of_shards_is_shown_as_one(tmp_path):
    shards = [MadeRun(tmp_path / "run" / f"shard-{number}-of-2") for number in range(2)]
    shards[1].result(1, 10, entry(A))
    text = text_of(SimpleNamespace(store=Store(str(tmp_path / "run"))))
    assert "parameters  32 in 4 arrays" in text
    first, second = (text.index(f"Rounds of shard-{number}-of-2/{KIND}") for number in range(2))
    assert "Round 1 is open" in text[first:second] and "Round 2 is open" in text[second:]


def test_each_line_is_a_json_object_without_nan(run):
    run.result(1, 10, entry(A, loss=float("nan")))
    found = read(run)
    lines = list(json_lines(history.run_row(run.store.url, found.jobs), found.rounds))
    strict = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert [each["about"] for each in strict] == ["run", "round", "worker", "open"]
    assert strict[1]["counted"][0]["loss"] is None


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_picture_is_written(run, suffix):
    pytest.importorskip("matplotlib")
    run.result(1, 10, entry(A, loss=2.0), entry(B))
    run.result(2, 20, entry(A, loss=1.0), excluded={B: "parameter w has a NaN"})
    run.payload(2, C, 21)
    path = run.folder.parent / f"picture.{suffix}"
    draw(run.store.url, read(run).rounds, str(path))
    content = path.read_bytes()
    if suffix == "png":
        assert content.startswith(b"\x89PNG")
    else:
        for text in (A, B, C, "loss", "late", "excluded", run.folder.as_uri()):
            assert f"<!-- {text} -->".encode() in content


def test_a_run_without_rounds_is_drawn(run):
    pytest.importorskip("matplotlib")
    assert main([str(run.folder), "--plot", str(run.folder / "picture.svg")]) == 0
    assert (run.folder / "picture.svg").exists()


# The command


def test_without_matplotlib_the_error_says_how_to_install_it(run, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([str(run.folder), "--plot", "picture.svg"]) == 1
    assert "pip install matplotlib" in capsys.readouterr().err


def command(*arguments):
    return [sys.executable, "-m", "gluon_gc.mailbox", *arguments]


def environ(**variables):
    return {**clean_environ(), **variables}


@pytest.mark.parametrize(
    "url, problem",
    [
        ("ftp://server/run", "mailbox must be a path"),
        ("{folder}/missing", "the folder does not exist"),
        ("{folder}", "no run at file://"),
        ("s3://bucket/run", "cannot get 'job'"),
    ],
)
def test_an_error_is_one_line(tmp_path, url, problem):
    variables = environ(
        AWS_ENDPOINT_URL=f"http://127.0.0.1:{free_port()}",
        AWS_ACCESS_KEY_ID="key",
        AWS_SECRET_ACCESS_KEY="secret",
        AWS_REGION="us-east-1",
        NO_PROXY="127.0.0.1",
    )
    ended = subprocess.run(
        command(url.format(folder=tmp_path)),
        env=variables,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    assert ended.returncode == 1 and ended.stdout == ""
    assert problem in ended.stderr and len(ended.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_result_is_one_line(run, capsys):
    run.result(1, 10, entry(A))
    path = run.folder / objects.result_name(KIND, 1)
    path.write_bytes(path.read_bytes()[:-1])
    assert main([str(run.folder)]) == 1
    problem = f"object '{objects.result_name(KIND, 1)}' is damaged"
    assert capsys.readouterr().err.startswith(problem)


class Watcher:
    """A process with --watch. `until` reads its lines up to one that has a text."""

    def __init__(self, run, *options):
        self.process = subprocess.Popen(
            command(str(run.folder), "--watch", *options),
            env=environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            preexec_fn=heed_interrupts,
        )

    def until(self, text):
        lines = []
        while not lines or text not in lines[-1]:
            line = self.process.stdout.readline()
            assert line, f"no '{text}' in {lines}: {self.process.stderr.read()}"
            lines.append(line.rstrip("\n"))
        return lines

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)
        output, errors = self.process.communicate(timeout=60)
        return self.process.returncode, output, errors

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.communicate()


def test_watch_prints_each_new_round_once_until_ctrl_c(run):
    run.result(1, 10, entry(A), entry(B))
    with Watcher(run) as watcher:
        watcher.until("Round 2 is open")
        run.result(2, 20, entry(A))
        (second,) = watcher.until(f"without {B}")
        run.state(2)
        run.remove(1)
        run.result(3, 30, entry(A), entry(C))
        (third,) = watcher.until(f"joined {C}")
        assert (second.split()[0], third.split()[0]) == ("2", "3")
        assert watcher.interrupt() == (0, "", "")


def test_watch_goes_on_after_the_store_has_failed(run, monkeypatch, capsys):
    run.result(1, 10, entry(A))
    answers = iter([None, StoreError("it is away"), StoreError("it is away"), None])
    read_store = History.read

    def fail_or_read(found):
        answer = next(answers, KeyboardInterrupt())
        if answer:
            raise answer
        read_store(found)
        run.result(2, 20, entry(NEW))

    monkeypatch.setattr(History, "read", fail_or_read)
    monkeypatch.setattr("gluon_gc.mailbox.__main__._POLL", 0)
    assert main([str(run.folder), "--watch"]) == 0
    output, errors = capsys.readouterr()
    assert output.endswith(f"joined {NEW}; without {A}\n")
    assert errors == "it is away. It is tried again\n"


def test_watch_follows_all_kinds_as_json_and_draws_them(tmp_path):
    pytest.importorskip("matplotlib")
    run, picture = MadeRun(tmp_path / "run", ["difference.0", "difference.1"]), tmp_path / "p.svg"
    with Watcher(run, "--json", "--plot", str(picture)) as watcher:
        first = [json.loads(line) for line in watcher.until('"difference.1"')]
        assert [each["about"] for each in first] == ["run", "open", "open"]
        run.result(1, 10, entry(A), kind="difference.1")
        run.result(1, 10, entry(A), kind="difference.0")
        new = [json.loads(line) for line in (*watcher.until("round"), *watcher.until("round"))]
        assert {(each["kind"], each["round"]) for each in new} == {
            ("difference.0", 1),
            ("difference.1", 1),
        }
        run.result(2, 20, entry(NEW), kind="difference.0")
        watcher.until('"round": 2')
        assert watcher.interrupt() == (0, "", "")
    assert f"<!-- {NEW} -->".encode() in picture.read_bytes()


def test_the_command_ends_quietly_if_its_reader_has_ended(run):
    for number in range(1, 200):
        run.result(number, 10 * number, entry("a" * 64 + A))
    shell = f"{' '.join(command(str(run.folder)))} | head -1; echo ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", shell], env=environ(), capture_output=True, timeout=60)
    assert ended.stdout == f"Run at {run.store.url}\n0\n".encode() and ended.stderr == b""
