"""The workers' jobs in the distributed tests: ``jobs.py FUNCTION RESULT_FILE JSON_ARGUMENTS``."""

import functools
import hashlib
import itertools
import json
import logging
import os
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

import mxnet as mx
import numpy as np

import gluon_gc as bps
from gluon_gc.algorithms import powersgd
from gluon_gc.auto.choice import Link, Measured, Way
from gluon_gc.auto.speed import Speed
from gluon_gc.auto.step_clock import StepClock
from gluon_gc.log import logger
from gluon_gc.mxnet.byteps.runtime import default_exchange
from gluon_gc.mxnet.exchange.gradient import Job
from gluon_gc.mxnet.kvstore.horovod.message_groups import Alltoall
from gluon_gc.mxnet.kvstore.horovod.process_set import Packed
from gluon_gc.mxnet.state import tensor_states
from gluon_gc.mxnet.trainer import automatic as probe

_AUTO = ("bytegrad", "blockwise", "onebit", "topk")  # the compressors that "auto" may choose


def _row():
    """Return the number of this worker's payload in the order of summation, as an array."""
    store = getattr(default_exchange(), "_kv", None)  # ps-lite gives ranks of its own
    return np.array(bps.rank() if store is None else store.rank)


def _parameters(shapes, dtype="float32", contexts=1, value=None):
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


def _backward(params, gradients):
    """Give every parameter its gradient on every context, by autograd."""
    array = mx.np.array if mx.util.is_np_array() else mx.nd.array
    with mx.autograd.record():
        losses = [
            (p.data(ctx) * array(g, ctx=ctx, dtype=g.dtype)).sum()
            for p, g in zip(params, gradients)
            for ctx in p.list_ctx()
        ]
    mx.autograd.backward(losses)


def _give(param, gradient):
    """Write a gradient directly, as backward would."""
    gradient.copyto(param.list_grad()[0])
    param.list_data()[0]._fresh_grad = True


def _wait_for(path, seconds=60):
    """Wait until another worker has created a file."""
    end = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"{path.name} was not made within {seconds} s")
        time.sleep(0.01)


def steps(arguments):
    """Train on known gradients; returns the gradients after each step and the final weights.

    arguments: shapes, steps, compression_params, optimizer_params. Optional: dtype,
    learning_rates and epochs (one per step), batch_size, overrides (by parameter number), trainer
    (more trainer arguments), folder. With a folder, worker 1 begins a step only after worker 0's
    call of step() has returned. The first step is an exception, because all workers must agree
    on the tensors there.
    """
    shapes, dtype = arguments["shapes"], arguments.get("dtype", "float32")
    params = _parameters(shapes, dtype)
    for i, override in arguments.get("overrides", {}).items():
        params[int(i)].compression_params = override
    optimizer_params = dict(arguments["optimizer_params"])
    trainer = bps.DistributedTrainer(
        params,
        "sgd",
        optimizer_params,
        compression_params=arguments["compression_params"],
        **arguments.get("trainer", {}),
    )
    assert optimizer_params == arguments["optimizer_params"]
    result = {}
    for step in range(arguments["steps"]):
        if "learning_rates" in arguments:
            trainer.set_learning_rate(arguments["learning_rates"][step])
        if "epochs" in arguments:
            trainer.set_epoch(arguments["epochs"][step])
        _backward(params, gradients_of(bps.rank(), step, shapes, dtype))
        returned = Path(arguments["folder"], f"returned{step}") if "folder" in arguments else None
        if returned and step > 0 and bps.rank() == 1:
            _wait_for(returned)
        trainer.step(arguments.get("batch_size", 1))
        if returned and bps.rank() == 0:
            returned.touch()
        for i, param in enumerate(params):
            result[f"g{i}_{step}"] = param.grad().asnumpy()
    for i, param in enumerate(params):
        result[f"w{i}"] = param.data().asnumpy()
    result["row"] = _row()
    return result


def left_out(arguments):
    """Train twice, with extra steps that are left out and without them; returns both results.

    arguments: shapes, compression_params, kinds. Before each step there is an extra step of every
    kind: "skipped" (worker 1 has an infinity in its last tensor), "unapplied" (there is no update)
    or "not_applied" (the script says so).
    """
    shapes, result = arguments["shapes"], {}
    for name, kinds in (("with", arguments["kinds"]), ("without", [])):
        params = _parameters(shapes)
        trainer = bps.DistributedTrainer(
            params,
            "nag",
            {"learning_rate": 0.1, "momentum": 0.9},
            compression_params=arguments["compression_params"],
            on_nonfinite="skip" if "skipped" in arguments["kinds"] else "raise",
        )
        for step in range(4):
            trainer.set_learning_rate(0.1 / (1 + step))
            for number, kind in enumerate(kinds):
                extra = gradients_of(bps.rank(), 10 * step + number + 100, shapes)
                if kind == "skipped" and bps.rank() == 1:
                    extra[-1].ravel()[-1] = np.inf
                _backward(params, extra)
                if kind == "skipped":
                    trainer.step(1)
                elif kind == "unapplied":
                    trainer.allreduce_grads(1)
                else:
                    with trainer.not_applied():
                        trainer.allreduce_grads(1)
            _backward(params, gradients_of(bps.rank(), step, shapes))
            trainer.step(1)
            if step == 1 and arguments.get("saves"):
                file = os.path.join(tempfile.gettempdir(), f"left_out{os.getpid()}")
                trainer.save_states(file)
                trainer.load_states(file)
                os.unlink(file)
        result.update(_state_of(name, params, trainer))
    return result


def _state_of(name, params, trainer):
    """Return weights, residuals, momentum and the number of steps, with `name` before each key."""
    averaging, result = trainer._averaging, {}
    for place, array in tensor_states.state(default_exchange(), averaging.names()):
        tensor = place.tensor.partition(".")[2]
        result["/".join([name, *map(str, place._replace(tensor=tensor))])] = array
    for place, array in averaging.arrays().items():
        result["/".join([name, "own", *map(str, place)])] = array
    result[f"{name}/steps"] = np.array(averaging.steps)
    result.update((f"{name}/w{i}", param.data().asnumpy()) for i, param in enumerate(params))
    return result


def caught(arguments):
    """Train with a step whose error about different weights is caught, and without this step.

    arguments: shapes, compression_params. Returns both results, and the number of that step.
    """
    shapes, result, last = arguments["shapes"], {}, None
    for name in ("with", "without"):
        params = _parameters(shapes, value=1)
        trainer = bps.DistributedTrainer(
            params,
            "sgd",
            {"learning_rate": 0.1},
            compression_params=arguments["compression_params"],
        )
        for step in range(20):
            if name == "without" and step == last:
                continue
            if name == "with" and step == 2 and bps.rank() == 1:
                params[0].set_data(params[0].data() + 0.5)
            _backward(params, gradients_of(bps.rank(), step, shapes))
            try:
                trainer.step(1)
            except RuntimeError:
                last = step
                bps.broadcast_parameters(params)
        result.update(_state_of(name, params, trainer))
    return {**result, "last": np.array(last)}


def averages(arguments):
    """Average known gradients on some contexts; returns the averages and the saved state.

    arguments: shapes, steps, compression_params, contexts. Each entry of contexts lists one
    rank's contexts as device type and number; the last entry holds for all further ranks.
    Optional: dtype, momentum, trainer (more trainer arguments). Each context has its own gradients.
    """
    shapes, dtype = arguments["shapes"], arguments.get("dtype", "float32")
    of_ranks = arguments["contexts"]
    contexts = [mx.Context(*context) for context in of_ranks[min(bps.rank(), len(of_ranks) - 1)]]
    params = []
    for i, shape in enumerate(shapes):
        params.append(mx.gluon.Parameter(f"p{i}", shape=tuple(shape), dtype=dtype))
        params[-1].initialize(init=mx.init.One(), ctx=contexts)
    trainer = bps.DistributedTrainer(
        params,
        "nag",
        {"learning_rate": 0.1, "momentum": arguments.get("momentum", 0.0)},
        compression_params=arguments["compression_params"],
        **arguments.get("trainer", {}),
    )
    result = {}
    for step in range(arguments["steps"]):
        for c, context in enumerate(contexts):
            gradients = gradients_of(10 * bps.rank() + c, step, shapes, dtype)
            for param, gradient in zip(params, gradients):
                mx.nd.array(gradient, dtype=dtype).copyto(param.grad(context))
        trainer.allreduce_grads()
        trainer.applied()
        for i, param in enumerate(params):
            for c, context in enumerate(contexts):
                result[f"g{i}_{step}_{c}"] = param.grad(context).asnumpy()
    for place, array in tensor_states.state(default_exchange(), trainer._averaging.names()):
        result["/".join(map(str, place))] = array
    result["stats"] = np.array(list(trainer.compression_stats()["total"].values())[:3])
    return result


def stale(arguments):
    """Train with ignore_stale_grad=True; in each step a worker may leave out some parameters.

    arguments: shapes, used (for each step and rank, the numbers of the parameters; repeated if
    there are more ranks), learning_rates (one per step), compression_params. Optional: excluded
    (numbers of the uncompressed parameters), bundled (the number of first steps with
    ignore_stale_grad=False), trainer (more trainer arguments), resumed (before this step, a second
    trainer takes over from a checkpoint of the first), folder.

    Returns weights and gradients after each step, and residuals and momentum.
    """
    shapes, rates = arguments["shapes"], arguments["learning_rates"]

    def made():
        params = _parameters(shapes)
        for i in arguments.get("excluded", []):
            params[i].compression_params = None
        trainer = bps.DistributedTrainer(
            params,
            "sgd",
            {"learning_rate": rates[0], "momentum": 0.9, "wd": 0.125},
            compression_params=arguments["compression_params"],
            **arguments.get("trainer", {}),
        )
        return params, trainer

    params, trainer = made()
    result = {"row": _row()}
    for step, of_ranks in enumerate(arguments["used"]):
        if step == arguments.get("resumed"):
            file = str(Path(arguments["folder"], f"stale-{bps.rank()}"))
            trainer.save_states(file)
            weights = [param.data() for param in params]
            params, trainer = made()
            for param, weight in zip(params, weights):
                param.set_data(weight)
            trainer.load_states(file)
        used = of_ranks[bps.rank() % len(of_ranks)]
        gradients = gradients_of(bps.rank(), step, shapes)
        if used:
            _backward([params[i] for i in used], [gradients[i] for i in used])
        trainer.set_learning_rate(rates[step])
        trainer.step(1, ignore_stale_grad=step >= arguments.get("bundled", 0))
        for i, param in enumerate(params):
            result[f"g{i}_{step}"] = param.grad().asnumpy()
            result[f"w{i}_{step}"] = param.data().asnumpy()
        numbers = {tensor.name: i for (i, _), tensor in trainer._averaging.tensors.items()}
        for place, array in tensor_states.state(default_exchange(), trainer._averaging.names()):
            result[f"{place.what}{numbers[place.tensor]}_{step}/{place.node}"] = array
        for place, array in trainer._momentum.state().items() if trainer._momentum else ():
            kind = "momentum" if len(place) == 1 else "decay"
            result[f"{kind}{place[0]}_{step}/trainer"] = array
    return result


def several_stale(arguments):
    """Run `stale` for each item of a list of arguments; its results are under "NUMBER/"."""
    return _several(stale, arguments)


def several_averages(arguments):
    """Run `averages` for each item of a list of arguments; its results are under "NUMBER/"."""
    return _several(averages, arguments)


def embeddings(arguments):
    """Train two embeddings, with row-sparse or dense gradients; returns the weights.

    arguments: sparse, compression_params, rows, width, words (for each step and rank; maybe none).
    """
    shape, sparse = (arguments["rows"], arguments["width"]), arguments["sparse"]
    nets = [mx.gluon.nn.Embedding(*shape, sparse_grad=sparse) for _ in range(2)]
    params = mx.gluon.ParameterDict()
    for net in nets:
        net.initialize(mx.init.One())
        params.update(net.collect_params())
    trainer = bps.DistributedTrainer(
        params,
        "sgd",
        {"learning_rate": 0.5},
        compression_params=arguments["compression_params"],
    )
    for of_ranks in arguments["words"]:
        words = of_ranks[bps.rank()]
        for net in nets:
            if words:
                with mx.autograd.record():
                    loss = (net(mx.nd.array(words)) ** 2).sum()
                loss.backward()
        trainer.step(1, ignore_stale_grad=True)
    return {
        "weights": np.stack([net.weight.data().asnumpy() for net in nets]),
        "pushed": np.array(trainer.compression_stats()["total"]["pushed_bytes"]),
    }


def rows_of(rank, step, shape):
    """Return the rows of a worker's gradient at a step, maybe none; the tests compute them too."""
    rows, width = shape
    random = np.random.RandomState(1000 * rank + step)
    ids = np.flatnonzero(random.random_sample(rows) < [0.02, 0.3, 0.0, 1.0][(rank + step) % 4])
    return ids.tolist(), random.standard_normal((ids.size, width)).astype(np.float32)


def compressed_rows(arguments):
    """Train on known row-sparse gradients; then repeat the second half from a checkpoint.

    Returns the gradients after each step. arguments: shape, learning_rates (one per step),
    compression_params, folder.
    """
    shape, rates = tuple(arguments["shape"]), arguments["learning_rates"]
    file = str(Path(arguments["folder"], f"rows-{bps.rank()}"))
    half, result = len(rates) // 2, {}

    def made():
        param = mx.gluon.Parameter("p", shape=shape, grad_stype="row_sparse")
        param.initialize(mx.init.One())
        param.list_grad()[0][:] = mx.nd.sparse.zeros("row_sparse", shape)
        optimizer = {"learning_rate": rates[0]}
        compression = arguments["compression_params"]
        trainer = bps.DistributedTrainer([param], "sgd", optimizer, compression_params=compression)
        return param, trainer

    def train(param, trainer, begin, end, name):
        for step in range(begin, end):
            trainer.set_learning_rate(rates[step])
            ids, values = rows_of(bps.rank(), step, shape)
            gradient = mx.nd.sparse.zeros("row_sparse", shape)
            if ids:
                gradient = mx.nd.sparse.row_sparse_array((values, ids), shape)
            _give(param, gradient)
            trainer.allreduce_grads()
            trainer.applied()
            result[f"{name}{step}"] = param.list_grad()[0].tostype("default").asnumpy()

    param, trainer = made()
    train(param, trainer, 0, half, "g")
    trainer.save_states(file)
    train(param, trainer, half, len(rates), "g")
    result["pushed"] = np.array(trainer.compression_stats()["total"]["pushed_bytes"])
    param, trainer = made()
    trainer.load_states(file)
    train(param, trainer, half, len(rates), "resumed")
    result["row"] = _row()
    return result


def several_compressed_rows(arguments):
    """Run `compressed_rows` for each item of a list; its results are under "NUMBER/"."""
    return _several(compressed_rows, arguments)


def numpy_mode(arguments):
    """Run `steps` in NumPy mode, and sum rank + 1 over all workers."""
    mx.npx.set_np()
    try:
        flag = mx.np.full((3,), bps.rank() + 1.0)
        bps.byteps_push_pull(flag, name="flag", is_average=False)
        return {**steps(arguments), "flag": flag.asnumpy()}
    finally:
        mx.npx.reset_np()


def _several(job, arguments):
    """Run a job for each item of a list of arguments; its results are under "NUMBER/"."""
    return {
        f"{i}/{name}": array for i, one in enumerate(arguments) for name, array in job(one).items()
    }


def several_steps(arguments):
    """Run `steps` for each item of a list of arguments; its results are under "NUMBER/"."""
    return _several(steps, arguments)


def nonfinite_with_adam(arguments):
    """Train with an algorithm that needs Adam and on_nonfinite="skip"; returns the final weights.

    arguments: shapes, steps, algorithm, compression_params, bad (the step in which worker 1 has a
    NaN, in "skipped/"; "expected/" is without this step).
    """
    shapes, result = arguments["shapes"], {}
    for name in ("skipped", "expected"):
        params = _parameters(shapes)
        trainer = bps.DistributedTrainer(
            params,
            "adam",
            {"learning_rate": 0.01},
            compression_params=arguments["compression_params"],
            algorithm=arguments["algorithm"],
            on_nonfinite="skip" if name == "skipped" else "raise",
        )
        for step in range(arguments["steps"]):
            gradients = gradients_of(bps.rank(), step, shapes)
            if step == arguments["bad"]:
                if name == "expected":
                    continue
                if bps.rank() == 1:
                    gradients[-1].flat[0] = np.nan
            _backward(params, gradients)
            trainer.step(1)
        result.update((f"{name}/{i}", param.data().asnumpy()) for i, param in enumerate(params))
    return result


def automatic(arguments):
    """Train with compressor "auto", on simulated and real links; returns weights and choices.

    arguments: shapes, accuracy, folder, optimizer ("sgd" by default). The results have these
    prefixes:
    - "chosen/": "auto", told that the link is slow;
    - "given/": a trainer that is given the compression that "chosen" chose;
    - "resumed/": the second half of "chosen" from a checkpoint, told that the link is fast;
    - "fast/": "auto", told that the link is fast;
    - "overridden/": as "chosen", but the first parameter has its own compression;
    - "measured/": "auto" on the real link.
    """
    shapes, folder = arguments["shapes"], Path(arguments["folder"])
    auto = {"compressor": "auto", "accuracy": arguments["accuracy"]}
    optimizer, settings = arguments.get("optimizer", "sgd"), {"learning_rate": 0.1}
    if optimizer == "sgd":
        auto["momentum"], settings["momentum"] = "nesterov", 0.9
    file, half, end = str(folder / f"automatic-{bps.rank()}"), 2, 4
    result, really = {}, probe.measured

    def train(name, rate=None, begin=0, compression=auto, overrides=None):
        params = _parameters(shapes)
        for i, override in (overrides or {}).items():
            params[i].compression_params = override
        trainer = bps.DistributedTrainer(
            params, optimizer, dict(settings), compression_params=compression
        )
        way = Way(0.0, rate)
        said = Measured(Link(way, way, way), dict.fromkeys(_AUTO, Speed(0.0, 0.0, 0.0)))
        probe.measured = really if rate is None else lambda *_: said
        if begin:
            for i, param in enumerate(params):
                param.set_data(mx.nd.array(result[f"half/w{i}"]))
            trainer.load_states(file)
        for step in range(begin, end):
            _backward(params, gradients_of(bps.rank(), step, shapes))
            trainer.step(1)
            weights = [param.data().asnumpy() for param in params]
            if name == "chosen" and step + 1 == half:
                trainer.save_states(file)
                result.update((f"half/w{i}", array) for i, array in enumerate(weights))
        result.update((f"{name}/w{i}", array) for i, array in enumerate(weights))
        of_tensors = [trainer._averaging.tensors[i, ""].params for i in range(len(shapes))]
        names = [p.compressor.name if p.compressor else p.given().get("fp16") for p in of_tensors]
        result[f"{name}/chosen"] = np.array([str(chosen) for chosen in names])
        return [params.given() or None for params in of_tensors]

    try:
        given = train("chosen", rate=1e6)
        plain = {i: None for i, params in enumerate(given) if params is None}
        train("given", compression=next(filter(None, given), None), overrides=plain)
        train("resumed", rate=1e15, begin=half)
        train("fast", rate=1e15)
        train("overridden", rate=1e6, overrides={0: {"compressor": "dithering", "k": 2, "seed": 1}})
        train("measured")
    finally:
        probe.measured = really
    return result


def automatic_local_steps(arguments):
    """Train with local_steps and "auto"; returns weights, decisions and log lines.

    arguments: shapes, folder, rate (the speed of the simulated link, in bytes per second), seconds
    (the simulated time of a step). The results have these prefixes:
    - "chosen/": "auto" with the simulated link and time;
    - "given/": a trainer that is given this choice;
    - "early/", "late7/", "late29/": resumed from a checkpoint before the choice, or after 7 or 29
      steps. The late ones are told that the link is fast;
    - "measured/": "auto" on the real link, until its choice.
    """
    shapes, folder, end = arguments["shapes"], Path(arguments["folder"]), 38
    auto = {"compressor": "auto", "accuracy": "aggressive"}
    result, lines, way = {}, [], Way(0.0, arguments["rate"])
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)

    def train(name, begin=0, end=end, compression=auto, **options):
        params = _parameters(shapes)
        trainer = bps.DistributedTrainer(
            params,
            "adam",
            {"learning_rate": 0.01},
            compression_params=compression,
            algorithm={"name": "local_steps", "outer_lr": 0.6, **options},
        )
        if begin:
            trainer.load_states(str(folder / f"{begin}-{bps.rank()}"))
        lines.clear()
        for step in range(begin, end):
            if name == "chosen" and step in (3, 7, 29):
                trainer.save_states(str(folder / f"{step}-{bps.rank()}"))
            _backward(params, gradients_of(bps.rank(), step, shapes))
            trainer.step(1)
        result.update((f"{name}/w{i}", p.data().asnumpy()) for i, p in enumerate(params))
        decision = trainer._averaging._automatic.decision or ()
        result[f"{name}/decision"] = np.array(list(map(str, decision)), str)
        result[f"{name}/log"] = np.array(lines, str)
        return trainer

    really, seconds = probe.measured, StepClock.seconds
    said = Measured(Link(way, way, way), dict.fromkeys(_AUTO, Speed(0.0, 0.0, 0.0)))
    # The other workers' steps are shorter.
    StepClock.seconds = property(lambda clock: arguments["seconds"] / (1 + bps.rank()))
    try:
        probe.measured = lambda *_: said
        chosen = train("chosen")
        tensor = next(iter(chosen._averaging.tensors.values()))
        every = chosen._averaging.described["every"]
        train("given", compression=tensor.params.given(), every=every)
        train("early", begin=3)
        way = Way(0.0, 1e15)
        said = Measured(Link(way, way, way), said.kernels)
        for begin in (7, 29):
            train(f"late{begin}", begin=begin)
        StepClock.seconds, probe.measured = seconds, really
        train("measured", end=7)
    finally:
        StepClock.seconds, probe.measured = seconds, really
        logger.removeHandler(handler)
    return result


def automatic_powersgd(arguments):
    """Train with powersgd and "auto"; returns weights, decisions and log lines.

    arguments: shapes, folder, rate (the speed of the simulated link, in bytes per second). The
    results have the prefixes of `automatic_local_steps`, with checkpoints of steps 0 and 3.
    "plain/" is a trainer without algorithm; "fast/" is told that the link is fast.
    """
    shapes, folder = arguments["shapes"], Path(arguments["folder"])
    auto = {"compressor": "auto", "accuracy": "aggressive"}
    result, lines = {}, []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)

    def train(name, begin=None, rate=None, compression=auto, algorithm="powersgd"):
        if rate is not None:
            way = Way(0.0, rate)
            probe.measured = lambda *_: Measured(Link(way, way, way), {})
        params = _parameters(shapes)
        options = {"name": algorithm, "rank": 2} if algorithm else None
        trainer = bps.DistributedTrainer(
            params,
            "sgd",
            {"learning_rate": 0.01},
            compression_params=compression,
            algorithm=options,
        )
        if begin is not None:
            trainer.load_states(str(folder / f"{begin}-{bps.rank()}"))
        lines.clear()
        for step in range(begin or 0, 6):
            if name == "chosen" and step in (0, 3):
                trainer.save_states(str(folder / f"{step}-{bps.rank()}"))
            _backward(params, gradients_of(bps.rank(), step, shapes))
            trainer.step(1)
        result.update((f"{name}/w{i}", p.data().asnumpy()) for i, p in enumerate(params))
        if algorithm:
            decision = trainer._averaging._automatic.decision or ()
            result[f"{name}/decision"] = np.array(list(map(str, decision)), str)
            result[f"{name}/log"] = np.array(lines, str)

    really = probe.measured
    try:
        train("chosen", rate=arguments["rate"])
        train("given", compression={"fp16": True})
        train("early", begin=0)
        train("late", begin=3, rate=1e15)
        train("fast")
        train("plain", compression=None, algorithm=None)
        probe.measured = really
        train("measured")
    finally:
        probe.measured = really
        logger.removeHandler(handler)
    return result


def shares_of_a_gradient(arguments):
    """Exchange a gradient once for each of `shares`, the share of its elements that is not 0.

    arguments: shares, compression_params. Returns the gradient after each step.
    """
    size = 20_000
    (param,) = params = _parameters([(size,)])
    trainer = bps.DistributedTrainer(
        params,
        "sgd",
        {"learning_rate": 0.1},
        compression_params=arguments["compression_params"],
    )
    (dense,) = gradients_of(bps.rank(), 0, [(size,)])
    result = {}
    for step, share in enumerate(arguments["shares"]):
        _backward(params, [np.where(np.arange(size) < share * size, dense, np.float32(0))])
        trainer.allreduce_grads()
        trainer.applied()
        result[f"g{step}"] = param.grad().asnumpy()
    return result


def several_shares(arguments):
    """Run `shares_of_a_gradient` for each item of a list; its results are under "NUMBER/"."""
    return _several(shares_of_a_gradient, arguments)


def nonfinite(arguments):
    """Train three steps with gradient 1; worker 0's gradient has a NaN in the second step.

    Returns the weights after each step, or the error that was raised instead.
    """
    (param,) = params = _parameters([(64,)])
    trainer = bps.DistributedTrainer(
        params,
        "sgd",
        {"learning_rate": 1.0},
        compression_params=arguments["compression_params"],
        on_nonfinite=arguments["on_nonfinite"],
    )
    result = {}
    for step in range(3):
        gradient = np.ones(64, np.float32)
        if step == 1 and bps.rank() == 0:
            gradient[5] = np.nan
        _backward(params, [gradient])
        try:
            trainer.step(1)
            result[f"w{step}"] = param.data().asnumpy()
        except mx.MXNetError as error:
            result["raised"] = np.array(str(error))
            break
    return result


def checkpoint(arguments):
    """Train steps `begin` to `end`, from a checkpoint if begin > 0; save one after step `middle`.

    Returns the weights and the last gradients. Rank r's file is "FOLDER/NAME-r". More arguments:
    shapes, compression_params, partition_bytes; optional: frozen, the indices of frozen parameters.
    """
    begin, middle, end = arguments["begin"], arguments["middle"], arguments["end"]
    file = str(Path(arguments["folder"], f"{arguments['name']}-{bps.rank()}"))
    params, trainer = _to_be_saved(arguments)
    for i in arguments.get("frozen", ()):
        params[i].grad_req = "null"
    if begin > 0:
        with np.load(file + ".npz") as weights:
            for i, param in enumerate(params):
                param.set_data(mx.nd.array(weights[f"w{i}"]))
        trainer.load_states(file)
        trainer.save_states(file + ".again")
    result = {"row": _row()}
    for step in range(begin, end):
        trainer.set_learning_rate(0.1 / (1 + step))
        _backward(params, gradients_of(bps.rank(), step, arguments["shapes"]))
        trainer.allreduce_grads()
        if step + 1 == end:
            result.update((f"g{i}", param.grad().asnumpy()) for i, param in enumerate(params))
        trainer.update(1)
        if step + 1 == middle:
            trainer.save_states(file)
            np.savez(file, **{f"w{i}": p.data().asnumpy() for i, p in enumerate(params)})
    return {**result, **{f"w{i}": param.data().asnumpy() for i, param in enumerate(params)}}


def _to_be_saved(arguments):
    """Return the parameters and the trainer of `checkpoint`."""
    os.environ["BYTEPS_PARTITION_BYTES"] = str(arguments["partition_bytes"])
    params = _parameters(arguments["shapes"])
    trainer = bps.DistributedTrainer(
        params,
        "sgd",
        {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01},
        compression_params=arguments["compression_params"],
    )
    return params, trainer


def states_of_others(arguments):
    """Load the files of all `workers` of another cluster, which `checkpoint` saved.

    Rank r then saves its state as "FOLDER/NAME-r.shared".
    """
    file = str(Path(arguments["folder"], arguments["name"]))
    _, trainer = _to_be_saved(arguments)
    files = [f"{file}-{rank}" for rank in range(arguments["workers"])]
    trainer.load_states(files, strict=False)
    trainer.save_states(f"{file}-{bps.rank()}.shared")
    return {}


def wrong_states(arguments):
    """Load each rank's states into every worker in turn; returns each error message.

    "steps" is the message when worker 0 loads its states of step 1, and the others those of step 2.
    """
    folder = Path(arguments["folder"])
    params = _parameters([(300, 70)])
    compression = {"compressor": "onebit", "ef": "vanilla"}
    trainer = bps.DistributedTrainer(params, "sgd", compression_params=compression)
    for step in ("", "later"):
        _backward(params, gradients_of(bps.rank(), 0, [(300, 70)]))
        trainer.step(1)
        trainer.save_states(str(folder / f"{bps.rank()}{step}"))
    bps.barrier()
    said = {}

    def load(name, file):
        try:
            trainer.load_states(str(folder / file))
            said[name] = np.array("")
        except (RuntimeError, ValueError) as error:
            said[name] = np.array(str(error))

    for rank in range(bps.size()):
        load(f"of{rank}", str(rank))
    load("steps", "0" if bps.rank() == 0 else f"{bps.rank()}later")
    return said


def own_states(arguments):
    """Load this worker's file of `wrong_states`; returns the error message."""
    params = _parameters([(300, 70)])
    compression = {"compressor": "onebit", "ef": "vanilla"}
    trainer = bps.DistributedTrainer(params, "sgd", compression_params=compression)
    try:
        trainer.load_states(str(Path(arguments["folder"], str(bps.rank()))))
    except ValueError as error:
        return {"error": np.array(str(error))}
    return {"error": np.array("")}


def equal_gradients(arguments):
    """Train one step; all workers have the same gradient: 1, then `value` in all other elements."""
    params = _parameters([(size,) for size in arguments["sizes"]])
    trainer = bps.DistributedTrainer(
        params, "sgd", {"learning_rate": 1.0}, compression_params=arguments["compression_params"]
    )
    gradients = [np.full(param.shape, arguments["value"], np.float32) for param in params]
    for gradient in gradients:
        gradient[0] = 1
    _backward(params, gradients)
    trainer.step(1)
    return {f"g{i}": param.grad().asnumpy() for i, param in enumerate(params)}


def delayed(arguments):
    """Train a step while the server is stopped; signal that step() has returned, then wait.

    By that signal, all compression is done.
    """
    folder = Path(arguments["folder"])
    (param,) = params = _parameters([(1000,)])
    trainer = bps.DistributedTrainer(
        params, "sgd", {"learning_rate": 1.0}, compression_params=arguments["compression_params"]
    )
    _backward(params, [np.ones(1000, np.float32)])
    trainer.step(1)
    mx.nd.waitall()
    trainer.compression_stats(reset=True)
    (folder / "ready").touch()
    while not (folder / "stopped").exists():
        pass
    _backward(params, [np.ones(1000, np.float32)])
    started = time.monotonic()
    trainer.step(1)
    for channel in default_exchange().channels.of(trainer._averaging.names()):
        if channel.codec is not None:
            channel.codec.state()
    (folder / "returned").touch()
    exposed = trainer.compression_stats()["total"]["exposed_seconds"]
    took = time.monotonic() - started
    return {"w": param.data().asnumpy(), "exposed": np.array(exposed), "took": np.array(took)}


def broadcast(arguments):
    """Broadcast differing parameters, some of them deferred, before the first gradient."""
    mx.random.seed(bps.rank())
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(5, in_units=3), mx.gluon.nn.BatchNorm(), mx.gluon.nn.Dense(4))
    net.initialize(mx.init.Normal(1.0))
    trainer = bps.DistributedTrainer(
        net.collect_params(), "sgd", {"learning_rate": 0.1}, root_rank=arguments["root_rank"]
    )
    net(mx.nd.ones((2, 3)))
    weights = [p.data().asnumpy().ravel() for p in net.collect_params().values()]
    exact = [
        mx.nd.array(np.array([-0.0, 1e-42, np.inf, -np.inf, bps.rank()]), dtype="float32"),
        mx.nd.array(np.array([[2**31 - 1 - bps.rank(), -5]]), dtype="int32"),
        mx.nd.array(np.array([1 / 3 + bps.rank()]), dtype="float64"),
        mx.nd.array(np.array([bps.rank() + 0.1]), dtype="float16"),
    ]
    bps.broadcast_parameters(dict(enumerate(exact)), root_rank=arguments["root_rank"])
    del trainer
    return {
        "weights": np.concatenate(weights),
        **{f"e{i}": a.asnumpy() for i, a in enumerate(exact)},
    }


def changed(arguments):
    """Change parameters after the trainer is made, on all workers or only on the root, worker 1.

    Returns all copies of the parameters after one step, or after `allreduce_grads`.
    """
    rank, contexts = bps.rank(), [mx.cpu(0), mx.cpu(1)]
    dense, norm = mx.gluon.nn.Dense(4, in_units=3), mx.gluon.nn.BatchNorm(in_channels=4)
    net = mx.gluon.nn.HybridSequential()
    net.add(dense, norm)
    net.initialize(ctx=contexts)
    dense.bias.grad_req = "null"
    algorithm, params = arguments["algorithm"], net.collect_params()
    trainer = bps.DistributedTrainer(params, "sgd", root_rank=1, algorithm=algorithm)
    if arguments["on_all"]:
        mx.random.seed(rank)
        net.initialize(mx.init.Normal(1.0), ctx=contexts, force_reinit=True)
    elif rank == 1:
        dense.weight.set_data(mx.nd.full((4, 3), 7.0))
        dense.bias.set_data(mx.nd.full(4, 5.0))
    with mx.autograd.record():
        losses = [net(mx.nd.array(np.eye(3) + rank, ctx=context)).sum() for context in contexts]
    mx.autograd.backward(losses)
    getattr(trainer, arguments["call"])(2)
    kept = {"weight": dense.weight, "bias": dense.bias, "running_mean": norm.running_mean}
    return {
        f"{name}{i}": array.asnumpy()
        for name, param in kept.items()
        for i, array in enumerate(param.list_data())
    }


def drifting(arguments):
    """Train for 20 steps on equal gradients, in several ways; returns the error of each, if any.

    arguments: for each way, optional settings: trainer (trainer arguments, with the optimizer),
    changes ("w", or the "frozen" parameter or the running "mean", of worker 1 before step 4),
    by_hand (weights differ for a while in each step).
    """
    result = {}
    for number, way in enumerate(arguments):
        mx.random.seed(bps.rank())
        params = {
            "w": mx.gluon.Parameter("w", shape=(30, 10)),
            "frozen": mx.gluon.Parameter("frozen", shape=(5,), grad_req="null"),
            "mean": mx.gluon.Parameter("mean", shape=(5,), differentiable=False),
        }
        for param in params.values():
            param.initialize("ones")
        settings = {"optimizer": "sgd", "optimizer_params": {"learning_rate": 0.1}}
        trainer = bps.DistributedTrainer(list(params.values()), **{**settings, **way["trainer"]})
        said, last = "", 0
        try:
            for step in range(1, 21):
                if step == 4 and bps.rank() == 1 and way.get("changes"):
                    changed = params[way["changes"]]
                    changed.set_data(changed.data() * 1.25)
                last, gradient = step, gradients_of(0, step, [(30, 10)])
                if not way.get("by_hand"):
                    _backward([params["w"]], gradient)
                    trainer.step(1)
                    continue
                weight = params["w"].data().copy()
                params["w"].set_data(weight + bps.rank())  # as sharpness-aware minimization does
                _backward([params["w"]], gradient)
                trainer.allreduce_grads(1)
                params["w"].set_data(weight)
                trainer.update(1)
                for _ in range(bps.rank()):  # local steps
                    _backward([params["w"]], gradient)
                    trainer.update(1)
                bps.broadcast_parameters([params["w"]])
        except RuntimeError as error:
            said = str(error)
        result.update({f"said{number}": np.array(said), f"last{number}": np.array(last)})
    return result


def dropped(arguments):
    """Make trainers in several ways; each one replaces the last.

    Returns the final weights of each, "NUMBER/ROUND/w", and after each the number of declared
    tensors, "tensors", and of the keys on servers, "keys". In the second round worker 0 keeps the
    trainer until the fourth.
    """
    exchange = default_exchange()
    result, kept = {"tensors": [], "keys": []}, []
    for number, way in enumerate(arguments):
        for turn in range(6):
            param = mx.gluon.Parameter("w", shape=(40, 5), grad_stype=way.get("stype", "default"))
            param.initialize("ones")
            compressed = way.get("compression_params")
            trainer = bps.DistributedTrainer(
                [param],
                "sgd",
                {"learning_rate": 0.5},
                compression_params=compressed,
                algorithm=way.get("algorithm"),
            )
            for step in range(3):
                (gradient,) = gradients_of(bps.rank(), step, [(40, 5)])
                _give(param, mx.nd.array(gradient).tostype(way.get("stype", "default")))
                trainer.step(1)
            result[f"{number}/{turn}/w"] = param.data().asnumpy()
            if bps.rank() == 0:
                kept = {1: [trainer], 4: []}.get(turn, kept)
            result["tensors"].append(len(exchange.channels.tensors))
            servers = getattr(exchange, "_servers", None)
            result["keys"].append(sum(servers._allocator._next) if servers else 0)
    return {name: np.array(values) for name, values in result.items()}


def peak(arguments):
    """Return the peak of NumPy's memory while the parameters of rank 0 are broadcast, in bytes."""
    arrays = [mx.nd.full(size, bps.rank() + 3.0) for size in arguments["sizes"]]
    arrays.insert(1, mx.nd.full((4, 2), bps.rank() + 3.0).tostype("row_sparse"))
    mx.nd.waitall()
    tracemalloc.start()
    try:
        bps.broadcast_parameters(dict(enumerate(arrays)), root_rank=0)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    equal = all((array.asnumpy() == 3).all() for array in arrays)
    return {"peak": np.array(peak_bytes), "equal": np.array(equal)}


def frozen(arguments):
    """Train two parameters, and freeze the second one before the last step."""
    shapes = [(40,), (7,)]
    params = _parameters(shapes)
    trainer = bps.DistributedTrainer(
        params,
        "sgd",
        {"learning_rate": 0.1},
        compression_params=arguments["compression_params"],
    )
    for step in range(2):
        _backward(params[: 2 - step], gradients_of(bps.rank(), step, shapes)[: 2 - step])
        before = params[1].data().asnumpy()
        trainer.step(1, ignore_stale_grad=True)
        params[1].grad_req = "null"
    return {
        "g": params[0].grad().asnumpy(),
        "before": before,
        "after": params[1].data().asnumpy(),
    }


def place(arguments):
    """Return this worker's rank, and its rank on its node."""
    return {
        "rank": np.array(bps.rank()),
        "local_rank": np.array(bps.local_rank()),
        "local_size": np.array(bps.local_size()),
    }


def push_pull(arguments):
    """Call byteps_push_pull for averages and sums of several dtypes, and a DistributedOptimizer."""
    rank = bps.rank()
    result = {}
    for dtype in ("float32", "float64", "float16", "int32"):
        tensor = mx.nd.array(np.arange(6).reshape(2, 3) * (rank + 1), dtype=dtype)
        bps.byteps_push_pull(tensor, name="sum" + dtype, is_average=False)
        result[dtype] = tensor.asnumpy()
    exact = mx.nd.array([(rank + 1) / 3.7], dtype="float64")
    bps.byteps_push_pull(exact, name="exact", is_average=False)
    result["exact"] = exact.asnumpy()
    mean = mx.nd.ones(4) * rank
    bps.byteps_push_pull(mean, name="mean")
    result["mean"] = mean.asnumpy()
    repeated = [mx.nd.ones(4) * (rank + step) for step in range(20)]
    for step, array in enumerate(repeated):  # only the name orders these
        exchange, values = default_exchange(), mx.nd.ones(4) * (rank + step)
        gradient = exchange.channels.gradient("byteps.mean", [values], [array])
        exchange.start(Job({"byteps.mean": gradient}, scale=1 / bps.size()))
    result["repeated"] = np.stack([array.asnumpy() for array in repeated])
    bps.byteps_declare_tensor("signs", compressor="onebit", scaling=True)
    signs = mx.nd.array([1, -1, 1, -1])
    bps.byteps_push_pull(signs, name="signs")
    result["signs"] = signs.asnumpy()
    nameless = [mx.nd.ones(4 + i) * (rank + i) for i in range(2)]
    for tensor in nameless:
        bps.byteps_push_pull(tensor, is_average=False)
    result["nameless"] = np.concatenate([tensor.asnumpy() for tensor in nameless])
    optimizer = bps.DistributedOptimizer(mx.optimizer.SGD(learning_rate=1.0))
    weight = mx.nd.zeros(3)
    optimizer.update(0, weight, mx.nd.ones(3) * (rank + 1), optimizer.create_state(0, weight))
    result["optimized"] = weight.asnumpy()
    return result


def metrics(arguments):
    """Call bps.allreduce with all types that it takes, between steps that are still running."""
    rank = bps.rank()
    params = _parameters([(400,)])
    trainer = bps.DistributedTrainer(
        params, "sgd", compression_params={"compressor": "onebit", "scaling": True}
    )
    _backward(params, [np.ones(400, np.float32)])
    trainer.step(1)
    third = 1 / 3 + rank
    array = np.array([[rank, 1 / 3], [2**24 + 1, -rank]])
    given = array.copy()
    small = mx.nd.array([rank, 0.5], dtype="float16")
    result = {
        "float": np.array(bps.allreduce(third)),
        "int": np.array(bps.allreduce(2**31 + rank, average=False)),
        "int mean": np.array(bps.allreduce(rank + 1)),
        "large": np.array(bps.allreduce(2**60 + rank, average=False)),
        "mixed": np.array(bps.allreduce(0 if rank == 0 else 0.5 * rank, average=False)),
        "array": bps.allreduce(array, average=False),
        "ints": bps.allreduce(np.array([1, rank])),
        "NDArray": bps.allreduce(small, average=False).asnumpy(),
        "again": np.array([bps.allreduce(float(rank + i)) for i in range(20)]),
    }
    kinds = [bps.allreduce(value) for value in (1.5, np.float32(1), small, array)]
    result["kinds"] = np.array([type(value).__name__ for value in kinds])
    np.testing.assert_array_equal(array, given)
    np.testing.assert_array_equal(small.asnumpy(), [rank, 0.5])
    _backward(params, [np.ones(400, np.float32)])
    trainer.step(1)
    return {**result, "w": params[0].data().asnumpy()}


def integer_sums(arguments):
    """Push and pull integers of each dtype; returns the averages, and the sums or their errors.

    Rank r pushes the given value of a dtype plus r.
    """
    result = {}
    for dtype, value in arguments.items():
        own = np.array([value + bps.rank(), -bps.rank() if dtype != "uint8" else 0])
        for is_average in (True, False):
            name = f"{dtype} {'average' if is_average else 'sum'}"
            tensor = mx.nd.array(own, dtype=dtype)
            try:
                bps.byteps_push_pull(tensor, name=name, is_average=is_average)
                result[name] = tensor.asnumpy()
            except OverflowError as error:
                result[name] = np.array(str(error))
    return result


def barrier(arguments):
    """Pass two barriers, where worker 0 is late; files show how far each worker has come."""
    folder = Path(arguments["folder"])
    bps.barrier()
    (folder / f"came{bps.rank()}").touch()
    if bps.rank() == 0:
        while not (folder / "go").exists():
            pass
    (folder / f"waits{bps.rank()}").touch()
    bps.barrier()
    (folder / f"gone{bps.rank()}").touch()
    return {"together": np.array((folder / "go").exists())}


def different_collectives(arguments):
    """Call collectives that differ between worker 0 and the others; returns the error messages."""
    said = {}
    for name, job in {
        "barrier": lambda: bps.allreduce(1.0) if bps.rank() else bps.barrier(),
        "shape": lambda: bps.allreduce(np.zeros(1 + bps.rank())),
        "average": lambda: bps.allreduce(1.0, average=bps.rank() == 0),
        "dtype": lambda: bps.allreduce(np.zeros(3, np.int64 if bps.rank() else np.float64)),
    }.items():
        try:
            job()
        except RuntimeError as error:
            said[name] = np.array(str(error))
    return said


def plain_trainer(arguments):
    """Train with gluon.Trainer and the backend as a KVStoreBase plug-in."""
    params = _parameters([(40,), (7,)])
    store = mx.kv.create(arguments["kvstore"])
    if arguments["compression_params"]:
        store.set_gradient_compression(arguments["compression_params"])
    trainer = mx.gluon.Trainer(
        params, "sgd", {"learning_rate": 1.0}, kvstore=store, update_on_kvstore=False
    )
    _backward(params, gradients_of(store.rank, 0, [(40,), (7,)]))
    trainer.step(1)
    return {"g": params[0].grad().asnumpy(), "w": params[0].data().asnumpy()}


def amp_overflow(arguments):
    """Overflow worker 0's gradient in the first step; all weights and loss scales stay equal.

    arguments: compression_params; optional: algorithm and its optimizer.
    """
    from mxnet.contrib import amp

    amp.init()
    (param,) = params = _parameters([(64,)])
    trainer = bps.DistributedTrainer(
        params,
        arguments.get("optimizer", "sgd"),
        {"learning_rate": 1.0},
        compression_params=arguments["compression_params"],
        algorithm=arguments.get("algorithm"),
    )
    amp.init_trainer(trainer)
    result = {}
    for step in range(3):
        with mx.autograd.record():
            factor = float("inf") if step == 0 and bps.rank() == 0 else 1.0
            with amp.scale_loss((param.data() * factor).sum(), trainer) as loss:
                loss.backward()
        trainer.step(1)
        result[f"w{step}"] = param.data().asnumpy()
        result[f"scale{step}"] = np.array(trainer._amp_loss_scaler.loss_scale)
    return result


def resume(arguments):
    """Train in a cluster, then in another one, then load the state into worker 0 alone.

    Returns the weights after the steps in the second cluster; the weights of a trainer that did all
    steps in the first; each worker's state at the end of the second; and worker 0's state alone.
    """
    shapes, compression = [(300, 7), (33,)], arguments["compression_params"]
    optimizer = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}

    def made(kvstore=None):
        params = _parameters(shapes)
        return params, bps.DistributedTrainer(
            params, "sgd", optimizer, compression_params=compression, kvstore=kvstore
        )

    def train(params, trainer, steps):
        for step in steps:
            _backward(params, gradients_of(bps.rank(), step, shapes))
            trainer.step(1)

    def weights(name, params):
        return {f"{name}{i}": param.data().asnumpy() for i, param in enumerate(params)}

    def carried_over(name, trainer):
        arrays = tensor_states.state(default_exchange(), trainer._averaging.names())
        return {
            f"{name}/{place.tensor}/{place.what}": a
            for place, a in arrays
            if place.node == "worker"
        }

    never, trainer_never = made()
    train(never, trainer_never, range(6))
    params, trainer = made("dist_sync")
    train(params, trainer, range(3))
    _backward(params, gradients_of(bps.rank(), 10, shapes))
    trainer.allreduce_grads(1)  # no update applies these averages
    bps.suspend()
    os.environ["DMLC_PS_ROOT_PORT"] = str(arguments["port"])
    bps.resume(num_workers=2, num_servers=1)
    with tempfile.TemporaryDirectory() as folder:
        trainer.save_states(f"{folder}/states")  # before a step has used the new cluster
    train(params, trainer, range(3, 6))
    result = {**weights("resumed", params), **weights("never", never)}
    result.update(carried_over("before", trainer))
    rank = bps.rank()
    bps.suspend()
    if rank == 0:
        del os.environ["BYTEPS_FORCE_DISTRIBUTED"]
        bps.resume(num_workers=1, num_servers=1, global_rank=0)
        bps.suspend()  # before a step has used the state
        bps.resume(num_workers=1, num_servers=1, global_rank=0)
        trainer._follow_cluster()
        trainer._averaging.prepare(trainer._optimizer, "step")
        result.update(carried_over("alone", trainer), size=np.array(bps.size()))
    return result


def resume_on_one_machine(arguments):
    """Train on two machines, then load the state into workers 0 and 1 on one machine.

    Returns each worker's residual before, and that of workers 0 and 1 afterwards.
    """
    params = _parameters([(300, 7)])
    trainer = bps.DistributedTrainer(
        params, "sgd", compression_params={"compressor": "onebit", "ef": "vanilla"}
    )
    _backward(params, gradients_of(bps.rank(), 0, [(300, 7)]))
    trainer.step(1)

    def residual():
        arrays = tensor_states.state(default_exchange(), trainer._averaging.names())
        ((_, array),) = [item for item in arrays if item[0][1:3] == ("worker", "residual")]
        return array

    result, rank = {"before": residual()}, bps.rank()
    bps.suspend()
    if rank < 2:
        if not arguments["servers"]:
            del os.environ["BYTEPS_FORCE_DISTRIBUTED"]
        os.environ["DMLC_PS_ROOT_PORT"] = str(arguments["port"])
        os.environ.update(BYTEPS_LOCAL_SIZE="2", BYTEPS_LOCAL_RANK=str(rank))
        bps.resume(num_workers=1, num_servers=arguments["servers"], global_rank=0)
        trainer._follow_cluster()
        trainer._averaging.prepare(trainer._optimizer, "step")
        result.update(after=residual(), size=np.array(bps.size()))
    return result


def grow(arguments):
    """Train alone for 3 steps, then with a new worker, which has other initial parameters.

    Returns the weights after 6 steps, and the number of steps that the trainer has counted.
    """
    old = bps.size() == 1
    params = _parameters([(5, 7)], contexts=2, value=1 if old else 9)
    options = {"lr_scheduler": mx.lr_scheduler.FactorScheduler(1, 0.9), **arguments["options"]}
    trainer = bps.DistributedTrainer(params, arguments["optimizer"], options)
    for step in range(0 if old else 3, 6):
        if old and step == 3:
            bps.suspend()
            os.environ["DMLC_PS_ROOT_PORT"] = str(arguments["port"])
            bps.resume(num_workers=2, num_servers=1)
        _backward(params, gradients_of(bps.rank(), step, [(5, 7)]))
        trainer.step(2)
    copies = {f"weight{i}": array.asnumpy() for i, array in enumerate(params[0].list_data())}
    return {**copies, "steps": np.array(trainer._averaging.steps)}


def grow_by_hand(arguments):
    """As `grow`, with a DistributedOptimizer and MXNet's Updater, as Module does."""
    old = bps.size() == 1
    scheduler = mx.lr_scheduler.FactorScheduler(1, 0.9)
    inner = mx.optimizer.create(
        arguments["optimizer"], lr_scheduler=scheduler, **arguments["options"]
    )
    update = mx.optimizer.get_updater(bps.DistributedOptimizer(inner))
    weight = mx.nd.full((5, 7), 1 if old else 9)
    for step in range(0 if old else 3, 6):
        if old and step == 3:
            bps.suspend()
            os.environ["DMLC_PS_ROOT_PORT"] = str(arguments["port"])
            bps.resume(num_workers=2, num_servers=1)
        (gradient,) = gradients_of(bps.rank(), step, [(5, 7)])
        update(0, mx.nd.array(gradient), weight)
    copies = dict.fromkeys(["weight0", "weight1"], weight.asnumpy())
    return {**copies, "steps": np.array(inner.num_update)}


def again(arguments):
    """Return the number of workers in a cluster, and in a second one that is joined afterwards."""
    sizes = [bps.size()]
    bps.shutdown()
    os.environ["DMLC_PS_ROOT_PORT"] = str(arguments["port"])
    bps.init()
    return {"sizes": np.array([*sizes, bps.size()])}


def handled(arguments):
    """Leave the cluster when an iterator ends."""
    try:
        next(iter(()))
    except StopIteration:
        bps.shutdown()
    return {}


def stock_worker(arguments):
    """Send a gluon_gc server the command of MXNet's KVStore.set_optimizer."""
    default_exchange()._kv.set_optimizer(mx.optimizer.SGD())
    return {}


def differing(arguments):
    """Train a step with compression_params that differ between workers."""
    params = _parameters([(40,)])
    compression = {"compressor": "topk", "k": 1 + bps.rank()}
    trainer = bps.DistributedTrainer(params, "sgd", compression_params=compression)
    _backward(params, [np.ones(40, np.float32)])
    trainer.step(1)
    return {}


def disagreements(arguments):
    """Train a step for each setting in which workers may differ; returns the error messages."""
    from mxnet.contrib.amp.loss_scaler import LossScaler

    odd = bps.rank() % 2
    sgd = {"learning_rate": 0.5, "momentum": 0.5}
    factor = mx.lr_scheduler.FactorScheduler

    def train(
        optimizer="sgd",
        shapes=((3, 4), (5,)),
        loss_scaler=False,
        of_last=None,
        ignores=False,
        **more,
    ):
        params = _parameters(shapes)
        for name, value in (of_last or {}).items():
            setattr(params[-1], name, value)
        optimizer_params = {**sgd, **more.pop("optimizer_params", {})}
        trainer = bps.DistributedTrainer(params, optimizer, optimizer_params, **more)
        if loss_scaler:
            trainer._amp_loss_scaler, trainer._amp_original_scale = LossScaler(), 1.0
        _backward(params, [np.ones(shape, np.float32) for shape in shapes])
        trainer.step(1, ignore_stale_grad=ignores)
        mx.nd.waitall()

    def scheduled(**kwargs):
        return {"optimizer_params": {"lr_scheduler": factor(10, base_lr=0.5, **kwargs)}}

    ways = {
        "nothing": {},
        "rate": {"optimizer_params": {"learning_rate": 0.5 + odd}},
        "class": {"optimizer": ["sgd", "nag"][odd]},
        "wd": {"optimizer_params": {"wd": 0.25 * odd}},
        "momentum": {"optimizer_params": {"momentum": 0.5 + 0.25 * odd}},
        "clip": {"optimizer_params": {"clip_gradient": 1.0} if odd else {}},
        "precision": {"optimizer_params": {"multi_precision": bool(odd)}},
        "scheduler": scheduled() if odd else {},
        "factor": scheduled(factor=0.5 + 0.25 * odd),
        "lr_mult": {"of_last": {"lr_mult": 1.0 + odd}},
        "wd_mult": {"of_last": {"wd_mult": 1.0 + odd}},
        "nonfinite": {"on_nonfinite": ["raise", "skip"][odd]},
        "norm": {"max_grad_norm": 1.0 + odd},
        "shape": {"shapes": ((3, 4), (6, 1)[: 2 - odd])},
        "stale": {"ignores": bool(odd)},
        "AMP": {"loss_scaler": bool(odd)},
        "compressor": {"compression_params": {"compressor": "topk", "k": 1 + odd}},
        "algorithm": {"algorithm": [None, "local_steps"][odd]},
        "every": {"algorithm": {"name": "local_steps", "every": 2 + odd}},
        "nothing more": {},
    }

    def update():
        optimizer = bps.DistributedOptimizer(mx.optimizer.SGD(learning_rate=0.5 + odd))
        optimizer.update(0, mx.nd.ones(2), mx.nd.ones(2), None)

    def deferred():
        param = mx.gluon.Parameter("w", shape=(3, 0 if odd else 2), allow_deferred_init=True)
        param.initialize()
        bps.DistributedTrainer([param], "sgd")

    calls = {name: functools.partial(train, **way) for name, way in ways.items()}
    calls["deferred"] = deferred
    calls["optimizer"] = update
    for name, how in {"name": {"name": "ab"[odd]}, "sum": {"name": "c", "is_average": odd}}.items():
        calls[name] = functools.partial(bps.byteps_push_pull, mx.nd.ones(2), **how)
    dtype = ["int8", "int32"][odd]
    calls["dtype"] = lambda: bps.byteps_push_pull(mx.nd.ones(2, dtype=dtype), name="d")
    said = {}
    for name, call in calls.items():
        try:
            call()
            said[name] = np.array("")
        except RuntimeError as error:
            said[name] = np.array(str(error))
    return said


def _trainer_of(way):
    """Return the parameters and a trainer for a setting of `algorithms`."""
    powersgd._DIVIDED = way.get("divided", powersgd._DIVIDED)
    params = _parameters(way["shapes"], contexts=way.get("contexts", 1))
    optimizer = way.get("optimizer", "sgd"), way["optimizer_params"]
    more = {key: way[key] for key in ("compression_params", "algorithm")}
    return params, bps.DistributedTrainer(params, *optimizer, **more)


def _train(way, params, trainer, steps):
    for step in steps:
        _backward(params, gradients_of(bps.rank(), step, way["shapes"]))
        trainer.step(1)


def algorithms(arguments):
    """Train with algorithms, with a new trainer for each of several settings.

    A setting has shapes, steps, algorithm, compression_params, optimizer and optimizer_params.
    Optional: contexts, and middle. After `middle` steps, rank r saves "FOLDER/NUMBER-r", and a
    second trainer loads it. Results are prefixed with the setting's number: "w" and the parameter's
    number for the weights, "resumed" for those of the second trainer, "m" for Adam's first moments.
    """
    result = {"row": _row()}

    def keep(number, name, params):
        for i, param in enumerate(params):
            for context, array in enumerate(param.list_data()):
                result[f"{number}{name}{i}/{context}"] = array.asnumpy()

    for number, way in enumerate(arguments):
        params, trainer = _trainer_of(way)
        middle = way.get("middle", way["steps"])
        _train(way, params, trainer, range(middle))
        if "middle" in way:
            file = str(Path(way["folder"], f"{number}-{bps.rank()}"))
            trainer.save_states(file)
            others, other = _trainer_of(way)
            other.load_states(file)
            _train(way, others, other, range(middle, way["steps"]))
            keep(number, "resumed", others)
        _train(way, params, trainer, range(middle, way["steps"]))
        keep(number, "w", params)
        if way.get("optimizer") == "adam":
            for i, (m, _) in trainer._updaters[0].states.items():
                result[f"{number}m{i}"] = m.asnumpy()
    return result


def killed_algorithms(arguments):
    """Save trainers of several settings midway, train one more step, and wait for the kill."""
    for number, way in enumerate(arguments):
        params, trainer = _trainer_of(way)
        _train(way, params, trainer, range(way["middle"]))
        trainer.save_states(str(Path(way["folder"], f"{number}-{bps.rank()}")))
        _train(way, params, trainer, [way["middle"]])
        mx.nd.waitall()
    Path(way["folder"], f"saved{bps.rank()}").touch()
    time.sleep(1000)


def resumed_algorithms(arguments):
    """Resume from the files of `killed_algorithms`; returns the final weights of each setting."""
    result = {}
    for number, way in enumerate(arguments):
        params, trainer = _trainer_of(way)
        trainer.load_states(str(Path(way["folder"], f"{number}-{bps.rank()}")))
        _train(way, params, trainer, range(way["middle"], way["steps"]))
        result.update((f"{number}w{i}", p.data().asnumpy()) for i, p in enumerate(params))
    return result


def statistics(arguments):
    """Return a network's running statistics before and after they are averaged, and again.

    arguments: contexts. Every context of every worker has different batches. "outputs" is the
    network's output for ones afterwards.
    """
    contexts = [mx.cpu(c) for c in range(arguments["contexts"])]
    net = mx.gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(mx.gluon.nn.Dense(6, in_units=4), mx.gluon.nn.BatchNorm(in_channels=6))
    net.initialize(mx.init.One(), ctx=contexts)
    random = np.random.RandomState(bps.rank())
    for _ in range(3):
        for context in contexts:
            with mx.autograd.record():
                output = net(mx.nd.array(random.standard_normal((8, 4)), ctx=context))
            output.backward()  # backward updates the running statistics
    params = [net[1].running_mean, net[1].running_var]
    before = [[array.asnumpy() for array in param.list_data()] for param in params]
    bps.average_statistics(net)
    after = [[array.asnumpy() for array in param.list_data()] for param in params]
    bps.average_statistics(list(net.collect_params().values()))
    again = [[array.asnumpy() for array in param.list_data()] for param in params]
    outputs = [net(mx.nd.ones((2, 4), ctx=context)).asnumpy() for context in contexts]
    return {
        "before": np.array(before),
        "after": np.array(after),
        "again": np.array(again),
        "outputs": np.array(outputs),
        "weight": net[0].weight.data().asnumpy(),
    }


def exit_code(arguments):
    """Worker `rank` fails while the others wait for it."""
    if bps.rank() == arguments["failing"]:
        raise RuntimeError("this worker fails on purpose")
    tensor = mx.nd.ones(1)
    bps.byteps_push_pull(tensor, name="never")
    return {"never": tensor.asnumpy()}


def leaving(arguments):
    """Exchange until worker `leaver` fails, stops or ends its script."""
    for step in itertools.count():
        tensor = mx.nd.ones(1)
        bps.byteps_push_pull(tensor, name="again")
        tensor.wait_to_read()
        if bps.rank() == arguments["leaver"] and step == 3:
            if arguments["how"] == "finally":
                try:
                    raise ValueError("on purpose")
                finally:
                    bps.shutdown()
            if arguments["how"] == "stall":
                time.sleep(1000)
            sys.exit(3 if arguments["how"] == "exit" else 0)


def broken_alltoall(arguments):
    """Train two steps; in the second, worker 1 announces more bytes than it has."""
    (param,) = params = _parameters([(1000,)])
    compression = {"compressor": "onebit", "ef": "vanilla"}
    trainer = bps.DistributedTrainer(
        params, "sgd", {"learning_rate": 0.1}, compression_params=compression
    )
    everybody = default_exchange()._everybody
    exchange = everybody.exchange
    for step in range(2):
        if step == 1 and bps.rank() == 1:
            everybody.exchange = lambda packed, *more: exchange(
                packed._replace(splits=packed.splits + 1000), *more
            )
        _backward(params, gradients_of(bps.rank(), step, [(1000,)]))
        trainer.step(1)
        param.grad().wait_to_read()


def forgotten_alltoall(arguments):
    """Run an alltoall; worker 0 frees all but the result before worker 1 begins.

    arguments: folder, which must be empty.
    """
    rank, queued = bps.rank(), Path(arguments["folder"], "queued")
    if rank == 1:
        _wait_for(queued)
    data = mx.nd.array(range(4 * rank, 4 * rank + 4), dtype="uint8")
    splits = mx.nd.array([1, 3], dtype="int32")
    came = Alltoall(default_exchange()._everybody, 6, "forgotten")(Packed(data, splits))
    del data, splits
    more = [mx.nd.ones(1) for _ in range(100)]  # these may reuse the memory that was freed
    if rank == 0:
        queued.touch()
    return {"splits": came.splits.asnumpy(), "data": came.data.asnumpy(), "more": more[0].asnumpy()}


class _Gate(mx.operator.CustomOp):
    """Passes its input on after a file appears; other operators run meanwhile."""

    def __init__(self, path):
        super().__init__()
        self._path = path

    def forward(self, is_train, req, in_data, out_data, aux):
        _wait_for(self._path)
        self.assign(out_data[0], req[0], in_data[0])


@mx.operator.register("gate")
class _GateProp(mx.operator.CustomOpProp):
    def __init__(self, path):
        super().__init__(need_top_grad=False)
        self._path = Path(path)

    def create_operator(self, ctx, shapes, dtypes):
        return _Gate(self._path)


def in_another_order(arguments):
    """Sum two tensors; even and odd workers start with different ones.

    A worker's second tensor is ready only after its neighbour has queued both. arguments: folder,
    which must be empty, size, compression_params.
    """
    folder, rank = Path(arguments["folder"]), bps.rank()
    tensors = {}
    for i, values in enumerate(gradients_of(rank, 0, [arguments["size"]] * 2)):
        name = f"t{i}"
        bps.byteps_declare_tensor(name, **arguments["compression_params"])
        tensors[name] = mx.nd.array(values)
        if i != rank % 2:
            queued = str(folder / f"queued{rank ^ 1}")
            tensors[name] = mx.nd.Custom(tensors[name], op_type="gate", path=queued)
    for name, tensor in tensors.items():
        bps.byteps_push_pull(tensor, name=name, is_average=False)
    (folder / f"queued{rank}").touch()
    return {name: tensor.asnumpy() for name, tensor in tensors.items()}


def forever(arguments):
    """Exchange until a process dies. arguments: folder; optional: compression_params."""
    tensor = mx.nd.ones(1000)
    bps.byteps_declare_tensor("again", **arguments.get("compression_params", {}))
    while True:
        bps.byteps_push_pull(tensor, name="again")
        tensor.wait_to_read()
        running = Path(arguments["folder"], f"running{bps.rank()}")
        if not running.exists():
            begun = running.with_suffix(".begun")
            begun.write_text(str(os.getpid()))
            begun.rename(running)  # atomic, so that a reader sees a complete file


def until_told(arguments):
    """Train on known gradients: compressed, uncompressed, and row-sparse.

    arguments: folder, or last. In the folder, the job writes the number of steps done to
    `stepRANK`, and reads the last step from `last`. Returns the weights, and a digest of all
    gradients.
    """
    shapes = [(3000,), (500,), (50, 6), (40, 4)]
    params = _parameters(shapes[:2])
    for i, shape in enumerate(shapes[2:], 2):
        params.append(mx.gluon.Parameter(f"p{i}", shape=shape, grad_stype="row_sparse"))
        params[-1].initialize(mx.init.One())
    for param in params[1::2]:
        param.compression_params = None
    trainer = bps.DistributedTrainer(
        params,
        "sgd",
        {"learning_rate": 0.01},
        compression_params={"compressor": "onebit", "ef": "vanilla", "scaling": True},
    )
    seen, last, step = hashlib.sha256(), arguments.get("last"), 0
    while step != last:
        for param, gradient in zip(params, gradients_of(bps.rank(), step, shapes[:2])):
            _give(param, mx.nd.array(gradient))
        for param in params[2:]:
            ids, values = rows_of(bps.rank(), step, param.shape)
            gradient = mx.nd.sparse.zeros("row_sparse", param.shape)
            if ids:
                gradient = mx.nd.sparse.row_sparse_array((values, ids), param.shape)
            _give(param, gradient)
        trainer.step(1)
        for param in params:
            seen.update(param.list_grad()[0].asnumpy().tobytes())
        step += 1
        if "folder" in arguments:
            folder = Path(arguments["folder"])
            part = folder / f"part{bps.rank()}"
            part.write_text(str(step))
            part.rename(folder / f"step{bps.rank()}")
            if (folder / "last").exists():
                last = int((folder / "last").read_text())
                assert step <= last
    weights = {f"w{i}": param.data().asnumpy() for i, param in enumerate(params)}
    return {**weights, "seen": np.frombuffer(seen.digest(), np.uint8), "steps": np.array(step)}


def weight_decay(arguments):
    """Train with weight decay on known gradients; returns the final weights.

    arguments: shapes, wd_mults, excluded (numbers of the uncompressed parameters), learning_rates
    (one per step), compression_params, optimizer_params, batch_size.
    """
    shapes = arguments["shapes"]
    params = _parameters(shapes)
    for param, wd_mult in zip(params, arguments["wd_mults"]):
        param.wd_mult = wd_mult
    for i in arguments["excluded"]:
        params[i].compression_params = None
    trainer = bps.DistributedTrainer(
        params,
        "sgd",
        arguments["optimizer_params"],
        compression_params=arguments["compression_params"],
    )
    for step, rate in enumerate(arguments["learning_rates"]):
        trainer.set_learning_rate(rate)
        _backward(params, gradients_of(bps.rank(), step, shapes))
        trainer.step(arguments["batch_size"])
    return {f"w{i}": param.data().asnumpy() for i, param in enumerate(params)}


def traffic(arguments):
    """Train on one large tensor; returns the bytes per step from compression_stats()."""
    params = _parameters([arguments["shape"]])
    trainer = bps.DistributedTrainer(
        params, "sgd", {"learning_rate": 0.1}, compression_params=arguments["compression_params"]
    )
    gradients = gradients_of(bps.rank(), 0, [arguments["shape"]])
    for _ in range(arguments["steps"]):
        _backward(params, gradients)
        trainer.step(1)
        mx.nd.waitall()
    total = trainer.compression_stats()["total"]
    return {name: np.array(total[name]) for name in ("pushed_bytes", "pulled_bytes")}


def _next_job(file, patience):
    """Read the job that `standing` wrote to a file; None after `patience` seconds without one."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if file.exists():
            return json.loads(file.read_text())
        time.sleep(0.01)


def stand(patience, folder):
    """Run one job after another, as `standing` writes them."""
    for number in itertools.count():
        job = _next_job(folder / f"job{number}.json", patience)
        if job is None:
            return
        result = globals()[job["job"]](job["arguments"])
        mx.nd.waitall()
        part = folder / f"part{bps.rank()}.npz"
        np.savez(part, **result)
        part.rename(folder / f"result{number}-{bps.rank()}.npz")


if __name__ == "__main__":
    function, result_file, text = sys.argv[1:]
    if function != "plain_trainer":
        bps.init()
    if function == "stand":
        stand(json.loads(text), Path(result_file).parent)
    else:
        result = globals()[function](json.loads(text))
        if "RANK" in result_file:  # horovodrun gives all workers the same arguments
            result_file = result_file.replace("RANK", str(bps.rank()))
        np.savez(result_file, **result)
    bps.shutdown()
