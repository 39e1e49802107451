"""No module of gluon_gc uses private attributes of another module's objects."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "gluon_gc"

OF_NAMEDTUPLES = {"_asdict", "_fields", "_replace"}  # public despite the underscore
OF_OTHERS = {
    "launch/cli/supervisor.py": {"_exit"},
    "mxnet/algorithms/adam.py": {
        "_get_lr",
        "_get_wd",
        "_index_update_count",
        "_set_current_context",
        "_update_count",
    },
    "mxnet/algorithms/algorithm.py": {"_fresh_grad", "_grad_stype", "_stype"},
    "mxnet/trainer/freshness.py": {"_fresh_grad"},
    "mxnet/trainer/equal_weights.py": {"_data", "_deferred_init", "_init_impl"},
    "mxnet/kvstore/plugin.py": {"_create_kvstore"},
    "mxnet/kvstore/parameter_server/servers.py": {"_barrier", "_send_command_to_servers"},
    "mxnet/trainer/optimizer_facts.py": {"_index_update_count"},
    "mxnet/trainer/momentum.py": {"_fresh_grad", "_get_wd"},
    "mxnet/byteps/optimizer.py": {"_index_update_count"},
    "mxnet/state/optimizer_states.py": {"_all_index_update_counts", "_set_current_context"},
    "mxnet/trainer/parameters.py": {"_data", "_differentiable", "_grad_stype"},
    "mxnet/server.py": {"_set_updater"},
    "mxnet/trainer/trainer.py": {"_stype"},
    "torch/algorithms/optimizer.py": {"_wrapped_by_lr_sched"},
    "torch/ddp.py": {"_C", "_current_graph_task_id"},
    "torch/algorithms/state.py": {"_version"},
    "torch/optimizer/distributed.py": {
        "_C",
        "_current_graph_task_id",
        "_execution_engine",
        "_version",
    },
    "torch/integrations/accelerate.py": {"_custom_objects"},
    "torch/integrations/transformers.py": {"_get_output_dir"},
    "torch/fsdp/parts.py": {
        "_all_reduce_hook",
        "_fsdp_param_group",
        "_get_fsdp_state",
        "_is_hsdp",
        "_partial_reduce_output",
    },
    "torch/cross_barrier.py": {"_parameters"},
    "torch/transport/gathering.py": {"_get_default_store"},
    "torch/transport/groups.py": {"_device_types", "_get_backend"},
    "torch/gradients/optimizer_hooks.py": {"_optimizer_step_pre_hooks"},
    "torch/byteps/rendezvous.py": {"_get_default_store"},
    "torch/byteps/push_pull.py": {"_indices", "_values"},
    "torch/gradients/momentum.py": {"_values"},
    "torch/gradients/undo.py": {
        "_C",
        "_current_graph_task_id",
        "_execution_engine",
        "_foreach_norm",
        "_version",
    },
}
"""The private attributes of MXNet, PyTorch and Python that each file needs."""


def own_names(tree):
    """Yield the names that a module defines, including attributes of its own objects."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if is_own(node.value):
                yield node.attr


def is_own(value):
    """Return whether an expression is `self`, `cls` or `super()`."""
    if isinstance(value, ast.Call):
        value = value.func
    return isinstance(value, ast.Name) and value.id in ("self", "cls", "super")


def private_attributes_of_others(source):
    """Return the private attributes that a module uses but does not define."""
    tree = ast.parse(source)
    own = {*own_names(tree), *OF_NAMEDTUPLES}
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and not is_own(node.value)
        and node.attr not in own
    }


@pytest.mark.parametrize(
    "source, names",
    [
        ("x = trainer._store.rank", {"_store"}),
        ("trainer._store = 1", {"_store"}),
        ("class A:\n    def f(self):\n        return self._x + super()._y", set()),
        ("class A:\n    def __init__(self, other):\n        self._x = other._x", set()),
        ("def f(a):\n    return a._replace(b=1).__dict__", set()),
        ("def f(self):\n    return self._store._steps", {"_steps"}),
    ],
)
def test_private_attributes_of_others_are_found(source, names):
    assert private_attributes_of_others(source) == names


def test_no_module_uses_private_attributes_of_another_but_of_other_projects():
    found = {
        str(path.relative_to(PACKAGE)): private_attributes_of_others(path.read_text())
        for path in PACKAGE.rglob("*.py")
    }
    assert {file: names for file, names in found.items() if names} == OF_OTHERS


# Attributes of base classes


def classes_of(path):
    """Yield a file's classes: the name, the bases' names, the private attributes that it sets."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
            stored = {
                n.attr
                for n in ast.walk(node)
                if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store) and is_own(n.value)
            }
            yield node.name, bases, {name for name in stored if name.startswith("_")}


ON_PURPOSE = {
    "GpuCoder": {"_copies", "_references", "_has_foreign_memory"},
    "Horovod": {"_machine"},
    "MailboxDriver": {"_zero"},
    "OneMachine": {"_memory"},
    "ParameterServer": {"_machine"},
    "_CrossingAverager": {"_buckets"},
}
"""The private attributes of its base that a class sets, too."""


def test_no_class_sets_a_private_attribute_of_its_base_by_chance():
    found = [each for path in PACKAGE.rglob("*.py") for each in classes_of(path)]
    stored = {name: attributes for name, _, attributes in found}
    both = {
        name: set().union(*(stored.get(base, set()) & attributes for base in bases - {name}))
        for name, bases, attributes in found
    }
    assert {name: shared for name, shared in both.items() if shared} == ON_PURPOSE
