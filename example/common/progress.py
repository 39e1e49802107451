"""The progress bar of a run: images per second and the remaining time."""

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


def say(line: str) -> None:
    """Print a line above the bar and flush it."""
    with tqdm.external_write_mode():
        print(line, flush=True)
