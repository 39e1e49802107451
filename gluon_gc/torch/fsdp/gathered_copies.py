"""GatheredCopies: one worker's copies of the parameters that an FSDP module gathered last.

The owner of a shard sends the compressed difference between the shard and its copy. All workers,
the owner too, add the decoded difference to their copies. So the copies are equal on all workers,
and the next difference has the error of the last one. A shard whose bits have not changed is not
sent.

An optimizer changes shards a little in every step, so the errors stay small. Other changes may be
large, and no step follows that would correct the error of a frozen or evaluated shard. So owners
broadcast some shards themselves, uncompressed. A shard is broadcast in three cases:

- `load_state_dict` has loaded it.
- The shards of the module have changed more than an optimizer changes them.
- It has always been frozen and has not changed since the last gather, but its copy is not exact.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Sequence, Set, Tuple

import torch
import torch.distributed as dist

from ...state import fitting
from ..state import state_dicts
from ..state.coder_states import Tensors
from ..state.sharded import Shards
from ..transport import staging

_LARGE = 1 / 8  # the largest change by an optimizer, as a share of the values' norm


class GatheredCopies:
    """The copies of all workers' shards, and the values of this worker's shards at the last gather.

    `rows` has the copies, shape (workers, elements of a worker), `by_key` the same by the names of
    shards. `frozen` has the parameters that need no gradient now. If one needs it later, it is no
    longer frozen.
    """

    def __init__(self, shards: Shards, frozen: Mapping[str, torch.Tensor]) -> None:
        self._shards, self._frozen = shards, frozen
        self.begun = False  # whether there was a gather
        self._loaded: Tensors = {}

    def begin(self, own: torch.Tensor, group: dist.ProcessGroup) -> None:
        """Gather the first copies uncompressed: the parameters, or the loaded copies."""
        start, sent = own, own.clone()
        if self._loaded:
            keys = self._shards.keys(self._shards.rank)
            start, sent = (
                torch.cat([self._loaded[key][kind] for key in keys]).to(own)
                for kind in ("copy", "sent")
            )
            self._loaded = {}
        self.begun = True
        self.rows = own.new_empty(self._shards.workers, own.numel())
        received = [row.view(torch.uint8) for row in self.rows]
        dist.all_gather(received, start.view(torch.uint8), group=group)
        self.by_key = self._shards.split_all(self.rows)
        self._sent = self._shards.split(self._shards.rank, sent)

    def changes(
        self, own: torch.Tensor, uncompressed: Set[str]
    ) -> Tuple[Dict[str, torch.Tensor], Set[str]]:
        """Return the messages that bring the copies up to date with this worker's shards.

        These are the differences or, for shards in `uncompressed`, the values; and the names of the
        shards to broadcast. Their copies are overwritten.
        """
        shards, copies = self._shards.split(self._shards.rank, own), self.by_key
        changed = {k: v for k, v in shards.items() if not _same_bits(v, self._sent[k])}
        candidates = [k for k in shards if k in changed or self._is_frozen(k)]
        inexact = [k for k in candidates if not _same_bits(shards[k], copies[k])]
        compressed = {k: v for k, v in changed.items() if k not in uncompressed}
        large = self._are_large(compressed)
        exact = {k for k in inexact if k not in changed or (large and k in compressed)}
        working = staging.working_dtype(own.dtype)
        differences = {
            k: shards[k].to(working) - copies[k] if k in compressed else shards[k]
            for k in inexact
            if k not in exact
        }
        for key, values in changed.items():
            self._sent[key].copy_(values)
        for key in exact:
            copies[key].copy_(shards[key])
        return differences, exact

    def _is_frozen(self, key: str) -> bool:
        parameter = self._frozen.get(key.rpartition("/")[0])
        return parameter is not None and not parameter.requires_grad

    def _are_large(self, changed: Mapping[str, torch.Tensor]) -> bool:
        """Return whether these shards have changed more than an optimizer changes them.

        The norms are those of all these shards together, because some may begin with zeros.
        """
        values = {k: v.to(staging.working_dtype(v.dtype)) for k, v in changed.items()}
        changes = [v - self._sent[k] for k, v in values.items()]
        norm = torch.nn.utils.get_total_norm
        # "not <=", because the change is NaN after `forget_sent`
        return not norm(changes) <= _LARGE * norm(list(values.values()))

    def broadcast(self, keys: Sequence[str], group: dist.ProcessGroup) -> List[str]:
        """Send shards of all workers uncompressed. Return those with a NaN or an infinity."""
        for worker in range(self._shards.workers):
            copies = [self.by_key[k] for k in self._shards.keys(worker) if k in keys]
            if copies:
                values = torch.cat(copies)
                source = dist.get_global_rank(group, worker)
                dist.broadcast(values.view(torch.uint8), source, group)
                for copy, part in zip(copies, values.split([copy.numel() for copy in copies])):
                    copy.copy_(part)
        return [key for key in keys if not self.by_key[key].isfinite().all()]

    def forget_sent(self) -> None:
        """Let this worker broadcast its shards in the next gather, because they were loaded."""
        if self.begun:
            for values in self._sent.values():
                values.fill_(float("nan"))

    # Checkpoints

    def saved_state(self) -> Tensors:
        """Return the copies of this worker's shards, and the values that were sent last."""
        return _cloned(self.by_key, self._sent) if self.begun else self._loaded

    def empty_state(self, dtype: torch.dtype) -> Tensors:
        """Return zeros in the shapes and dtypes of `saved_state`."""
        zeros = torch.zeros(self._shards.size, dtype=dtype, device="cpu")
        shards = self._shards.split(self._shards.rank, zeros)
        return _cloned(shards, shards)

    def load(self, tensors: Tensors) -> None:
        """Continue from the result of `saved_state`."""
        self._loaded, self.begun = dict(tensors), False


def check(tensors: Tensors, empty_state: Tensors) -> None:
    """Raise ValueError if these tensors do not fit."""
    there, here = (
        {(key, kind): (t.shape, t.dtype) for key in state for kind, t in state[key].items()}
        for state in (tensors, empty_state)
    )
    fitting.check(state_dicts.NOUN, "set of gathered copies", there, here)


def _cloned(copies: Mapping[str, torch.Tensor], sent: Mapping[str, torch.Tensor]) -> Tensors:
    """Return copies of the tensors of the shards in `sent`, in host memory."""
    return {
        key: {"copy": copies[key].cpu().clone(), "sent": values.cpu().clone()}
        for key, values in sent.items()
    }


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))
