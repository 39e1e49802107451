"""`python -m gluon_gc plan`: its arguments, models, table and figure, without measuring."""

import json
import math
import os
import struct
import sys

import pytest

from gluon_gc import __main__ as main_program
from gluon_gc.auto.prediction import methods, predictions
from gluon_gc.plan import arguments, command, model
from gluon_gc.plan.arguments import number, rate
from gluon_gc.plan.report import Report
from tests.neutral.auto.test_prediction import ELEMENTS, SHAPES, job
from tests.processes import clean_environ


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in set(os.environ) - set(clean_environ()):
        monkeypatch.delenv(name)


@pytest.fixture
def with_pytorch(monkeypatch):
    """Let the command find PyTorch's front end, which these tests do not use."""
    monkeypatch.setattr(command, "planning", lambda: None)


def safetensors(path, tensors):
    """Write a file of float32 tensors with these shapes, whose data is not there."""
    header = {"__metadata__": {"format": "pt"}}
    for name, (dtype, shape) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    return str(path)


@pytest.mark.parametrize(
    "words, error",
    [
        ("--rate 100 --workers 4 --parameters 1M", "such as 100Mbit, got '100'"),
        ("--rate 0Mbit --workers 4 --parameters 1M", "such as 100Mbit, got '0Mbit'"),
        ("--rate 100Mbit --workers 1 --parameters 1M", "for at least 2 machines, got 1 and 1"),
        ("--rate 1Gbit --workers 9 --per-machine 2 --parameters 1M", "got 9 and 2"),
        ("--rate 100Mbit --parameters 1M", "--rate and --workers belong together"),
        ("--workers 4 --parameters 1M", "--rate and --workers belong together"),
        ("--per-machine 4 --parameters 1M", "--per-machine needs --rate"),
        ("--parameters 1M", "nothing has started several workers"),
        ("--parameters 1Q --rate 1Gbit --workers 2", "such as 500000, 124M or 7B, got '1Q'"),
        ("--parameters 1M --step-seconds 0", "a number of seconds above 0, got '0'"),
        ("--model nowhere.pt --rate 1Gbit --workers 2", "or a file (.safetensors, .pt, .pth)"),
        ("--rate 1Gbit --workers 2", "one of the arguments --model --parameters is required"),
    ],
)
def test_bad_arguments_are_named(words, error, capsys, with_pytorch):
    with pytest.raises(SystemExit) as ended:
        main_program.main(["plan", *words.split()])
    assert ended.value.code == 2 and error in capsys.readouterr().err


def test_without_pytorch_the_error_says_what_to_do(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "gluon_gc.torch.planning", raising=False)
    with pytest.raises(SystemExit):
        main_program.main("plan --parameters 1M --rate 1Gbit --workers 2".split())
    assert "PyTorch is not installed: pip install torch" in capsys.readouterr().err


def test_rates_and_numbers_have_units():
    assert rate("100Mbit") == 100e6 / 8 and rate("2.5Gbit/s") == 2.5e9 / 8
    assert rate("64Kbit") == 8000
    assert number("124M") == 124_000_000 and number("1.5B") == 1_500_000_000 and number("7") == 7


def test_a_safetensors_file_needs_only_its_header(tmp_path):
    tensors = {
        "w": ("F32", [30, 20]),
        "half": ("BF16", [5]),
        "steps": ("I64", [9]),
        "empty": ("F32", [0, 3]),
        "bn.running_mean": ("F32", [7]),
    }
    path = safetensors(tmp_path / "m.safetensors", tensors)
    assert model.shapes_of(path) == {"w": (30, 20), "half": (5,)}


@pytest.mark.parametrize(
    "content", [b"", b"\x05", struct.pack("<Q", 2**62), struct.pack("<Q", 4) + b"[17]", b"x" * 100]
)
def test_a_file_that_is_no_safetensors_file_is_named(tmp_path, content):
    path = tmp_path / "broken.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="broken.safetensors is not a safetensors file"):
        model.shapes_of(str(path))


def test_a_negative_size_is_no_safetensors_file(tmp_path):
    path = safetensors(tmp_path / "m.safetensors", {"w": ("F32", [-5, 3])})
    with pytest.raises(ValueError, match="is not a safetensors file"):
        model.shapes_of(path)


def test_a_file_without_parameters_is_named(tmp_path):
    path = safetensors(tmp_path / "m.safetensors", {"steps": ("I64", [9])})
    with pytest.raises(ValueError, match="has no parameters"):
        model.shapes_of(path)


@pytest.mark.parametrize("elements", [1, 2, 3, 1000, 11_000_001, 124_000_000, 7_000_000_000])
def test_a_number_of_parameters_becomes_matrices_with_that_many_elements(elements):
    shapes = model.matrices(elements)
    assert sum(map(math.prod, shapes.values())) == elements
    assert all(math.prod(shape) for shape in shapes.values())
    if elements > 10**6:
        assert len([shape for shape in shapes.values() if len(shape) == 2]) > 0.9 * elements / 2**20


def report(step_seconds=0.2, optimizer="sgd", **facts):
    given = job(step_seconds=step_seconds)
    found = predictions(methods(optimizer), SHAPES, given)
    given_facts = dict(
        parameters=ELEMENTS, tensors=len(SHAPES), workers=4, machines=4, measured=given.measured,
        rate=8 * given.machine_rate, rate_given=True, used_rate=8 * given.machine_rate,
        step_seconds=step_seconds, sharing=1, crowding=1.0, cores=2,
    )  # fmt: skip
    return Report(**{**given_facts, **facts}, predictions=found)


def test_the_table_has_the_limit_and_all_methods_by_their_speedup():
    lines = list(report().lines())
    assert "links of 100 Mbit/s (given)" in lines[0]
    assert "sends 50.38 MB in a step, which take 4.03 s" in lines[1]
    first = next(i for i, line in enumerate(lines) if line.startswith("method"))
    rows = lines[first + 1 : first + 1 + len(methods("sgd"))]
    speedups = [float(row.split()[-1]) for row in rows]
    assert speedups == sorted(speedups, reverse=True)
    assert rows[-1].startswith("DDP, uncompressed")


def test_the_best_method_of_each_accuracy_comes_with_the_lines_of_the_script():
    text = "\n".join(report().lines())
    assert "exact: DistributedDataParallel as it is" in text
    assert "safe: bytegrad, " in text and "'compressor': 'bytegrad'" in text
    assert "algorithm={'name': 'local_steps', 'every': " in text


def test_nothing_is_advised_where_the_network_costs_nothing():
    text = "\n".join(report(step_seconds=1e6).lines())
    assert text.count("DistributedDataParallel as it is") == 4
    assert "register_comm_hook" not in text


def test_shared_processors_are_said():
    assert "Processors are shared" not in "\n".join(report().lines())
    text = "\n".join(report(sharing=4, crowding=2.04).lines())
    assert "4 workers measured at the same time on the 2 cores" in text
    assert "takes 2 times as long" in text


def test_a_given_rate_that_this_machine_does_not_reach_is_said():
    assert "reach only" not in "\n".join(report().lines())
    lines = list(report(rate=10e9).lines())
    assert "links of 10,000 Mbit/s (given)" in lines[0]
    assert lines[1].startswith("Workers reach only 100 Mbit/s here")


def test_json_has_all_that_the_table_has():
    found = json.loads(json.dumps(report().json()))
    assert found["rate"] == 100e6 and found["parameters"] == ELEMENTS
    steps = [row["step"] for row in found["predictions"]]
    assert steps == sorted(steps) and len(steps) == len(methods("sgd"))
    (onebit,) = (row for row in found["predictions"] if row["method"] == "onebit")
    assert onebit["compression_params"]["compressor"] == "onebit" and onebit["algorithm"] is None


def test_a_figure_has_a_bar_for_each_method(tmp_path):
    pytest.importorskip("matplotlib")
    report().draw(str(tmp_path / "plan.svg"))
    assert (tmp_path / "plan.svg").stat().st_size > 10_000


def test_a_figure_without_matplotlib_is_refused_at_once(monkeypatch, capsys, with_pytorch):
    monkeypatch.setattr(arguments, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        main_program.main("plan --parameters 1M --rate 1Gbit --workers 2 --plot a.svg".split())
    assert "--plot a.svg needs matplotlib" in capsys.readouterr().err
