"""The progress of a run on the screen: images a second, and how long it will take."""

from tqdm import tqdm

STEPS_AHEAD = 2  # that may wait for the devices: without a bound, they would fill the memory


def progress_bar(images: int, rank: int, done: int = 0) -> tqdm:
    """Return a bar that worker 0 draws, to be told of images once they are trained on.

    Parameters
    ----------
    images : int
        Of all workers in all epochs.
    rank : int
        This worker.
    done : int
        Of these, before this run.
    """
    return tqdm(
        total=images,
        initial=done,
        unit="image",
        unit_scale=True,
        mininterval=1,
        disable=rank != 0,
    )


def say(line: str) -> None:
    """Print a line at once, above the bar."""
    with tqdm.external_write_mode():
        print(line, flush=True)
