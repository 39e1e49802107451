"""Momentum that compression applies instead of the optimizer, in one process, against a replay."""

import pytest

torch = pytest.importorskip("torch")

from gluon_gc.torch.gradients.momentum import Momentum, momentum_of  # noqa: E402
from gluon_gc.torch.gradients.settings import chosen_params  # noqa: E402
from tests.torch.common import logged  # noqa: E402

MU, STEPS = 0.875, 5
DGC = {"compressor": "dgc", "k": 0.01}
DGC_NESTEROV = {**DGC, "momentum": "nesterov"}
ONEBIT_NESTEROV = {"compressor": "onebit", "ef": "vanilla", "momentum": "nesterov"}


def parameters():
    shapes = {"matrix": (4, 5), "vector": (7,), "other": (3, 2)}
    return {name: torch.nn.Parameter(torch.ones(shape)) for name, shape in shapes.items()}


def gradients(name):
    generator = torch.Generator().manual_seed(len(name))
    return [torch.randn(parameters()[name].shape, generator=generator) for _ in range(STEPS)]


def with_momentum(name, nesterov):
    m = 0.0
    for g in gradients(name):
        m = MU * m + g
        yield g + MU * m if nesterov else m


def applied(compression, overrides, optimizer=torch.optim.SGD, nesterov=False):
    """Return all parameters' gradients after each step; no compressor changes them."""
    named = parameters()
    sgd = optimizer(named.values(), lr=0.1, momentum=MU, nesterov=nesterov)
    mu, of_optimizer = momentum_of(sgd)
    rules = chosen_params(named, compression, overrides, mu, of_optimizer).nesterov
    momentum = Momentum(sgd, named, rules)
    result = {name: [] for name in named}
    for step in range(STEPS):
        for name, parameter in named.items():
            parameter.grad = gradients(name)[step].clone()
        momentum.before_step(named.items(), exempted=named)
        for name, parameter in named.items():
            result[name].append(parameter.grad)
    return result


@pytest.mark.parametrize(
    "compression, own, of_optimizer, nesterov",
    [
        (DGC, None, False, False),  # as for all parameters: the optimizer's kind
        (DGC, None, True, True),
        (DGC_NESTEROV, None, False, True),
        (DGC, DGC_NESTEROV, False, True),  # its own kind, even though dgc does not compress vectors
        (DGC_NESTEROV, DGC, False, False),
        (DGC, {"fp16": False}, False, False),
        (None, DGC_NESTEROV, False, True),
        (None, None, False, False),
    ],
)
def test_a_parameter_has_its_own_kind_of_momentum_or_that_of_all(
    compression, own, of_optimizer, nesterov
):
    # The override of the first parameter has no effect on others.
    overrides = {"vector": own, "matrix": ONEBIT_NESTEROV}
    reduced = applied(compression, overrides, nesterov=of_optimizer)
    for ours, expected in zip(reduced["vector"], with_momentum("vector", nesterov)):
        assert torch.allclose(ours, expected, rtol=1e-6, atol=1e-6)


def test_an_optimizer_whose_update_is_not_linear_keeps_its_momentum():
    named = parameters()
    optimizer = torch.optim.RMSprop(named.values(), momentum=MU)
    with pytest.raises(ValueError, match="momentum of SGD, but not that of RMSprop, whose"):
        Momentum(optimizer, named, dict.fromkeys(named, True))


def test_a_state_dict_made_in_a_step_or_after_a_failed_one_has_the_momentum():
    named = parameters()
    optimizer = torch.optim.SGD(named.values(), lr=0.1, momentum=MU)
    momentum = Momentum(optimizer, named, dict.fromkeys(named, True))
    momentum.take()
    assert optimizer.state_dict()["param_groups"][0]["momentum"] == MU
    assert optimizer.param_groups[0]["momentum"] == 0
    momentum.after_step()
    assert optimizer.state_dict()["param_groups"][0]["momentum"] == MU


def test_all_parameters_of_the_optimizer_must_be_known_when_they_have_gradients():
    named, frozen = parameters(), torch.nn.Parameter(torch.ones(6), requires_grad=False)
    optimizer = torch.optim.SGD([*named.values(), frozen], lr=0.1, momentum=MU)
    some = {"matrix": named["matrix"], "vector": named["vector"]}
    missing = r"must have all parameters of the optimizer, but .* \[\(3, 2\)\] are missing"
    with pytest.raises(ValueError, match=missing):
        Momentum(optimizer, some, dict.fromkeys(some, True))
    momentum = Momentum(optimizer, named, dict.fromkeys(named, True))
    added = torch.nn.Parameter(torch.ones(8))
    optimizer.add_param_group({"params": [added]})
    momentum.before_step(named.items(), exempted=named)
    unknown = r"parameter of shape \({},\) in .* group {} .* after CompressionState was made"
    for parameter, group in ((frozen, 0), (added, 1)):
        parameter.requires_grad_().grad = torch.ones_like(parameter)
        with pytest.raises(RuntimeError, match=unknown.format(len(parameter), group)):
            momentum.before_step(named.items(), exempted=named)
        parameter.grad = None


class Own(torch.optim.SGD):
    """A user's optimizer."""


def test_a_users_own_kind_of_sgd_is_warned_of_once():
    with logged() as lines:
        for _ in range(2):
            applied(ONEBIT_NESTEROV, {}, Own)
            applied(ONEBIT_NESTEROV, {})
    assert len(lines) == 1 and f"{__name__}.Own: its update must be linear" in lines[0]
