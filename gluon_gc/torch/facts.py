"""python -m gluon_gc.torch.facts: prints what `python -m gluon_gc check` tells about PyTorch."""

from __future__ import annotations

import json

import torch
import torch.distributed as dist

from ..kernels.library import cuda_problem


def _gpus() -> dict[str, str]:
    """Return why each GPU cannot compress, by its name; "" if it can."""
    found = {}
    for number in range(torch.cuda.device_count()):
        with torch.cuda.device(number):
            torch.cuda.current_stream().synchronize()  # creates the context
            problem = cuda_problem("onebit")
        found[f"GPU {number}, {torch.cuda.get_device_name(number)}"] = problem
    return found


if __name__ == "__main__":
    every = set(dist.Backend.backend_list) - {"undefined", "fake"}
    engines = " and ".join(sorted(filter(dist.is_backend_available, every)))
    facts = [f"engines {engines or 'none'}", f"CUDA {torch.version.cuda or 'none'}"]
    print(json.dumps({"facts": facts, "gpus": _gpus()}))
