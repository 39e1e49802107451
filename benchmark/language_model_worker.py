"""A worker of benchmark/language_model.py that trains with a method of PyTorch or torchft.

    torchrun --nproc-per-node 2 benchmark/language_model_worker.py PEER [ARGUMENT...]

The arguments are those of example/pytorch/language_model.py.
"""

from __future__ import annotations

import os
import socket
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from exchange_torch import ONE_BUCKET
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import gluon_gc.torch as bps

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "example" / "pytorch"))

from language_model import Training, main

_LIGHTHOUSE_PORT = 9100
_TIMEOUT = timedelta(minutes=10)


class Fp16(Training):
    """DistributedDataParallel with PyTorch's fp16 hook."""

    def connect(self) -> None:
        super().connect()
        self.model.register_comm_hook(None, default_hooks.fp16_compress_hook)


class PowerSGD(Training):
    """DistributedDataParallel with PyTorch's PowerSGD hook of rank 4, as `exchange_torch.DDP`."""

    def connect(self) -> None:
        self.compression = None
        self.model = DistributedDataParallel(self.net, bucket_cap_mb=ONE_BUCKET)
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=4, start_powerSGD_iter=10
        )
        self.model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


class TorchftDiLoCo(Training):
    """torchft's DiLoCo over Gloo, with its outer step. --every is its sync_every.

    Each worker is a replica group of its own. Worker 0 runs the lighthouse.
    """

    def connect(self) -> None:
        from torchft import Manager, ProcessGroupGloo
        from torchft.coordination import LighthouseServer
        from torchft.local_sgd import DiLoCo

        self.compression, self.model = None, self.net
        if bps.rank() == 0:
            self.lighthouse = LighthouseServer(f"[::]:{_LIGHTHOUSE_PORT}", min_replicas=bps.size())
        dist.barrier()
        own = socket.gethostbyname(socket.gethostname())
        self.store = dist.TCPStore(own, 0, is_master=True, wait_for_workers=False)
        self.manager = Manager(
            ProcessGroupGloo(_TIMEOUT),
            load_state_dict=self.net.load_state_dict,
            state_dict=self.net.state_dict,
            min_replica_size=bps.size(),
            use_async_quorum=False,
            timeout=_TIMEOUT,
            quorum_timeout=_TIMEOUT,
            rank=0,
            world_size=1,
            store_addr=own,
            store_port=self.store.port,
            lighthouse_addr=f"http://{os.environ['MASTER_ADDR']}:{_LIGHTHOUSE_PORT}",
            replica_id=f"worker{bps.rank()}",
            hostname=own,
            init_sync=False,
        )
        outer = torch.optim.SGD(self.net.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        every = self.args.algorithm_every
        DiLoCo(self.manager, [self.net], self.optimizer, outer, every).__enter__()

    def run(self) -> None:
        super().run()
        self.manager.shutdown()


PEERS = {"fp16": Fp16, "powersgd": PowerSGD, "torchft": TorchftDiLoCo}

if __name__ == "__main__":
    main(PEERS[sys.argv[1]], sys.argv[2:])
