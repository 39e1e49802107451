"""What optimizers have applied is the sum of the gradients, in random loops of two workers."""

from pathlib import Path

from tests.torch.scripts import run


def test_optimizers_apply_each_gradient_once_in_random_loops():
    run(Path(__file__).with_name("random_loops.py"), 200)
