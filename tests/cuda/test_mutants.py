"""The kernels' tests find faults: a mutant of each compressor is caught."""

import shutil
from pathlib import Path

import pytest

from . import emulator
from .mutants import MUTANTS, NOTHING, is_caught, said_of, verdict_of

ONE_OF_EACH = {mutant.of: name for name, mutant in MUTANTS.items()}


@pytest.fixture(scope="module")
def operators(tmp_path_factory):
    """Copy the kernels' headers and sources."""
    return Path(shutil.copytree(emulator.OPERATORS, tmp_path_factory.mktemp("copy") / "operators"))


@pytest.mark.parametrize("name", ONE_OF_EACH.values())
def test_a_mutant_is_caught(operators, tmp_path, name):
    said = said_of(MUTANTS[name], operators, tmp_path)
    assert is_caught(MUTANTS[name], said), said


def test_what_is_no_mutant_is_left_alone():
    assert verdict_of(emulator.build() / "onebit.so") == NOTHING
