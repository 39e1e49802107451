"""The progress bar of a run: images per second and the remaining time."""

from typing import Any, Dict

from tqdm import tqdm

STEPS_AHEAD = 2  # steps that may be queued; without a limit, queued steps would fill the memory


def progress_bar(images: int, rank: int, done: int = 0, unit: str = "image") -> tqdm:
    """Return a progress bar that counts trained images. Only worker 0 draws it.

    Parameters
    ----------
    images : int
        The images of all workers in all epochs.
    rank : int
        The rank of this worker.
    done : int
        The images trained before this run.
    unit : str
        The name of the counted things, if they are not images.
    """
    return tqdm(
        total=images,
        initial=done,
        unit=unit,
        unit_scale=True,
        mininterval=1,
        disable=rank != 0,
    )


def traffic_postfix(compression: Any) -> Dict[str, str]:
    """Return the ratio, the bytes and the wait of a step, for a bar's `set_postfix`.

    `compression` has `compression_stats`. It is a trainer or the state of an optimizer, or None.
    """
    if compression is None:
        return {}
    total = compression.compression_stats()["total"]
    return {
        "ratio": "none" if total["ratio"] is None else f"{total['ratio']:.3g}",
        "sent": tqdm.format_sizeof(total["pushed_bytes"], "B"),
        "wait": f"{total['wait_seconds']:.3g} s",
    }


def say(line: str) -> None:
    """Print a line above the bar and flush it."""
    with tqdm.external_write_mode():
        print(line, flush=True)
