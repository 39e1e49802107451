"""Puts chunks into the messages that travel through MXNet's engines."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

from .. import plan
from ..plan import Chunk

_EACH = 2  # messages for each owner, if there are enough chunks


def in_messages(
    chunks: Sequence[Chunk], owners: int = 1, bundled: bool = True
) -> List[List[Chunk]]:
    """Chunks that travel in one message, in the order of their first ones.

    Chunks that are compressed with the same params share messages of up to `plan.SMALL_BYTES`. A
    chunk in rows has a message of its own, and so has a plain chunk, which fuses several tensors
    already. With several `owners`, who aggregate messages, there are enough messages for all of
    them. Unless they are `bundled`, only chunks of one tensor share a message.
    """
    most = plan.SMALL_BYTES
    if owners > 1:
        most = min(most, sum(chunk.message_bytes for chunk in chunks) // (_EACH * owners))
    bundles: List[List[Chunk]] = []
    open_bundles: Dict[Any, Tuple[List[Chunk], int]] = {}
    for chunk in chunks:
        kind = chunk.params, chunk.dtype, None if bundled else chunk.slices[0].tensor
        bundle, total = open_bundles.get(kind, ([], 0))
        alone = chunk.params is None or chunk.rows
        if alone or not bundle or total + chunk.message_bytes > most:
            bundle, total = [], 0
            bundles.append(bundle)
        bundle.append(chunk)
        if not alone:
            open_bundles[kind] = bundle, total + chunk.message_bytes
    return bundles
