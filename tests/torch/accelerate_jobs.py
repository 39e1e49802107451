"""Jobs that train with Accelerate; see jobs.py."""

import torch
from accelerate import Accelerator

import gluon_gc.torch as bps
from gluon_gc.torch.integrations.accelerate import compress
from tests.torch import by_hand
from tests.torch.common import (
    ONEBIT,
    TOPK,
    Net,
    data,
    do_jobs,
    flat,
    logged,
    loss_of,
    raised,
    sgd,
    train,
    wrapped,
)


class Loop:
    """A training loop of Accelerate."""

    def __init__(self, params, algorithm=None):
        self.accelerator = Accelerator(cpu=True)
        self.net = Net()
        self.model, self.optimizer = self.accelerator.prepare(self.net, sgd(self.net))
        arguments = (self.accelerator, self.model, self.optimizer, params, algorithm)
        self.compression = compress(*arguments)

    def train(self, batches, epoch=0):
        self.compression.set_epoch(epoch)
        for batch in batches:
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(loss_of(self.model, batch))
                self.optimizer.step()
                self.optimizer.zero_grad()
        return flat(self.net)


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


if __name__ == "__main__":
    do_jobs(globals())
