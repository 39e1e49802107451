"""A worker of benchmark/fsdp.py: the language model under fully_shard.

    torchrun --nproc-per-node 2 benchmark/fsdp_worker.py PEER [ARGUMENT...]

The arguments are those of example/pytorch/language_model.py.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Optional

import torch
from network import Network
from torch.distributed import fsdp

import gluon_gc.torch as bps

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "example" / "pytorch"))

from language_model import Training, adamw, main

_SENT = Path("/sys/class/net", Network.interface, "statistics/tx_bytes")
Params = Optional[Mapping[str, Any]]
BLOCKS: Params = {"compressor": "blockwise"}
BYTES: Params = {"compressor": "blockwise", "bits": 8}
GRADIENTS: Params = {"compressor": "blockwise", "hadamard": True, "ef": "vanilla"}


class Peer(NamedTuple):
    """A method of training under fully_shard.

    Attributes
    ----------
    dtype : torch.dtype, optional
        The dtype of the mixed precision policy.
    scatter, gather : dict, optional
        The compression of gradients and of parameters. None: fully_shard's own collective.
    differences : bool
        See `compress_all_gather`.
    residual_bits : int
        See `compress_reduce_scatter`.
    """

    dtype: torch.dtype | None = None
    scatter: Params = None
    gather: Params = None
    differences: bool = True
    residual_bits: int = 32


PEERS: dict[str, Peer] = {
    "fp32": Peer(),
    "bf16": Peer(torch.bfloat16),
    "scatter": Peer(scatter=GRADIENTS),
    "both": Peer(scatter=GRADIENTS, gather=BLOCKS),
    "both-small": Peer(scatter=GRADIENTS, gather=BLOCKS, residual_bits=8),
    "both-bytes": Peer(scatter=GRADIENTS, gather=BYTES, differences=False),
    "both-bf16": Peer(torch.bfloat16, GRADIENTS, BLOCKS),
}


class LinkTraffic:
    """The bytes that this worker sends in training steps, in the form of a CompressionState."""

    def __init__(self) -> None:
        self.steps = self.sent = 0

    def compression_stats(self) -> dict[str, dict[str, float]]:
        """Return the bytes of a step; fully_shard sends as many as it receives."""
        count = self.sent / max(1, self.steps)
        return {"total": {"pushed_bytes": count, "pulled_bytes": count}}


class Sharded(Training):
    """A training run under fully_shard, with a module for each block."""

    peer: Peer

    def connect(self) -> None:
        peer = self.peer
        policy = fsdp.MixedPrecisionPolicy(param_dtype=peer.dtype)
        for block in self.net.blocks:
            fsdp.fully_shard(block, mp_policy=policy)
        fsdp.fully_shard(self.net, mp_policy=policy)
        self.model, self.compression = self.net, LinkTraffic()
        self.optimizer = adamw(self.net, self.args)
        if peer.scatter is not None:
            bits = peer.residual_bits
            bps.compress_reduce_scatter(self.net, peer.scatter, residual_bits=bits)
        if peer.gather is not None:
            bps.compress_all_gather(self.net, peer.gather, differences=peer.differences)

    def train_step(self, step: int) -> None:
        before = int(_SENT.read_text())
        super().train_step(step)
        self.compression.sent += int(_SENT.read_text()) - before
        self.compression.steps += 1

    def run(self) -> None:
        super().run()
        for module in self.net.modules():
            if isinstance(module, fsdp.FSDPModule):
                module.unshard()  # for the checksum of the parameters


if __name__ == "__main__":
    Sharded.peer = PEERS[sys.argv[1]]
    main(Sharded, sys.argv[2:])
