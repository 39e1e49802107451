"""A site: the workers of a job that takes part in a run as one worker."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional, Tuple, TypeVar

import torch.distributed as dist

from ... import mailbox
from ..transport import groups
from ..watchdog import waiting

Answer = TypeVar("Answer")


class Site:
    """`mailbox.Site` of the workers of torch.distributed. All call `share` together."""

    def __init__(self) -> None:
        self.is_first, self.size = dist.get_rank() == 0, dist.get_world_size()
        self._group, _ = groups.take(range(self.size), everybody=True)

    def share(self, make: Callable[[], Answer]) -> Answer:
        shared: Tuple[Optional[Answer], Optional[BaseException]] = None, None
        if self.is_first:
            try:
                shared = make(), None
            except Exception as error:
                shared = None, error
        received = [shared]
        with waiting(lambda: "a worker waits for what worker 0 of its site learns"):
            dist.broadcast_object_list(received, src=0, group=self._group)
        answer, error = received[0]
        if error is not None:
            raise error
        return answer


def connect(url: Optional[str], settings: Mapping[str, Any]) -> None:
    """Take part in the run at a URL, if there is one, as a worker or with this site."""
    url = mailbox.requested(url, settings)
    if url:
        site = Site() if dist.get_world_size() > 1 else None
        mailbox.connect(url, "torch", site=site, **settings)
