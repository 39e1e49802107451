"""The algorithms in NumPy; front ends must give the same bits."""

import fnmatch
import zlib

import numpy as np

from tests.neutral.kernels import low_rank


def plain_mean(kind, name, vectors):
    """Return the average of uncompressed vectors."""
    first, *others = vectors
    return (sum(others) + first) / np.float32(len(vectors))


class LocalStepsReplay:
    """local_steps for several workers. Each worker is a dict of arrays, which change in place.

    `mean(kind, name, vectors)` averages all workers' vectors of a parameter in a round.
    """

    def __init__(
        self,
        workers,
        every,
        outer_lr=0.7,
        outer_momentum=0.5,
        nesterov=True,
        fragments=1,
        overlap=0,
        mix=0.0,
        start=0,
        overrides=None,
        mean=None,
    ):
        self.workers, self.every, self.overlap, self.start = workers, every, overlap, start
        self.outer = {"outer_lr": outer_lr, "outer_momentum": outer_momentum, "nesterov": nesterov}
        self.overrides, self.mix = overrides or {}, mix
        self.anchor = {name: x.copy() for name, x in workers[0].items()}
        self.velocity = {name: np.zeros_like(x) for name, x in workers[0].items()}
        self.fragments = self._divided(workers[0], fragments)
        self.mean = mean or plain_mean
        self.steps = 0
        self.under_way = []  # (step in which it is applied, name, mean)

    @staticmethod
    def _divided(parameters, number):
        """The largest parameter goes first, and each one to the smallest fragment."""
        fragments = [[] for _ in range(number)]
        for name in sorted(parameters, key=lambda name: -parameters[name].size):
            min(fragments, key=lambda f: sum(parameters[n].size for n in f)).append(name)
        return fragments

    def after_step(self):
        self.steps += 1
        if self.steps <= self.start:
            self._average()
            return
        self._apply()
        for number, names in enumerate(self.fragments, start=1):
            if self.steps % self.every != number * self.every // len(self.fragments) % self.every:
                continue
            for name in sorted(names, key=list(self.anchor).index):
                differences = [self.anchor[name] - x[name] for x in self.workers]
                mean = self.mean("difference", name, differences)
                self.under_way.append((self.steps + self.overlap, name, mean))
        self._apply()

    def _average(self):
        for name, anchor in self.anchor.items():
            differences = [anchor - x[name] for x in self.workers]
            self.anchor[name] = anchor - self.mean("difference", name, differences)
            for x in self.workers:
                x[name][:] = self.anchor[name]

    def _apply(self):
        for step, name, mean in self.under_way:
            if step == self.steps:
                self._outer_step(name, mean)
        self.under_way = [entry for entry in self.under_way if entry[0] > self.steps]

    def _outer_step(self, name, mean):
        outer = dict(self.outer)
        for pattern in reversed(list(self.overrides)):  # the first match is applied last
            if fnmatch.fnmatch(name, pattern):
                outer = {**self.outer, **self.overrides[pattern]}
        lr, mu = np.float32(outer["outer_lr"]), np.float32(outer["outer_momentum"])
        velocity = mu * self.velocity[name] + mean
        ahead = mean + mu * velocity if outer["nesterov"] else velocity
        self.anchor[name] = self.anchor[name] - lr * ahead
        self.velocity[name] = velocity
        keep, take = np.float32(self.mix), np.float32(1 - self.mix)
        for x in self.workers:
            mixed = keep * x[name] + take * self.anchor[name] if self.mix else self.anchor[name]
            x[name][:] = mixed


class OneBitAdamReplay:
    """onebit_adam for several workers, which have the same parameters and moments.

    `warm_up(means)` is the wrapped optimizer's own update; it changes `x`, `m` and `v` in place.
    `mean(kind, name, vectors)` averages all workers' vectors of a parameter in a round. `corrected`
    returns the learning rate and the denominator with the bias corrections c1 and c2.
    """

    def __init__(
        self,
        x,
        freeze_step,
        warm_up,
        corrected,
        betas,
        lr,
        decay=0.0,
        coupled=0.0,
        clip=np.inf,
        mean=None,
    ):
        self.x, self.freeze_step, self.warm_up = x, freeze_step, warm_up
        self.m = {name: np.zeros_like(array) for name, array in x.items()}
        self.v = {name: np.zeros_like(array) for name, array in x.items()}
        self.betas, self.lr, self.corrected = betas, lr, corrected
        self.decay, self.coupled, self.clip = decay, np.float32(coupled), np.float32(clip)
        self.mean = mean or plain_mean
        self.steps = 0

    def step(self, gradients):
        """Make a step with a dict of gradients from each worker."""
        self.steps += 1
        kind = "gradient" if self.steps <= self.freeze_step else "momentum"
        means = {
            name: self.mean(kind, name, [self._vector(kind, name, own[name]) for own in gradients])
            for name in self.x
        }
        if kind == "gradient":
            self.warm_up(self, means)
            return
        c1, c2 = (1 - b**t for b, t in zip(self.betas, (self.steps, self.freeze_step)))
        for name, x in self.x.items():
            trained = self.v[name] > 0
            self.m[name][:] = trained * means[name]
            rate, denominator = self.corrected(self.lr, self.v[name], c1, c2)
            change = np.float32(rate) * (self.m[name] / denominator)
            if self.decay:
                change = change + np.float32(self.lr * self.decay) * (trained * x)
            x -= change

    def _vector(self, kind, name, gradient):
        if kind == "gradient":
            return gradient
        beta1, _ = self.betas
        if self.coupled:
            gradient = gradient + self.coupled * self.x[name]
        gradient = np.clip(gradient, -self.clip, self.clip)
        moment = np.float32(beta1) * self.m[name] + np.float32(1 - beta1) * gradient
        return (self.v[name] > 0) * moment


ZERO_ONE = {
    "name": "zero_one_adam",
    "var_freeze_step": 5,
    "var_update_scaler": 2,
    "local_step_scaler": 2,
    "local_step_clipper": 4,
}
VARIANCE_STEPS = (1, 2, 3, 5)  # of ZERO_ONE
AVERAGES = (1, 2, 3, 4, 5, 6, 7, 9, 13, 17)  # of ZERO_ONE, up to step 20


class ZeroOneAdamReplay:
    """zero_one_adam for several workers. Each worker is a dict of arrays, which change in place.

    The options are ZERO_ONE. `mean` and `corrected` are those of `OneBitAdamReplay`.
    """

    def __init__(self, workers, corrected, betas, lr, decay=0.0, coupled=0.0, mean=None):
        self.workers = workers
        self.corrected, self.betas, self.lr = corrected, betas, lr
        self.decay, self.coupled, self.mean = decay, np.float32(coupled), mean or plain_mean
        self.m = [{name: np.zeros_like(x) for name, x in worker.items()} for worker in workers]
        self.v = {name: np.zeros_like(x) for name, x in workers[0].items()}
        self.steps = 0
        self._restart()

    def _restart(self):
        self.anchor = {name: x.copy() for name, x in self.workers[0].items()}
        self.sums = [
            {name: np.zeros_like(x) for name, x in worker.items()} for worker in self.workers
        ]
        self.rate, self.keep = np.zeros(1, np.float32), np.ones(1, np.float32)

    def step(self, gradients):
        """Make a step with a dict of gradients from each worker."""
        self.steps += 1
        beta1, beta2 = self.betas
        averages_gradients = self.steps in VARIANCE_STEPS
        c1 = 1 - beta1**self.steps
        c2 = 1 - beta2 ** sum(step <= self.steps for step in VARIANCE_STEPS)
        for name in self.v:
            own = [gradient[name] for gradient in gradients]
            if averages_gradients:
                own = [self.mean("gradient", name, own)] * len(own)
            own = [g + self.coupled * x[name] if self.coupled else g for g, x in self._with(own)]
            v = self.v[name]
            if averages_gradients:
                g = own[0]
                v[:] = np.float32(beta2) * v + np.float32(1 - beta2) * (g * g)
            trained = (v > 0) | averages_gradients
            rate, denominator = self.corrected(self.lr, v, c1, c2)
            decay = self.lr * self.decay
            for g, x, m, sums in zip(own, self.workers, self.m, self.sums):
                moment = np.float32(beta1) * m[name] + np.float32(1 - beta1) * g
                m[name][:] = trained * moment
                change = np.float32(rate) * (m[name] / denominator)
                if decay:
                    change = change + np.float32(decay) * (trained * x[name])
                x[name] -= change
                keep = np.float32(1 - decay)
                sums[name] = keep * sums[name] + np.float32(rate) * m[name]
        self.rate = keep * self.rate + np.float32(rate)
        self.keep = keep * self.keep
        if self.steps in AVERAGES:
            if not averages_gradients:
                self._average(c1, c2)
            self._restart()

    def _with(self, arrays):
        return zip(arrays, self.workers)

    def _average(self, c1, c2):
        for name, v in self.v.items():
            trained = v > 0
            average = trained * self.mean("sum", name, [sums[name] for sums in self.sums])
            _, denominator = self.corrected(self.lr, v, c1, c2)
            for x, m in zip(self.workers, self.m):
                m[name][:] = average / self.rate
                decayed = trained * (self.anchor[name] - self.keep * self.anchor[name])
                x[name][:] = self.anchor[name] - decayed - average / denominator


class PowerSGDReplay:
    """powersgd for several workers, which have the same parameters.

    `mean(kind, name, vectors)` averages all workers' vectors of a parameter in a round.
    """

    def __init__(self, shapes, workers, rank, start=0, mean=None):
        self.start, self.mean = start, mean or plain_mean
        self.steps, self.matrices = 0, {}
        for name, shape in shapes.items():
            rows, columns = shape[0], int(np.prod(shape[1:]))
            r = min(rank, rows, columns)
            if 2 * r * (rows + columns) < rows * columns:
                self.matrices[name] = rows, columns, r
        self.q = {n: np.zeros((r, m), np.float32) for n, (_, m, r) in self.matrices.items()}
        self.residuals = [
            {n: np.zeros((rows, m), np.float32) for n, (rows, m, _) in self.matrices.items()}
            for _ in range(workers)
        ]

    def step(self, gradients):
        """Return the averages of a dict of gradients from each worker."""
        self.steps += 1
        if self.steps <= self.start:
            return {
                n: self.mean("gradient", n, [own[n] for own in gradients]) for n in gradients[0]
            }
        return {
            name: self._average(name, [own[name] for own in gradients]) for name in gradients[0]
        }

    def _average(self, name, gradients):
        if name not in self.matrices:
            return self.mean("left_factor", name, gradients)
        rows, columns, _ = self.matrices[name]
        totals = [
            residual[name] + gradient.reshape(rows, columns)
            for residual, gradient in zip(self.residuals, gradients)
        ]
        basis = low_rank.orthonormal(self._filled(name, columns))
        lefts = [low_rank.left_of(basis, total) for total in totals]
        p = low_rank.orthonormal(self.mean("left_factor", name, lefts))
        rights = [low_rank.project(p, total) for total in totals]
        self.q[name] = self.mean("right_factor", name, rights)
        average = low_rank.multiply(p, self.q[name])
        for residual, total in zip(self.residuals, totals):
            residual[name] = total - average
        return average.reshape(gradients[0].shape)

    def _filled(self, name, columns):
        """Return Q, with new random numbers in the rows that have only zeros."""
        rows = self.q[name].copy()
        for i, row in enumerate(rows):
            if not row.any():
                key = [zlib.crc32(name.encode()), self.steps, i]
                draws = np.random.RandomState(key).random_sample((12, columns))
                row[:] = sum(draws[1:], draws[0]) - 6
        return rows
