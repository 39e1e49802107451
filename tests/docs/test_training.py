"""Every training command in the docs ends with the accuracy that the docs state.

The accuracy stands above the command in its shell block, as in
`# the training ends above 95 %`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import demo
import pytest

from tests.docs.test_docs import PAGES, ROOT

STATED = re.compile(r"# the training ends above (\d+) %")
TRAINS = re.compile(
    r"\bpython \S*train\w*\.py\b|digits/(demo|compare)\.py|make demo"
    r"|\b(run|worker)\.sh [a-z]\w* [a-z]"
)
MAKES_DATA = re.compile(r"python example/make_data\.py \w+ made/.*")
NOT_HERE = {  # the missing requirements of commands that tests cannot run
    r"python train\.py\b": "the reader's own script",
    r"(run|worker)\.sh\b": "several machines",
    r"bpslaunch (?!--local)": "several machines",
    r"~/data/": "the real data",
    r"made/(mnist5k|cifar100)|--logging-file onebit": "40 s; others train the same examples",
    r"BYTEPS_TRACE_ON=1": "README.md's command for MNIST without traces, which test_trace.py makes",
    r"language_model/train\.py": "has tests of its own, in test_language_model.py",
    r"make demo|digits/compare\.py": "has tests of its own, here and in test_digits.py",
}


def shell_commands(page):
    """Yield the commands of a page, with the accuracy stated above those in shell blocks."""
    text = page.read_text()
    for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", re.sub(r"```.*?```", "", text, flags=re.S)):
        yield " ".join(span.split()), None
    for block in re.findall(r"^ *```sh\n(.*?)^ *```", text, re.S | re.M):
        stated = None
        for line in block.replace("\\\n", " ").splitlines():
            if line.strip().startswith("#"):
                stated = STATED.match(line.strip())
            else:
                command = re.sub(" +#.*", "", line.strip())
                yield re.sub(" +", " ", command), stated and int(stated[1]) / 100
                stated = None


def missing(command):
    """Return why tests cannot run a command, or None."""
    return next((why for what, why in NOT_HERE.items() if re.search(what, command)), None)


COMMANDS = [
    pytest.param(command, stated, id=f"{page.stem}-{command}")
    for page in PAGES
    for command, stated in dict(shell_commands(page)).items()
    if TRAINS.search(command)
]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """Return a function that runs a command in a folder with the examples and generated data."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "example").symlink_to(ROOT / "example")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

    def run(command):
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env={**os.environ, "PATH": path},
            capture_output=True,
            encoding="utf-8",
            timeout=500,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    commands = {command for page in PAGES for command, _ in shell_commands(page)}
    for command in sorted(filter(MAKES_DATA.match, commands)):
        run(command)
    return run


@pytest.mark.timeout(600)
@pytest.mark.parametrize("command, stated", COMMANDS)
def test_a_command_that_trains_ends_with_the_accuracy_that_is_stated(command, stated, request):
    if missing(command):
        pytest.skip(missing(command))
    assert stated, "the page does not say above which accuracy this ends"
    output = request.getfixturevalue("checkout")(command)
    found = float(re.findall(r"validation ([\d.]+)%", output)[-1]) / 100
    assert found > stated, output


def test_every_kind_of_training_script_is_run():
    run = {
        script
        for p in COMMANDS
        for script in re.findall(r"train_\w+", p.values[0])
        if not missing(p.values[0])
    }
    assert run == {path.stem for path in ROOT.glob("example/*/train_*.py")}


@pytest.mark.timeout(300)
def test_the_demo_bears_out_its_claims_with_one_seed(monkeypatch, capsys):
    monkeypatch.setattr(demo, "SEEDS", (0,))
    demo.main()  # exits if a claim does not hold
    table = (ROOT / "docs" / "tutorials" / "quick-start.md").read_text()
    for name, accuracy in re.findall(r"^(\w+) +([\d.]+)%", capsys.readouterr().out, re.M):
        (stated,) = re.findall(rf"^\| {name} \| ([\d.]+) % \|", table, re.M)
        assert abs(float(accuracy) - float(stated)) <= 1
