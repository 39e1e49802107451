"""The language model on sites whose workers have shards of it, with local steps between the sites.

    torchrun --nproc-per-node 4 benchmark/sharded_sites.py --inside 2
    torchrun --nproc-per-node 2 benchmark/sharded_sites.py --inside 1

The workers of a site divide the batch that one worker would have. So both commands print the same
losses with --steps 40. Later, rounding makes them differ. With --onebit they differ from the first
round on, because each worker has a scale of its own.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import fsdp
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

import gluon_gc.torch as bps

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "example"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "example" / "pytorch"))

from common.source_text import load_text, training_windows, validation_windows
from transformer import Transformer

CONTEXT, WINDOWS = 128, 256  # bytes of a window; validation windows
COMPRESSION = {"compressor": "onebit", "scaling": True, "ef": "vanilla"}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inside", type=int, default=2, help="workers on each site")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=20, help="steps between rounds")
    parser.add_argument("--batch-size", type=int, default=16, help="of each site")
    parser.add_argument("--onebit", action="store_true", help="compress what sites exchange")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    bps.init()
    sites = bps.size() // args.inside
    mesh = init_device_mesh("cpu", (sites, args.inside), mesh_dim_names=("sites", "shards"))
    site, local = mesh.get_coordinate()
    text = load_text(site, sites)
    validation = validation_windows(text, WINDOWS, CONTEXT, 0, 1)
    torch.manual_seed(0)
    net = Transformer(128, 4, 4, CONTEXT)
    for module in (*net.blocks, net):
        fsdp.fully_shard(module, mesh=mesh["shards"])
    optimizer = bps.DistributedOptimizer(
        torch.optim.AdamW(net.parameters(), 2e-3, (0.9, 0.95), weight_decay=0.1),
        net.named_parameters(),
        compression_params=COMPRESSION if args.onebit else None,
        algorithm={"name": "local_steps", "every": args.every, "outer_momentum": 0.9},
        process_group=mesh["sites"].get_group(),
    )

    def loss_of(windows: np.ndarray) -> torch.Tensor:
        data = torch.from_numpy(windows).to(torch.int64)
        logits = net(data[:, :-1]).flatten(0, 1)
        return functional.cross_entropy(logits, data[:, 1:].flatten())

    losses: list[float] = []
    for step in range(1, args.steps + 1):
        windows = training_windows(text, args.batch_size, CONTEXT, [0, step, site])
        optimizer.zero_grad()
        loss = loss_of(windows[local :: args.inside])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        parts = np.array_split(validation, len(validation) // args.batch_size)
        found = np.mean([loss_of(part).item() for part in parts])
    mean = torch.tensor([found, np.mean(losses[-20:])]) / bps.size()
    dist.all_reduce(mean)
    if bps.rank() == 0:
        validated, trained = mean.tolist()
        print(f"validation loss {validated:.4f} nats a byte, training loss {trained:.4f}")
    bps.shutdown()


if __name__ == "__main__":
    main()
