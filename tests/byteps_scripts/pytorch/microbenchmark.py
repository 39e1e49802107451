"""The arguments and calls of BytePS's microbenchmark-byteps.py."""

import time

import synthetic
import torch

import gluon_gc.torch as bps
from gluon_gc.torch.ops import poll, push_pull_async_inplace, synchronize

args = synthetic.arguments(
    {"num-warmup": 10, "num-iters": 1000, "no-cuda": False, "no-wait": True, "gpu": -1}
)
bps.init()


def benchmark(tensor, average, name):
    if not args.no_wait and bps.rank() == 0:
        time.sleep(0.01)
    start = time.time()
    handle = push_pull_async_inplace(tensor, average, name)
    while True:
        if poll(handle):
            synchronize(handle)
            break
    return (time.time() - start) * 1000


for i in range(5):
    data = torch.rand(10**i, dtype=torch.float32)
    for _ in range(args.num_warmup):
        benchmark(tensor=data, average=True, name=str(i))
    durations = [benchmark(data, True, str(i)) for _ in range(args.num_iters)]
    synthetic.log(bps, "%d bytes: %.3f ms", 4 * 10**i, sum(durations) / len(durations))
