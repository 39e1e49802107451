"""The checkpoints of a trainer: its methods `save_states` and `load_states`."""

from __future__ import annotations

from typing import Sequence, Union

from ..state import saving
from ..state.optimizer_states import OptimizerStates
from .gluon_hooks import HookedTrainer


class SavedTrainer(HookedTrainer):
    """A trainer whose checkpoints also have the residuals and momentum of compression."""

    def _follow_cluster(self) -> None:
        """Exchange gradients in the cluster that `bps.resume` has joined, if it was called."""
        raise NotImplementedError

    def save_states(self, fname: str) -> None:
        """Save the optimizer's state, and the residuals and momentum of compression, to a file.

        Each worker saves its own file. Rank 0's file also has the residuals of the servers. With an
        algorithm, each file also has the algorithm's state and this worker's parameters. A new file
        replaces an old one when it is complete and on disk.
        All workers call this together before the first step, and before the next step after
        `bps.resume` or after a parameter is unfrozen. Later, the call waits for no other worker.

        Raises
        ------
        RuntimeError
            The averages of the last `allreduce_grads` are not applied, so the state after them is
            not the one that training continues from.
        """
        self._follow_cluster()
        self._averaging.require_settled("save_states")
        saving.save(self._saved("save_states"), fname)

    def load_states(self, fname: Union[str, Sequence[str]], strict: bool = True) -> None:
        """Restore the states that `save_states` saved. All workers call this.

        Nothing changes until all workers have checked their files. Parameters match by name, or by
        the network's order if only their names differ. The number of servers and the size of chunks
        may differ.
        A file that gluon.Trainer saved may be loaded too, strict or not. It has only the
        optimizer's state, so residuals and the momentum of compression start from zero, with a
        warning. Load only files that you trust: the optimizer's state is a pickle, which can run
        code.

        Parameters
        ----------
        fname : str or list of str
            This worker's file. If the number of workers, in all or on a machine, or the backend has
            changed: the files of all former workers, the same list on every worker. Each worker
            gets an equal share of the sum of all residuals, and of all momenta. A list needs
            strict=False.
        strict : bool
            If True, the file must have the states of exactly this trainer's parameters. If False,
            fname may be a list, states that a file lacks start from zero, and additional ones are
            ignored. The log names both.

        Raises
        ------
        ValueError
            The file is damaged, or has another format, parameters, compression, rank or number of
            workers. Or the files of a list are of different steps.
        RuntimeError
            Another worker's file does not fit, or is of another step.
        """
        self._follow_cluster()
        self._averaging.recall(saving.header_of(fname))
        saving.load(self._saved("load_states"), fname, strict)
        self._optimizer = self._updaters[0].optimizer

    def _saved(self, call: str) -> saving.Saved:
        self._averaging.prepare(self._optimizer, call)
        optimizer = OptimizerStates(self._updaters, self._params)
        return saving.Saved(self._averaging, self._params, optimizer)
