"""Reports, without a front end: which worker is named, which ratios, and when a report is due."""

import logging
import math
import sys
import time
from types import SimpleNamespace

import pytest

from gluon_gc.exchange.statistics import Busy
from gluon_gc.log import logger
from gluon_gc.reporting import Measured, Reporter, Settings
from gluon_gc.reporting.report import largest_ratios, ratio_of, waited_for


@pytest.mark.parametrize(
    "waits, worker",
    [
        ([], None),
        ([0.5], None),
        ([0.3, 0.05], 1),
        ([0.1, 0.05], None),  # less than a tenth of a step
        ([0.0, 0.4, 0.5, 0.4], 0),
        ([0.0, 0.0, 0.0, 0.9], None),  # only one worker waits
    ],
)
def test_a_worker_is_named_if_the_others_lost_a_tenth_of_a_step(waits, worker):
    assert waited_for(waits) == worker


def test_parts_of_a_tensor_count_together_and_values_that_are_not_finite_do_not():
    nan = float("nan")
    parts = [("w", (3.0, 0.0)), ("w", (4.0, 2.0)), ("b", (1.0, 2.0)), ("n", (nan, 1.0))]
    assert largest_ratios(parts) == {"w": 2.5, "b": 0.5}
    assert ratio_of(norms for _, norms in parts) == pytest.approx(math.sqrt(26 / 8))
    assert ratio_of([]) is None and ratio_of([(1.0, nan)]) is None
    assert ratio_of([(0.0, 0.0)]) is None and ratio_of([(1.0, 0.0)]) is None
    several = [(str(number), (number, 1.0)) for number in range(9)]
    assert list(largest_ratios(several)) == ["8", "7", "6"]


class Recorded(Reporter):
    """A reporter whose front end measures nothing."""

    def __init__(self, worker=0, **settings):
        self.measured = []
        super().__init__(lambda: Settings(**settings), worker, 0, lambda facts: None, [])

    def _measured(self, steps):
        self.measured.append((self.steps, steps, self.measures_error))
        fields = "compress_seconds", "wait_seconds", "decompress_seconds", "pushed_bytes"
        total = {**dict.fromkeys((*fields, "pulled_bytes"), 2e6), "ratio": None}
        return Measured(self.steps, total, 0.0, [], [])

    def _gathered(self, share):
        return []


def test_a_report_follows_every_few_steps_and_an_error_in_some_of_them():
    reporter = Recorded(every=3, measure_error=6)
    for _ in range(13):
        reporter.begin()
        reporter.end()
    assert reporter.measured == [(3, 3, False), (6, 3, True), (9, 3, False), (12, 3, True)]
    reporter.close()
    for _ in range(9):
        reporter.begin()
        reporter.end()
    assert len(reporter.measured) == 4


def test_the_report_of_a_step_without_an_end_follows_when_the_next_begins():
    reporter = Recorded(every=2)
    for _ in range(5):
        reporter.begin()
    assert [steps for steps, *_ in reporter.measured] == [2, 4]


def test_a_line_has_the_numbers_that_are_known(monkeypatch):
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    monkeypatch.setattr(logger, "handlers", [handler])
    reporter = Recorded(every=1)
    reporter.begin()
    reporter.end()
    (line,) = lines
    assert line.startswith("worker 0, step 1: ") and "sent 2 MB, received 2 MB" in line
    assert "ratio" not in line and "residual" not in line and "waited" not in line


class Full:
    def write(self, report):
        raise OSError("no space left")


def test_a_sink_that_fails_is_left_out(logged):
    reporter = Recorded(every=1)
    reporter._sinks.append(Full())
    for _ in range(2):
        reporter.begin()
        reporter.end()
    assert reporter.last.step == 2 and len(reporter._sinks) == 1
    assert logged.text.count("no further reports are written to Full: no space left") == 1


def test_a_sink_that_cannot_be_opened_is_an_error(monkeypatch):
    pytest.importorskip("prometheus_client")
    with pytest.raises(OSError, match="cannot serve at port"):
        Recorded(every=1, prometheus=70000)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match="install wandb"):
        Recorded(every=1, wandb=True)


@pytest.mark.parametrize("worker", [0, 1])
def test_wandb_gets_the_numbers_of_workers_with_a_run(worker, monkeypatch):
    given = []

    class Run:
        def define_metric(self, name, step_metric):
            given.append((name, step_metric))

        def log(self, values):
            given.append(values)

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=None if worker else Run()))
    reporter = Recorded(worker, every=1, wandb=True)
    reporter.begin()
    reporter.end()
    if worker:
        assert not given
    else:
        assert given[0] == ("gluon_gc/worker0/*", "gluon_gc/worker0/step")
        assert given[1]["gluon_gc/worker0/step"] == 1
        assert given[1]["gluon_gc/worker0/pushed_bytes"] == reporter.last.pushed_bytes


def test_time_counts_once_if_several_jobs_are_under_way():
    busy = Busy()
    began = time.perf_counter()
    for jobs in (1, 1, -1, 1, -1, -1):
        busy.add(jobs)
        time.sleep(0.001)
    longest = time.perf_counter() - began
    after = busy.seconds
    assert 0.005 <= after <= longest
    assert busy.seconds == after  # none is under way
