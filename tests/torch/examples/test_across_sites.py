"""docs/tutorials/across-sites.md: its workers survive a kill, and go on after all have ended."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes import clean_environ

pytest.importorskip("torch")
pytest.importorskip("obstore")

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "tutorials" / "across-sites.md").read_text()
SCRIPT = ROOT / "example" / "pytorch" / "across_sites.py"
ENVIRON = {**clean_environ(), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
DEADLINE = 90  # seconds
FOREVER = 1_000_000  # steps

pytestmark = pytest.mark.timeout(300)


class Worker:
    """A process that runs the script, and its output."""

    def __init__(self, folder, name, steps):
        self.log = folder / name
        command = [sys.executable, SCRIPT, folder / "run", "--steps", str(steps), "--every", "5"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, env=ENVIRON, stdout=log, stderr=subprocess.STDOUT
            )

    def said(self):
        return self.log.read_text()

    def await_output(self, text):
        until = time.monotonic() + DEADLINE
        while text not in self.said():
            assert self.process.poll() is None and time.monotonic() < until, self.said()
            time.sleep(0.1)

    def end(self):
        code = self.process.wait(DEADLINE)
        return code, self.said()


@pytest.fixture
def start(tmp_path):
    workers = []

    def start(name, steps=FOREVER):
        workers.append(Worker(tmp_path, name, steps))
        return workers[-1]

    yield start
    for worker in workers:
        worker.process.kill()
        worker.process.wait()


def shown(folder):
    """Return the output of the tutorial's command that shows a run."""
    command = [sys.executable, "-m", "gluon_gc.mailbox", folder]
    done = subprocess.run(command, env=ENVIRON, capture_output=True, encoding="utf-8", timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(said):
    return [float(loss) for loss in re.findall(r"loss ([\d.]+), \d workers", said)]


def test_workers_are_killed_and_started_again_and_all_end_and_go_on(start, tmp_path):
    first, killed = start("first"), start("killed")
    for worker in (first, killed):
        worker.await_output(", 2 workers")
    killed.process.kill()
    assert losses(killed.said())[0] > 3  # untrained
    again = start("again", steps=40)
    code, said = again.end()
    assert code == 0, said
    assert ", 2 workers" in said and losses(said)[0] < losses(killed.said())[0]
    first.process.terminate()
    assert first.end()[0] == 128 + 15
    before = shown(tmp_path / "run")
    assert re.search(rf"-{again.process.pid}-\w+ .* left\n", before)
    code, said = start("last", steps=20).end()
    assert code == 0, said
    (newest,) = re.findall(r"^Round (\d+) is open", before, re.M)
    (later,) = re.findall(r"^Round (\d+) is open", shown(tmp_path / "run"), re.M)
    assert int(later) >= int(newest) + 4  # 20 steps are four rounds


def test_the_page_quotes_the_script():
    quoted = re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M)
    assert len(quoted) == 4 and not [code for code in quoted if code not in SCRIPT.read_text()]
