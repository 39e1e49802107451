"""python -m gluon_gc.mxnet.facts: prints what `python -m gluon_gc check` tells about MXNet."""

from __future__ import annotations

import json

import mxnet as mx

if __name__ == "__main__":
    has_servers = mx.runtime.Features().is_enabled("DIST_KVSTORE")
    servers = "with parameter servers" if has_servers else "without parameter servers"
    print(json.dumps({"facts": [servers, f"{mx.context.num_gpus()} GPUs"]}))
