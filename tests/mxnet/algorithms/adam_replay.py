"""The replays of algorithms that need Adam, for MXNet's Adam."""

import math

import mxnet as mx
import numpy as np

from tests.algorithm_replay import OneBitAdamReplay


def corrected(lr, v, c1, c2):
    return lr * math.sqrt(c2) / c1, np.sqrt(v) + np.float32(1e-8)


def onebit_replay(values, freeze_step, mean=None, **settings):
    """Return the replay of onebit_adam, with MXNet's own update in the warm-up.

    `values` are the first parameters, and `settings` those of Adam.
    """
    optimizer, clip = mx.optimizer.Adam(**settings), settings.get("clip_gradient", np.inf)
    updater, arrays = mx.optimizer.get_updater(optimizer), {}

    def warm_up(replay, means):
        for number, (name, x) in enumerate(replay.x.items()):
            weight = arrays.setdefault(name, mx.nd.array(x))
            updater(number, mx.nd.array(means[name]), weight)
            m, v = updater.states[number]
            for ours, array in ((x, weight), (replay.m[name], m), (replay.v[name], v)):
                ours[:] = array.asnumpy()

    return OneBitAdamReplay(
        values,
        freeze_step,
        warm_up,
        corrected,
        (optimizer.beta1, optimizer.beta2),
        optimizer.lr,
        coupled=settings.get("wd", 0.0),
        clip=clip if clip > 0 else np.inf,
        mean=mean,
    )
