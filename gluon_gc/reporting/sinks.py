"""Sinks write reports to the log, to TensorBoard, to Weights & Biases, or for Prometheus."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from importlib import import_module
from typing import TYPE_CHECKING, Any, Iterator, Sequence

from ..log import logger
from .report import Report

if TYPE_CHECKING:
    from .reporter import Settings

_PREFIX = "gluon_gc"
_FLUSH_SECONDS = 10  # after which numbers are in a file, if the process is killed


class Sink(ABC):
    """Writes the reports of one worker."""

    @abstractmethod
    def write(self, report: Report) -> None:
        """Write a report."""

    def close(self) -> None:
        """Release files and ports. No report follows."""
        return


class Log(Sink):
    """Writes a line to the logger gluon_gc.report, whatever the level of gluon_gc's other lines."""

    def __init__(self) -> None:
        self._logger = logger.getChild("report")
        if self._logger.level == logging.NOTSET:
            self._logger.setLevel(logging.INFO)

    def write(self, report: Report) -> None:
        self._logger.info("%s", report.line())


class TensorBoard(Sink):
    """Writes scalars to event files of TensorBoard."""

    def __init__(self, folder: str, worker: int, writers: Sequence[str]) -> None:
        module = _imported("tensorboard", *writers)
        own = os.path.join(folder, f"worker{worker}")
        self._writer = module.SummaryWriter(own, flush_secs=_FLUSH_SECONDS)

    def write(self, report: Report) -> None:
        for name, value in report.values().items():
            self._writer.add_scalar(f"{_PREFIX}/{name}", value, report.step)
        for name, ratio in report.worst.items():
            self._writer.add_scalar(f"{_PREFIX}/residual_ratio/{name}", ratio, report.step)

    def close(self) -> None:
        self._writer.close()


class WandB(Sink):
    """Logs to the run of Weights & Biases that this process has begun, if it has begun one."""

    def __init__(self, worker: int) -> None:
        self._run = _imported("wandb", "wandb").run
        self._prefix = f"{_PREFIX}/worker{worker}"
        if self._run is None and worker == 0:
            raise ValueError("wandb=True needs a run on worker 0: call wandb.init before report")
        if self._run is not None:
            self._run.define_metric(f"{self._prefix}/*", step_metric=f"{self._prefix}/step")

    def write(self, report: Report) -> None:
        if self._run is not None:
            values = {"step": report.step, **report.values()}
            values.update({f"residual_ratio/{name}": r for name, r in report.worst.items()})
            self._run.log({f"{self._prefix}/{name}": value for name, value in values.items()})


class Prometheus(Sink):
    """Serves the last report as gauges, over HTTP."""

    def __init__(self, port: int, worker: int) -> None:
        client = _imported("prometheus", "prometheus_client")
        self._gauge = import_module("prometheus_client.core").GaugeMetricFamily
        self._worker, self._last = str(worker), None
        registry = client.CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = client.start_http_server(port, registry=registry)
        except (OSError, OverflowError) as error:
            raise OSError(
                f"prometheus: worker {worker} cannot serve at port {port}: {error}"
            ) from None

    def collect(self) -> Iterator[Any]:
        """Yield the gauges. prometheus_client calls this for each scrape."""
        report: Report | None = self._last
        if report is None:
            return
        for name, value in {"step": report.step, **report.values()}.items():
            family = self._gauge(f"{_PREFIX}_{name}", f"{name} of a report", labels=["worker"])
            family.add_metric([self._worker], value)
            yield family
        name, labels = f"{_PREFIX}_residual_ratio_of_tensor", ["worker", "tensor"]
        family = self._gauge(name, "the largest residual ratios", labels=labels)
        for tensor, ratio in report.worst.items():
            family.add_metric([self._worker, tensor], ratio)
        yield family

    def write(self, report: Report) -> None:
        self._last = report

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


_PACKAGES = {
    "tensorboard": "tensorboardX",
    "wandb": "wandb",
    "prometheus": "prometheus_client",
}
"""The packages to install, by argument of `report`."""


def _imported(argument: str, *modules: str) -> Any:
    """Return the first of these modules that is installed."""
    for module in modules:
        try:
            return import_module(module)
        except ImportError:
            continue
    raise ImportError(f"{argument} needs a package that is missing: install {_PACKAGES[argument]}")


def opened(
    settings: Settings, worker: int, local_worker: int, writers: Sequence[str]
) -> list[Sink]:
    """Return the requested sinks of a worker.

    `writers` are the modules that may have a SummaryWriter.
    """
    sinks: list[Sink] = [Log()]
    try:
        if settings.tensorboard is not None:
            sinks.append(TensorBoard(os.fspath(settings.tensorboard), worker, writers))
        if settings.wandb:
            sinks.append(WandB(worker))
        if settings.prometheus is not None:
            sinks.append(Prometheus(settings.prometheus + local_worker, worker))
    except BaseException:
        for sink in sinks:
            sink.close()
        raise
    return sinks
