"""The scheduler: it admits all nodes, and then runs ps-lite if the workers train with MXNet."""

from __future__ import annotations

from .. import env
from ..log import logger
from . import membership, ps_lite


def serve() -> None:
    """Serve until all nodes have ended."""
    why_without_mxnet = ""
    try:
        ps_lite.library()  # fail before other nodes wait for this one
    except ImportError as error:
        if ps_lite.is_installed():
            raise
        why_without_mxnet = str(error)  # workers that train with PyTorch need no ps-lite
    nodes = membership.admit(env.cluster("scheduler"), why_without_mxnet)
    if nodes.framework == "torch":
        logger.warning(
            "scheduler: the workers train with PyTorch and need no servers (DMLC_NUM_SERVER is %d)",
            nodes.cluster.num_server,
        )
        nodes.wait_for_workers()
    else:
        env.export_for_ps_lite(nodes.cluster)
        ps_lite.serve(ps_lite.create(), lambda *_: None, nodes.wait_for_workers)
    nodes.close(env.get("PS_HEARTBEAT_TIMEOUT"))
