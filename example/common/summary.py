"""Averages the results of runs with several seeds."""

from typing import Any, Callable, Dict, List, Sequence

Run = List[Dict[str, Any]]  # the records of a training log, one per epoch


def summary(runs: Sequence[Run]) -> Dict[str, float]:
    """Return the means over runs of the final accuracy, the bytes per step, and the seconds."""

    def mean(value: Callable[[Run], float]) -> float:
        return sum(value(run) for run in runs) / len(runs)

    def steps(run: Run) -> int:
        return sum(len(record["step_loss"]) for record in run)

    return {
        "accuracy": mean(lambda run: run[-1]["validation_accuracy"]),
        "pushed": mean(lambda run: run[-1]["pushed_bytes"] / steps(run)),
        "pulled": mean(lambda run: run[-1]["pulled_bytes"] / steps(run)),
        "seconds": mean(lambda run: sum(record["seconds"] for record in run)),
    }
