"""Moves the states of the servers' aggregators to and from a checkpoint, in pages."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence

import mxnet as mx

from ..exchange.exchange import States
from ..kvstore import archive
from ..kvstore.parameter_server.pages import PAGE_BYTES, Pages

Layouts = Sequence[Mapping[int, archive.Layouts]]
"""For each server, the layouts of its states by key."""


class ServerStates:
    """The worker's end.

    Parameters
    ----------
    pages : sequence of Pages
        The pages of each server.
    command : callable
        `Servers.command`. It sends all servers an action and a request.
    """

    def __init__(self, pages: Sequence[Pages], command: Callable[[str, Any], None]) -> None:
        self._pages, self._command = pages, command

    def fetch(self, keys: Sequence[int], layouts: Layouts) -> Iterator[States]:
        """Yield the states of these keys, in their order. Only one worker calls it."""
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
        """Send states to the servers, which continue from them. All workers call it.

        `states` has the states of each server's keys, in their order. One worker has it; the others
        pass None.
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
