"""The inputs that the fuzzer found run through every harness without a sanitizer error."""

import os
import shutil
import subprocess

import pytest

from . import harnesses, seeds

each_harness = pytest.mark.parametrize("name", harnesses.NAMES)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build the harnesses as programs that run files."""
    folder = tmp_path_factory.mktemp("fuzz")
    harnesses.build(folder, shutil.which("g++") or "c++")
    return folder


def complaint(harness, inputs):
    """Run a harness on some inputs; returns its error, or "" if there is none."""
    options = {"ASAN_OPTIONS": "detect_leaks=0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [harness, *inputs], env={**os.environ, **options}, capture_output=True, encoding="utf-8"
    )
    if done.returncode == 0:
        return ""
    return f"{done.stdout.splitlines()[-1:]}: {done.stderr[:4000]}"


@pytest.mark.timeout(900)
@each_harness
def test_what_the_fuzzer_found_is_refused_or_stays_in_bounds(built, tmp_path, name):
    harnesses.unpack(name, tmp_path)
    for number, seed in enumerate(list(seeds.inputs(name))[::16]):
        (tmp_path / f"seed{number}").write_bytes(seed)
    assert complaint(built / name, sorted(tmp_path.iterdir())) == ""


@each_harness
def test_an_input_may_be_cut_off_anywhere(built, tmp_path, name):
    for number, seed in enumerate(list(seeds.inputs(name))[:2]):
        for size in range(0, len(seed), 7):
            (tmp_path / f"{number}-{size}").write_bytes(seed[:size])
    assert complaint(built / name, sorted(tmp_path.iterdir())) == ""
