"""Jobs that train with Accelerate, for test_integrations.py."""

import functools

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.utils import ProjectConfiguration, find_executable_batch_size

import gluon_gc.torch as bps
from gluon_gc.torch.integrations.accelerate import compress
from tests.torch.common import (
    ONEBIT,
    Net,
    assert_alike,
    flat,
    logged,
    loss_of,
    raised,
    sgd,
    train,
    wrapped,
)
from tests.torch.integrations import by_hand


class Loop:
    """A training loop of Accelerate."""

    def __init__(self, params, algorithm=None, report=None, **more):
        self.accelerator = Accelerator(cpu=True, **more)
        self.net = Net()
        self.model, self.optimizer = self.accelerator.prepare(self.net, sgd(self.net))
        arguments = (self.accelerator, self.model, self.optimizer, params, algorithm, report)
        self.compression = compress(*arguments)

    def train(self, batches, epoch=0):
        self.compression.set_epoch(epoch)
        for batch in batches:
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(loss_of(self.model, batch))
                self.optimizer.step()
                self.optimizer.zero_grad()
        return flat(self.net)


def a_smaller_batch_is_tried(folder):
    """The second try has the same optimizer, or a new one."""
    for params, algorithm in by_hand.CASES:
        for same in (True, False):
            kept = Net()
            accelerator, tries = Accelerator(cpu=True), []
            pairs = [(kept, sgd(kept))] * 2 if same else [(n, sgd(n)) for n in (Net(), Net())]

            @find_executable_batch_size(starting_batch_size=8)
            def loop(size, p=params, a=algorithm, each=pairs, made=accelerator, counted=tries):
                made.free_memory()
                net, inner = each[len(counted)]
                model, optimizer = made.prepare(net, inner)
                counted.append(compress(made, model, optimizer, p, a))
                if len(counted) == 1:
                    raise RuntimeError("CUDA out of memory.")
                for batch in range(by_hand.BATCHES):
                    made.backward(loss_of(model, batch))
                    optimizer.step()
                    optimizer.zero_grad()
                return flat(net)

            loop()
            assert len(tries) == 2
            assert tries[1].state.steps == by_hand.BATCHES
            assert len(accelerator._custom_objects) == (1 if same else 2)
            for compression in tries:
                compression.close()


def trained_as_by_hand_and_resumed_bit_for_bit(folder):
    batches = range(by_hand.BATCHES)
    for number, (params, algorithm) in enumerate(by_hand.CASES):
        expected = by_hand.trained(params, algorithm)
        loop, saved = Loop(params, algorithm), str(folder / str(number))
        loop.train(batches)
        loop.accelerator.save_state(saved)
        assert torch.equal(loop.train(batches, epoch=1), expected), params
        resumed = Loop(params, algorithm)
        with logged() as lines:
            resumed.accelerator.load_state(saved)
        assert torch.equal(resumed.train(batches, epoch=1), expected), params
        assert not lines
        for used in (loop, resumed):
            used.compression.close()


def accumulated_gradients_are_one_step(folder):
    loop = Loop(ONEBIT, gradient_accumulation_steps=2)
    with logged() as lines:
        weights = loop.train(range(4))
    assert loop.compression.state.steps == 2
    assert_alike(weights)
    assert not lines
    loop.compression.close()


def gradients_that_accelerate_synchronizes_stay_local_with_an_algorithm(folder):
    loop = Loop(*by_hand.CASES[-1])
    for batch in range(2):
        with loop.accelerator.no_sync(loop.model):
            loss = loss_of(loop.model, batch)
        with loop.accelerator.trigger_sync_in_backward(loop.model):
            loop.accelerator.backward(loss)
    gradients = [parameter.grad for parameter in loop.net.parameters()]
    net = Net()
    for batch in range(2):
        loss_of(net, batch).backward()
    assert all(map(torch.equal, gradients, (parameter.grad for parameter in net.parameters())))
    loop.compression.close()
    loss = loss_of(loop.model, 2)
    raised(RuntimeError, "nothing can be averaged after", loss.backward)


def static_graphs_train_with_an_algorithm(folder):
    static = DistributedDataParallelKwargs(static_graph=True)
    loop = Loop(*by_hand.CASES[-1], kwargs_handlers=[static])
    for epoch in range(2):
        weights = loop.train(range(by_hand.BATCHES), epoch)
    assert torch.equal(weights, by_hand.trained(*by_hand.CASES[-1]))
    loop.compression.close()


def each_node_saves_all_states(folder):
    loop = Loop(ONEBIT, project_config=ProjectConfiguration(save_on_each_node=True))
    workers = loop.compression.state_dict()["workers"]
    assert [state["rank"] for state in workers] == [0, 1]
    loop.compression.close()


def prepared_optimizers_are_taken_where_an_optimizer_is(folder):
    net, optimizer, ddp, state = wrapped(ONEBIT)
    expected = train(net, optimizer, ddp, range(6))
    state.close()
    net, accelerator = Net(), Accelerator(cpu=True)
    optimizer = accelerator.prepare(sgd(net))
    state = bps.CompressionState(net.named_parameters(), ONEBIT, optimizer)
    ddp = torch.nn.parallel.DistributedDataParallel(net)
    ddp.register_comm_hook(state, bps.compression_hook)
    assert torch.equal(train(net, optimizer, ddp, range(6)), expected)
    state.close()
    net = Net()
    prepared = accelerator.prepare(sgd(net))
    optimizer = bps.DistributedOptimizer(
        prepared, net.named_parameters(), compression_params=ONEBIT
    )
    assert optimizer is prepared
    bps.broadcast_optimizer_state(optimizer)
    assert torch.equal(train(net, optimizer, net, range(6)), expected)
    optimizer.optimizer.compression_state.close()


def mistakes_are_refused(folder):
    net, accelerator = Net(), Accelerator(cpu=True)
    message = "the tool has made a Net: start two or more workers, and select DDP"
    raised(ValueError, message, lambda: compress(accelerator, net, sgd(net)))
    model, optimizer = accelerator.prepare(net, sgd(net))
    compression = compress(accelerator, model, optimizer)
    raised(RuntimeError, "only be called once", lambda: compress(accelerator, model, optimizer))
    message = "this checkpoint has no states of all workers' compression"
    raised(ValueError, message, lambda: compression.load_state_dict({}))
    compression.close()
    optimizer.scaler = torch.amp.GradScaler("cpu")
    message = "for float16 before algorithm local_steps changes its step: use bfloat16"
    compressing = functools.partial(compress, accelerator, model, optimizer, None, "local_steps")
    raised(ValueError, message, compressing)
    optimizer.scaler = None
    raised(RuntimeError, "only be called once", compressing)


def one_worker_is_refused(folder):
    raised(ValueError, "has made a Net: start two or more workers", lambda: Loop({}))


def reports_follow_the_steps(folder):
    for params, algorithm in by_hand.CASES:
        loop = Loop(
            params, algorithm, {"every": 2, "measure_error": 2}, gradient_accumulation_steps=2
        )
        loop.train(range(8))
        assert loop.compression.reporter.last.step == 4
        loop.compression.close()
    raised(ValueError, "every must be > 0, got 0", lambda: Loop(ONEBIT, report={"every": 0}))
    assert torch.equal(trained_alone(), trained_alone())


def trained_alone():
    """Train without a report, after one that was refused."""
    loop = Loop(ONEBIT)
    weights = loop.train(range(2))
    loop.compression.close()
    return weights
