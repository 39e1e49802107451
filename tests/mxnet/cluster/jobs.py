"""What the jobs of several test modules share. A job is a function that runs on all workers."""

import hashlib
import os
import time
from pathlib import Path

import mxnet as mx
import numpy as np

import gluon_gc as bps


def parameters(shapes, dtype="float32", contexts=1, value=None):
    """Return initialized Parameters of these shapes, with the same values on all workers."""
    params = []
    for i, shape in enumerate(shapes):
        param = mx.gluon.Parameter(f"p{i}", shape=tuple(shape), dtype=dtype)
        init = mx.init.Constant(value if value is not None else i + 1)
        param.initialize(init=init, ctx=[mx.cpu(c) for c in range(contexts)])
        params.append(param)
    return params


def gradients_of(rank, step, shapes, dtype="float32"):
    """Return a worker's gradients at a step. The tests compute the same ones."""
    random = np.random.RandomState(1000 * rank + step)
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


def rows_of(rank, step, shape):
    """Return the rows of a worker's gradient at a step, maybe none; the tests compute them too."""
    rows, width = shape
    random = np.random.RandomState(1000 * rank + step)
    ids = np.flatnonzero(random.random_sample(rows) < [0.02, 0.3, 0.0, 1.0][(rank + step) % 4])
    return ids.tolist(), random.standard_normal((ids.size, width)).astype(np.float32)


def make(
    shapes,
    optimizer_params,
    compression_params=None,
    contexts=1,
    grad_req="write",
    dtype="float32",
    optimizer="sgd",
    **more,
):
    """Return parameters and a trainer without a cluster; `contexts` is a number, or CPUs' ids."""
    devices = range(contexts) if isinstance(contexts, int) else contexts
    params = []
    for i, shape in enumerate(shapes):
        param = mx.gluon.Parameter(f"p{i}", shape=shape, grad_req=grad_req, dtype=dtype)
        param.initialize(mx.init.Constant(1.0), ctx=[mx.cpu(c) for c in devices])
        params.append(param)
    trainer = bps.DistributedTrainer(
        params,
        optimizer,
        optimizer_params,
        compression_params=compression_params,
        kvstore="local",
        **more,
    )
    return params, trainer


def gradients(step, shapes):
    return gradients_of(0, step, shapes)


def backward(params, values):
    """Give every parameter its gradient on every context, by autograd."""
    array = mx.np.array if mx.util.is_np_array() else mx.nd.array
    with mx.autograd.record():
        losses = [
            (p.data(ctx) * array(g, ctx=ctx, dtype=p.dtype)).sum()
            for p, g in zip(params, values)
            for ctx in p.list_ctx()
        ]
    mx.autograd.backward(losses)


def train(params, trainer, shapes, steps, batch_size=2, before_step=lambda step: None):
    """Train without a cluster on known gradients; returns the weights."""
    for step in range(steps):
        before_step(step)
        backward(params, gradients(step, shapes))
        trainer.step(batch_size)
    return [param.data().asnumpy() for param in params]


def train_steps(params, trainer, steps, shapes):
    """Train on this worker's gradients."""
    for step in steps:
        backward(params, gradients_of(bps.rank(), step, shapes))
        trainer.step(1)


def give(param, gradient):
    """Write a gradient directly, as backward would."""
    gradient.copyto(param.list_grad()[0])
    param.list_data()[0]._fresh_grad = True


def give_rows(param, rank, step):
    """Give a parameter the row-sparse gradient of `rows_of`."""
    ids, values = rows_of(rank, step, param.shape)
    gradient = mx.nd.sparse.zeros("row_sparse", param.shape)
    if ids:
        gradient = mx.nd.sparse.row_sparse_array((values, ids), param.shape)
    give(param, gradient)


def weights_of(params, name="w"):
    return {f"{name}{i}": param.data().asnumpy() for i, param in enumerate(params)}


def assert_same_on_all_workers(array):
    """Compare an array between workers, bit for bit but for the sign of zero."""
    total = bps.allreduce(np.asarray(array, np.float64), average=False)
    np.testing.assert_array_equal(total, bps.size() * np.asarray(array, np.float64))


def wait_for(path, seconds=60):
    """Wait until another process has created a file."""
    end = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"{path.name} was not made within {seconds} s")
        time.sleep(0.01)


def ranks():
    """Return this worker's rank, and its rank on its machine."""
    return bps.rank(), bps.local_rank(), bps.local_size()


def forever(folder, **compression_params):
    """Exchange until a process dies. The file running{rank} has the process's number."""
    tensor = mx.nd.ones(1000)
    bps.byteps_declare_tensor("again", **compression_params)
    while True:
        bps.byteps_push_pull(tensor, name="again")
        tensor.wait_to_read()
        running = Path(folder, f"running{bps.rank()}")
        if not running.exists():
            begun = running.with_suffix(".begun")
            begun.write_text(str(os.getpid()))
            begun.rename(running)  # atomic, so that a reader sees a complete file


def until_told(folder=None, last=None):
    """Train on known gradients: compressed, uncompressed, and row-sparse.

    In the folder, the job writes the number of steps done to `step{rank}`, and reads the last step
    from `last`. Returns the weights, and a digest of all gradients.
    """
    shapes = [(3000,), (500,), (50, 6), (40, 4)]
    params = parameters(shapes[:2])
    for i, shape in enumerate(shapes[2:], 2):
        params.append(mx.gluon.Parameter(f"p{i}", shape=shape, grad_stype="row_sparse"))
        params[-1].initialize(mx.init.One())
    for param in params[1::2]:
        param.compression_params = None
    compression_params = {"compressor": "onebit", "ef": "vanilla", "scaling": True}
    optimizer = {"learning_rate": 0.01}
    trainer = bps.DistributedTrainer(
        params, "sgd", optimizer, compression_params=compression_params
    )
    seen, step = hashlib.sha256(), 0
    while step != last:
        for param, gradient in zip(params, gradients_of(bps.rank(), step, shapes[:2])):
            give(param, mx.nd.array(gradient))
        for param in params[2:]:
            give_rows(param, bps.rank(), step)
        trainer.step(1)
        for param in params:
            seen.update(param.list_grad()[0].asnumpy().tobytes())
        step += 1
        if folder is not None:
            part = Path(folder, f"part{bps.rank()}")
            part.write_text(str(step))
            part.rename(Path(folder, f"step{bps.rank()}"))
            if Path(folder, "last").exists():
                last = int(Path(folder, "last").read_text())
                assert step <= last
    return {**weights_of(params), "seen": seen.hexdigest(), "steps": step}
