"""Workers whose weights would diverge get an error before the first gradient is sent."""

import pytest

from tests.mxnet.cluster.standing import run, run_horovod, run_machine

LOCAL = (
    'algorithm {"name": "local_steps", "every": %d, "outer_lr": 0.7, "outer_momentum": 0.9, '
    '"nesterov": true, "fragments": 1, "overlap": 0, "mix": 0.0, "overrides": null}'
)


SAID = {
    "rate": "has learning_rate 1.5 for the optimizer, but worker 0 has 0.5",
    "class": 'has class "NAG" for the optimizer, but worker 0 has "SGD"',
    "wd": "has wd 0.25 for the optimizer, but worker 0 has 0.0",
    "momentum": "has momentum 0.75 for the optimizer, but worker 0 has 0.5",
    "clip": "has clip_gradient 1.0 for the optimizer, but worker 0 has none",
    "precision": "has multi_precision true for the optimizer, but worker 0 has false",
    "scheduler": 'has lr_scheduler "FactorScheduler" for the optimizer, but worker 0 has none',
    "factor": "has factor 0.75 for the lr_scheduler, but worker 0 has 0.5",
    "lr_mult": "has learning rate's multiplier 2.0 for parameter p1, but worker 0 has 1.0",
    "wd_mult": "has weight decay's multiplier 2.0 for parameter p1, but worker 0 has 1.0",
    "nonfinite": 'has on_nonfinite "skip" for the gradient of p1, but worker 0 has "raise"',
    "norm": "has max_grad_norm 2.0 for the trainer, but worker 0 has 1.0",
    "shape": "has shape [6] for parameter p1, but worker 0 has [6, 1]",
    "stale": "has ignore_stale_grad true for the trainer, but worker 0 has false",
    "AMP": "has AMP true for the trainer, but worker 0 has false",
    "compressor": "has k 2 for the gradient of p1, but worker 0 has 1",
    "algorithm": f"has {LOCAL % 30} for the trainer, but worker 0 has none",
    "every": f"has {LOCAL % 3} for the trainer, but worker 0 has {(LOCAL % 2)[10:]}",
    "deferred": (
        'has a value that "comes with the first batch, which sets the shape" for parameter w, but '
        'worker 0 has "is there"'
    ),
    "optimizer": "has learning_rate 1.5 for the optimizer, but worker 0 has 0.5",
    "name": 'has name "b" for byteps_push_pull, but worker 0 has "a"',
    "sum": "has is_average true for byteps_push_pull, but worker 0 has false",
    "dtype": 'has dtype "int32" for byteps_push_pull, but worker 0 has "int8"',
}


@pytest.mark.parametrize("start", [run, run_horovod, run_machine])
def test_workers_compare_their_trainers_and_tensors_before_the_first_exchange(start):
    if start is run_horovod:
        pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
    for result in start("disagreements", workers=2):
        said = {name: str(text) for name, text in result.items()}
        assert said.pop("nothing") == said.pop("nothing more") == ""
        expected = {n: f"the workers do not fit together: worker 1 {s}" for n, s in SAID.items()}
        assert said == expected
