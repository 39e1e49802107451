"""What servers carry over, on its way to and from a checkpoint, in pages."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence

import mxnet as mx

from ...exchange import States
from .. import archive
from .pages import PAGE_BYTES, Pages

Layouts = Sequence[Mapping[int, archive.Layouts]]
"""Of each server, by key."""


class ServerStates:
    """The worker's end.

    Parameters
    ----------
    pages : sequence of Pages
        Of each server.
    command : callable
        Has all servers do something; takes what, and a request.
    """

    def __init__(self, pages: Sequence[Pages], command: Callable[[str, Any], None]) -> None:
        self._pages, self._command = pages, command

    def fetch(self, keys: Sequence[int], layouts: Layouts) -> Iterator[States]:
        """What is carried over for these keys, in their order."""
        joiners = [archive.Joiner(of_server) for of_server in layouts]
        arrived: Dict[int, States] = {
            key: [{} for _ in chunks]
            for of_server in layouts
            for key, chunks in of_server.items()
            if not archive.num_bytes(chunks)
        }
        request: Dict[str, Any] = {"keys": list(keys)}
        for key in keys:
            while key not in arrived:
                self._command("save", request)
                request = {}
                asked = [number for number, joiner in enumerate(joiners) if joiner.left]
                for number in asked:
                    self._pages[number].ask()
                for number in asked:
                    arrived.update(joiners[number].add(self._pages[number].answer()))
            yield arrived.pop(key)

    def give(
        self,
        keys: Sequence[int],
        layouts: Layouts,
        states: Optional[List[Iterable[States]]],
    ) -> None:
        """Let servers go on from states, for each server those of its keys in their order.

        All workers call it; one has the states, and the others None.
        """
        cutters = [archive.Cutter(iter(of_server)) for of_server in states or []]
        if cutters:
            self._command("load", {"keys": list(keys)})
        left = [sum(map(archive.num_bytes, of_server.values())) for of_server in layouts]
        while any(left):
            for number, bytes_left in enumerate(left):
                if bytes_left:
                    self._pages[number].push(cutters[number].page(PAGE_BYTES) if cutters else None)
            mx.nd.waitall()
            left = [max(0, bytes_left - PAGE_BYTES) for bytes_left in left]
