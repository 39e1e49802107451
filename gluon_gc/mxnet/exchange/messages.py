"""Groups chunks into the messages that travel through MXNet's engines."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

from ... import plan
from ...plan import Chunk

_MESSAGES_PER_OWNER = 2  # if there are enough chunks


def in_messages(
    chunks: Sequence[Chunk], owners: int = 1, bundled: bool = True
) -> List[List[Chunk]]:
    """Group chunks into messages, which are in the order of their first chunks.

    Chunks with the same compression share messages of up to `plan.SMALL_BYTES`. A row-sparse chunk
    has a message of its own. So has a plain chunk, which already fuses several tensors. If several
    `owners` aggregate messages, there are enough messages for all of them. If not `bundled`, only
    chunks of one tensor share a message.
    """
    most = plan.SMALL_BYTES
    if owners > 1:
        most = min(
            most, sum(chunk.message_bytes for chunk in chunks) // (_MESSAGES_PER_OWNER * owners)
        )
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
