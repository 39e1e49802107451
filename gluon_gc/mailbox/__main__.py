"""python -m gluon_gc.mailbox: shows a run across sites, from its store."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from datetime import datetime, timedelta, timezone
from typing import Any, Iterable, Iterator, Sequence

from . import history
from .history import Header, History, OpenRow, RoundRow, Rounds, WorkerRow
from .store import Store, StoreError

_TIMEOUT = 10.0  # seconds
_POLL = 1.0  # seconds between two looks at the store

_ROUND = "{:>6}  {:14}  {:>7}  {:>7}  {:>8}  {:>8}  {:>8}  {}"
_ROUND_TITLES = ("round", "time", "seconds", "workers", "weight", "bytes", "loss", "")
_WORKER = "{:>6}  {:>6}  {:>8}  {:>7}  {:>8}  {}"
_WORKER_TITLES = ("round", "share", "steps", "steps/s", "loss", "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Show the run that the command line names. Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m gluon_gc.mailbox",
        description="Shows a run across sites: its rounds, its workers and its open round. Ages "
        "compare the store's clock with this machine's.",
        allow_abbrev=False,
    )
    parser.add_argument("url", metavar="URL", help="the run's store, as in bps.init(mailbox=URL)")
    parser.add_argument("--watch", action="store_true", help="print new rounds, until Ctrl-C")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw the run, also as .png or .pdf")
    parser.add_argument("--json", action="store_true", help="print a JSON object in each line")
    try:
        _show(parser.parse_args(arguments))
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:  # the reader of stdout, such as head, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ImportError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _show(options: argparse.Namespace) -> None:
    if options.plot:
        _require_matplotlib()
    store = Store(options.url, _TIMEOUT, creates=False)
    run = History(store)
    run.read()
    lines = json_lines if options.json else text_lines
    _print(lines(history.run_row(store.url, run.jobs), run.rounds))
    if options.plot and run.rounds:
        draw(store.url, run.rounds, options.plot)
    if options.watch:
        _watch(run, options, store.url)


def _watch(run: History, options: argparse.Namespace, url: str) -> None:
    """Draw the run again when there are new rounds, and print these, without end."""
    shown = {kind: rounds.last for kind, rounds in run.rounds.items()}
    fails = False
    while True:
        time.sleep(_POLL)
        try:
            run.read()
        except StoreError as error:
            if not fails:
                print(f"{error}. It is tried again", file=sys.stderr, flush=True)
            fails = True
            continue
        fails = False
        new = {
            kind: [
                row for row in history.round_rows(kind, rounds) if row.round > shown.get(kind, 0)
            ]
            for kind, rounds in run.rounds.items()
        }
        shown = {kind: rounds.last for kind, rounds in run.rounds.items()}
        if options.plot and any(new.values()):
            draw(url, run.rounds, options.plot)
        for kind, rows in new.items():
            name = f"{kind} " if len(new) > 1 else ""
            _print(_json("round", row) if options.json else name + _round_text(row) for row in rows)


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line.rstrip(), flush=True)


# As JSON


def json_lines(run: Header, kinds: dict[str, Rounds]) -> Iterator[str]:
    """A JSON object for the run, each round, each worker and each open round."""
    yield _json("run", run)
    for kind, rounds in kinds.items():
        yield from (_json("round", row) for row in history.round_rows(kind, rounds))
        yield from (_json("worker", row) for row in history.worker_rows(kind, rounds))
        yield _json("open", history.open_row(kind, rounds))


def _json(about: str, row: Any) -> str:
    """A row as JSON. NaN and infinities, which JSON does not have, become null."""
    fields = row if isinstance(row, dict) else vars(row)
    text = json.dumps({"about": about, **fields}, default=datetime.isoformat)
    return json.dumps(json.loads(text, parse_constant=lambda _: None))


# As text


def text_lines(run: Header, kinds: dict[str, Rounds], now: datetime | None = None) -> Iterator[str]:
    """The settings, and tables of the rounds and the workers of each kind.

    Ages are those at the time `now`, which is that of this machine's clock by default.
    """
    now = now or datetime.now(timezone.utc)
    yield f"Run at {run['url']}"
    yield f"framework   {run['framework']}, with gluon_gc {run['version']}"
    yield f"parameters  {run['parameters']:,} in {run['arrays']} arrays"
    algorithm = dict(run["algorithm"])
    name = algorithm.pop("algorithm", "")
    yield " ".join(["algorithm  ", name, *(f"{key}={value}" for key, value in algorithm.items())])
    for compressor, arrays in run["compressors"].items():
        yield f"compressor  {compressor}, of {arrays} arrays"
    for kind, rounds in kinds.items():
        yield from ("", f"Rounds of {kind}", _ROUND.format(*_ROUND_TITLES))
        yield from map(_round_text, history.round_rows(kind, rounds))
        yield ""
        yield from _worker_texts(history.worker_rows(kind, rounds), now)
        yield _open_text(history.open_row(kind, rounds), now)


def _round_text(row: RoundRow) -> str:
    groups = {"joined": row.joined, "without": row.gone, "late": row.late}
    notes = [f"{what} {', '.join(workers)}" for what, workers in groups.items() if workers]
    notes += [f"excluded {worker}: {why}" for worker, why in row.excluded.items()]
    return _ROUND.format(
        row.round,
        row.time.astimezone().strftime("%m-%d %H:%M:%S"),
        _text(row.seconds, ".1f"),
        len(row.counted),
        f"{row.weight:.10g}",
        _size(row.bytes),
        _text(row.loss, ".4f"),
        "; ".join(notes),
    )


def _worker_texts(rows: Sequence[WorkerRow], now: datetime) -> Iterator[str]:
    width = max([len("worker"), *(len(row.worker) for row in rows)])
    yield f"{'worker':{width}}  {_WORKER.format(*_WORKER_TITLES)}"
    for row in rows:
        cells = (
            row.round,
            _text(row.share, ".1%"),
            _text(row.steps, "d"),
            _text(row.steps_per_second, ".3g"),
            _text(row.loss, ".4f"),
            _status_text(row, now),
        )
        yield f"{row.worker:{width}}  {_WORKER.format(*cells)}"


def _status_text(row: WorkerRow, now: datetime) -> str:
    if row.status in ("late", "excluded", "missing"):
        ago = f" ({_age(row.since_time, now)} ago)" if row.since_time else ""
        return f"{row.status} since round {row.since}{ago}"
    return {"counted": "", "back": "back in the open round"}.get(row.status, row.status)


def _open_text(row: OpenRow, now: datetime) -> str:
    present = [f"{worker} ({_age(put, now)} ago)" for worker, put in row.present.items()]
    awaited = f"; awaited: {', '.join(row.awaited)}" if row.awaited else ""
    return f"Round {row.round} is open, with {', '.join(present) or 'nobody'}{awaited}"


def _text(value: Any, form: str) -> str:
    return "" if value is None else format(value, form)


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def _age(then: datetime, now: datetime) -> str:
    """The time between, as MM:SS or H:MM:SS."""
    minutes, seconds = divmod(max(0, int((now - then).total_seconds())), 60)
    hours = f"{minutes // 60}:" if minutes >= 60 else ""
    return f"{hours}{minutes % 60:02}:{seconds:02}"


# As a picture


def _require_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(f"--plot needs matplotlib: pip install matplotlib ({error})") from None


def draw(url: str, kinds: dict[str, Rounds], path: str) -> None:
    """Draw the losses, and below them the workers of each round, over time."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.figure import Figure

    tables = {kind: history.round_rows(kind, rounds) for kind, rounds in kinds.items()}
    has_loss = any(row.loss is not None for rows in tables.values() for row in rows)
    heights = [7] * has_loss + [len(_workers(rows)) + 2 for rows in tables.values()]
    figure = Figure(figsize=(9, 1 + 0.3 * sum(heights)), layout="constrained")
    grid = {"height_ratios": heights}
    panels = figure.subplots(len(heights), sharex=True, squeeze=False, gridspec_kw=grid)[:, 0]
    for panel, (kind, rows) in zip(panels[has_loss:], tables.items()):
        _draw_workers(panel, rows)
        panel.set_title(f"Workers in the rounds of {kind}", loc="left", fontsize="medium")
        if has_loss:
            _draw_losses(panels[0], rows, kind if len(tables) > 1 else "mean")
            panels[0].set(ylabel="loss")
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        if panel.get_legend_handles_labels()[1]:
            panel.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    locator = AutoDateLocator()
    panels[-1].xaxis.set_major_locator(locator)
    panels[-1].xaxis.set_major_formatter(ConciseDateFormatter(locator))
    figure.suptitle(url, fontsize="medium")
    figure.savefig(path)


def _draw_losses(panel: Any, rows: Sequence[RoundRow], label: str) -> None:
    """Draw the losses of all workers as points, and their means as a line."""
    losses = [(row.time, entry["loss"]) for row in rows for entry in row.counted]
    means = [(row.time, row.loss) for row in rows]
    for pairs, form in (
        (losses, {"ls": "", "marker": ".", "c": "silver"}),
        (means, {"label": label}),
    ):
        points = [(_local(time), loss) for time, loss in pairs if loss is not None]
        panel.plot([time for time, _ in points], [loss for _, loss in points], **form)


def _draw_workers(panel: Any, rows: Sequence[RoundRow]) -> None:
    """Draw a bar for each worker in each round. It is as high as the worker's weight."""
    workers = _workers(rows)
    highest = max((entry["weight"] for row in rows for entry in row.counted), default=0) or 1
    usual = statistics.median([row.seconds for row in rows if row.seconds] or [1.0])
    bars, late, excluded = [], [], []
    for row in rows:
        length = timedelta(seconds=row.seconds or usual)
        begin = _local(row.time) - length
        for entry in row.counted:
            height = 0.1 + 0.8 * entry["weight"] / highest
            bars.append((workers.index(entry["worker"]), length, height, begin))
        late += [(begin + length / 2, workers.index(worker)) for worker in row.late]
        excluded += [(begin + length / 2, workers.index(worker)) for worker in row.excluded]
    if bars:
        panel.barh(*zip(*bars), edgecolor="white", label="counted\n(height: weight)")
    if late:
        panel.plot(*zip(*late), "o", color="tab:orange", label="late")
    if excluded:
        panel.plot(*zip(*excluded), "X", color="tab:red", label="excluded")
    panel.set_yticks(range(len(workers)), workers)
    panel.invert_yaxis()


def _workers(rows: Sequence[RoundRow]) -> list[str]:
    """All workers that the rounds tell of, in the order in which they came."""
    groups = [([e["worker"] for e in row.counted], row.excluded, row.late) for row in rows]
    return list(dict.fromkeys(name for round in groups for group in round for name in group))


def _local(instant: datetime) -> datetime:
    """The time of this machine's clock, without a zone, because matplotlib shows UTC otherwise."""
    return instant.astimezone().replace(tzinfo=None)


if __name__ == "__main__":
    sys.exit(main())
