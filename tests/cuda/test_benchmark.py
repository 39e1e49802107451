"""benchmark/gpu.py runs in the emulator, where its times mean nothing."""

import importlib.util
from pathlib import Path

from . import emulator

SCRIPT = Path(__file__).resolve().parents[2] / "benchmark" / "gpu.py"


def test_every_compressor_is_measured():
    spec = importlib.util.spec_from_file_location("gpu", SCRIPT)
    gpu = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gpu)
    gpu.CALLS = 1
    rows = gpu.measure([2000], rounds=1)["rows"]
    assert {row["compressor"] for row in rows} == set(emulator.COMPRESSORS)
    assert {row["call"] for row in rows} == {"compress", "decompress", "decompress_add"}
    assert all(row["microseconds"] > 0 and row["share_of_copy"] > 0 for row in rows)
