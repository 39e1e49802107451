"""What the scheduler runs: the meeting of the nodes, then ps-lite's own scheduler."""

from __future__ import annotations

from .. import env
from . import census, ps_lite


def serve() -> None:
    """Serve until all nodes have left."""
    ps_lite.library()  # or an error, before others wait for this node
    nodes = census.hold(env.cluster("scheduler"))
    env.export_for_ps_lite(nodes.cluster)
    ps_lite.serve(ps_lite.create(), lambda *_: None, nodes.wait_for_workers)
    nodes.close(env.get("PS_HEARTBEAT_TIMEOUT"))
