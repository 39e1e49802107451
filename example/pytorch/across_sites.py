"""Train a byte-level transformer across sites, without a launcher.

The workers exchange local steps through a folder or a bucket. Any number of them may be started and
killed, on any machines, at any time.
"""

import argparse
import sys
from pathlib import Path

import torch
from torch.nn import functional

import gluon_gc.torch as bps

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for example/common

from common.source_text import load_text, training_windows
from transformer import Transformer

CONTEXT, BATCH_SIZE, LR, WARMUP_STEPS = 64, 16, 3e-3, 20
REPORTED = 20  # steps between lines of output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", metavar="URL", help="s3://bucket/run1, or a folder")
    parser.add_argument("--steps", type=int, default=1000, help="steps of this worker")
    parser.add_argument("--every", default="20", help="steps of a round, or a time: '60 s'")
    args = parser.parse_args()

    bps.init(mailbox=args.url, grace=10)
    every = int(args.every) if args.every.isdigit() else args.every
    text = load_text(0, 1)
    model = Transformer(width=64, depth=2, heads=4, context=CONTEXT)
    optimizer = bps.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=LR),
        model.named_parameters(),
        compression_params={"compressor": "onebit", "scaling": True, "ef": "vanilla"},
        algorithm={"name": "local_steps", "every": every},
    )
    for step in range(1, args.steps + 1):
        # Each start begins with new moments of AdamW. A small learning rate builds them up.
        optimizer.param_groups[0]["lr"] = LR * min(1.0, step / WARMUP_STEPS)
        windows = training_windows(text, BATCH_SIZE, CONTEXT, [bps.worker_seed(), step])
        data = torch.from_numpy(windows).long()
        logits = model(data[:, :-1]).flatten(0, 1)
        loss = functional.cross_entropy(logits, data[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bps.report_loss(loss.item())
        if step % REPORTED == 0:
            print(f"step {step}: loss {loss.item():.3f}, {bps.size()} workers", flush=True)
    bps.shutdown()


if __name__ == "__main__":
    main()
