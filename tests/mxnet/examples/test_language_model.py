"""The text of the language models, their arguments, and the Gluon example on two workers."""

import argparse
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from common.algorithm_arguments import add_algorithm_arguments, algorithm_of
from common.log import read_log
from common.source_text import (
    load_text,
    require_same_text,
    training_windows,
    validation_windows,
)

from gluon_gc import algorithms

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def library(tmp_path):
    """Return a folder with 40 modules and files that are no part of the text."""
    for i in range(40):
        (tmp_path / f"m{i:02}.py").write_text(f"text{i:02} = {i:02}\n")
    left_out = ("site-packages/a.py", "test/b.py", "_sysconfigdata_here.py", "README")
    for name in left_out:
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("not read")
    return tmp_path


def test_each_worker_reads_its_own_files_and_all_read_the_same_validation_files(library):
    texts = [load_text(rank, 3, library) for rank in range(3)]
    shares = [set(bytes(text.training).decode().splitlines()) for text in texts]
    (validation,) = {bytes(text.validation) for text in texts}
    assert validation.decode().splitlines() == ["text00 = 00", "text20 = 20"]
    assert [len(share) for share in shares] == [13, 13, 12]
    assert len(set.union(*shares)) == 38 and not shares[0] & shares[1]
    assert not set.union(*shares) & set(validation.decode().splitlines())


def test_another_text_on_one_worker_is_refused(library):
    texts = [load_text(rank, 2, library) for rank in range(2)]
    require_same_text(texts[0], sum(text.digest for text in texts), 2)
    (library / "m07.py").write_text("longer " * 3)
    other = load_text(1, 2, library)
    with pytest.raises(ValueError, match="different standard libraries"):
        require_same_text(texts[0], texts[0].digest + other.digest, 2)
    with pytest.raises(ValueError, match="38 training files, too few for 39 workers"):
        load_text(38, 39, library)


def test_the_standard_library_is_text_enough():
    text, other = load_text(0, 2), load_text(1, 2)
    assert len(text.training) > 2_000_000 < len(other.training)
    assert len(text.validation) > 200_000
    assert b"def " in bytes(text.training) and text.digest == other.digest


def test_windows_depend_on_the_seed_the_step_and_the_worker_alone(library):
    text = load_text(0, 2, library)
    windows = training_windows(text, 4, 10, [1, 2, 0])
    assert windows.shape == (4, 11) and windows.dtype == np.uint8
    assert all(bytes(window) in bytes(text.training) for window in windows)
    np.testing.assert_array_equal(windows, training_windows(text, 4, 10, [1, 2, 0]))
    for seed in ([2, 2, 0], [1, 3, 0], [1, 2, 1]):
        assert (windows != training_windows(text, 4, 10, seed)).any()
    for rank, expected in enumerate((b"text00 = 00", b"ext20 = 20\n")):
        (window,) = validation_windows(text, 2, 10, rank, 2)
        assert bytes(window) == expected
    with pytest.raises(ValueError, match="--eval-windows must be at least 3, for 3 workers, got 2"):
        validation_windows(text, 2, 10, 0, 3)


def parsed(*words):
    parser = argparse.ArgumentParser()
    add_algorithm_arguments(parser)
    return algorithm_of(parser.parse_args(words))


def test_the_command_line_reaches_every_option_of_an_algorithm(capsys):
    words = "--algorithm local_steps --every 20 --outer-lr 1 --outer-momentum 0 --nesterov false"
    expected = algorithms.registry["local_steps"](20, 1, 0, False)
    assert algorithms.parse(parsed(*words.split())) == expected
    words = "--algorithm onebit_adam --freeze-step 0.2 --total-steps 500"
    assert algorithms.parse(parsed(*words.split())).frozen_after == 100
    assert parsed() is None and parsed("--algorithm", "local_steps") == {"name": "local_steps"}
    with pytest.raises(ValueError, match="--every needs --algorithm"):
        parsed("--every", "3")
    with pytest.raises(SystemExit):
        parsed("--help")
    shown = " ".join(capsys.readouterr().out.split())
    for kind in algorithms.registry.values():
        assert kind.description in shown
        for key, option in kind.keys().items():
            assert option.meaning in shown and f"--{key.replace('_', '-')} " in shown


ONEBIT = "--compressor onebit --onebit-scaling --ef vanilla"


def test_the_gluon_model_learns_on_two_workers(tmp_path):
    method, exchanges = f"--algorithm local_steps --every 4 {ONEBIT}", 6
    log = tmp_path / "log.jsonl"
    launch = [sys.executable, "-m", "bpslaunch", "--local", "-n", "2", "-s", "1", sys.executable]
    options = "--width 32 --context 32 --batch-size 4 --steps 24 --eval-every 12 --eval-windows 16"
    command = f"example/language_model/train.py {options} {method} --logging-file {log}"
    done = subprocess.run(
        [*launch, *command.split()], cwd=ROOT, capture_output=True, encoding="utf-8", timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    sums = dict(re.findall(r"rank (\d) of 2: checksum of the parameters (\w+)", done.stdout))
    assert len(sums) == 2 and sums["0"] == sums["1"]
    records = read_log(str(log))
    assert [record["step"] for record in records] == [12, 24]
    assert [len(record["step_loss"]) for record in records] == [12, 12]
    assert records[0]["step_loss"][0] > records[1]["train_loss"] > 2
    last = records[1]
    assert f"validation loss {last['validation_loss']:.4f} nats per byte" in done.stdout
    payload = (8192 + 8448 + 8448) / 8  # one bit for each element of the embedding, LSTM and head
    for way in ("pushed_bytes", "pulled_bytes"):
        assert exchanges * payload < last[way] < 1.6 * exchanges * payload
