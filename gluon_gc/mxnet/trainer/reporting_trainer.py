"""What a trainer reports: its methods `compression_stats` and `__repr__`, and a line in the log."""

from __future__ import annotations

from typing import Any, Dict, List

from ...log import logger
from . import stats, summary
from .saved_trainer import SavedTrainer


class ReportingTrainer(SavedTrainer):
    """A trainer that reports its compression."""

    def _log_summary(self) -> None:
        if self._averaging.exchange.rank == 0:
            logger.info("%s", "; ".join(self._summary()))

    def _summary(self) -> List[str]:
        return summary.of_trainer(self, self._averaging, self._compressions.default)

    def __repr__(self) -> str:
        return "\n  ".join(self._summary())

    def compression_stats(self, reset: bool = False) -> Dict[str, Any]:
        """Return the average bytes and seconds of a step: "tensors" by parameter name, and "total".

        The call waits until all steps are done. With an algorithm, "tensors" has the vectors that
        the workers average, such as "difference of w", and a step counts only if it exchanges them.
        Each entry is a dict:

        - raw_bytes: the size of the uncompressed gradient.
        - pushed_bytes, pulled_bytes: the bytes that this worker sends and receives.
        - ratio: raw_bytes / pushed_bytes, or None if nothing is sent.
        - bits_per_element: the bits that this worker sends for each element.
        - compress_seconds, wait_seconds, decompress_seconds: sums over the chunks. Chunks overlap,
          so these sums may exceed the duration of the step. Copying an uncompressed gradient counts
          as compressing.

        "total" also has exposed_seconds, the mean over the last 64 steps or fewer. It estimates how
        long training waits in a step, by the time from the start of the last gradient's compression
        to the last result. Time for clipping, or for a sum over the workers of one machine, is not
        included.

        Parameters
        ----------
        reset : bool
            Whether the next call averages over later steps only.
        """
        tensors = {
            f"{kind} of {self._params[i].name}" if kind else self._params[i].name: tensor
            for (i, kind), tensor in self._averaging.tensors.items()
        }
        return stats.of_step(self._averaging.exchange, tensors, reset)
