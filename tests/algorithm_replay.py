"""The algorithms in NumPy; front ends must give the same bits."""

import numpy as np


class LocalStepsReplay:
    """local_steps for several workers. Each worker is a dict of arrays, which change in place.

    `mean(kind, name, vectors)` averages all workers' vectors of a parameter in a round.
    """

    def __init__(self, workers, every, outer_lr=0.7, outer_momentum=0.9, nesterov=True, mean=None):
        self.workers, self.every, self.nesterov = workers, every, nesterov
        self.lr, self.mu = np.float32(outer_lr), np.float32(outer_momentum)
        self.anchor = {name: x.copy() for name, x in workers[0].items()}
        self.velocity = {name: np.zeros_like(x) for name, x in workers[0].items()}
        self.mean = mean or self._plain_mean
        self.steps = 0

    @staticmethod
    def _plain_mean(kind, name, vectors):
        first, *others = vectors
        return (sum(others) + first) / np.float32(len(vectors))

    def after_step(self):
        self.steps += 1
        if self.steps % self.every:
            return
        for name, anchor in self.anchor.items():
            mean = self.mean("difference", name, [anchor - x[name] for x in self.workers])
            velocity = self.mu * self.velocity[name] + mean
            ahead = mean + self.mu * velocity if self.nesterov else velocity
            self.anchor[name] = anchor - self.lr * ahead
            self.velocity[name] = velocity
            for x in self.workers:
                x[name][:] = self.anchor[name]
