"""The kernels' tests find faults. `python -m tests.cuda.mutants` tries all mutants."""

import shutil
from pathlib import Path

import pytest

from . import emulator
from .mutants import MUTANTS, NOTHING, is_caught, said_of, verdict_of

SOME = ("a symbol of zero has a sign", "no barrier 1 in settle.cuh")


@pytest.fixture(scope="module")
def operators(tmp_path_factory):
    """Copy the kernels' headers and sources."""
    return Path(shutil.copytree(emulator.OPERATORS, tmp_path_factory.mktemp("copy") / "operators"))


@pytest.mark.parametrize("name", SOME)
def test_a_mutant_is_caught(operators, tmp_path, name):
    said = said_of(MUTANTS[name], operators, tmp_path)
    assert is_caught(MUTANTS[name], said), said


def test_what_is_no_mutant_is_left_alone():
    assert verdict_of(emulator.build() / "onebit.so") == NOTHING
