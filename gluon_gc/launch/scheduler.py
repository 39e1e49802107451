"""What the scheduler runs: the meeting of the nodes, then ps-lite's own scheduler."""

from __future__ import annotations

from .. import env
from . import census, ps_lite
from .watch import Watch


def serve() -> None:
    """Serve until all nodes have left."""
    ps_lite.library()  # or an error, before others wait for this node
    nodes = census.hold(env.cluster("scheduler"))
    timeout = env.heartbeat_timeout()

    def problem() -> str:
        dead = [name for id, name in nodes.ids.items() if ps_lite.is_dead(node, id, timeout)]
        return nodes.silence(dead) if dead else ""

    env.export_for_ps_lite(nodes.cluster)
    node = ps_lite.create()
    watch = Watch(problem, nodes.fail_soon)
    ps_lite.serve(node, lambda *_: None, nodes.wait_for_workers)
    watch.stop()
    nodes.close(timeout or env.get("PS_HEARTBEAT_TIMEOUT"))
