"""compression_params, and the starts of random streams."""

import json

import numpy as np
import pytest

from gluon_gc.compression import (
    CompressionParams,
    candidates,
    keys,
    parse,
    registry,
    stream,
    users_of,
)
from gluon_gc.compression.known_keys import ignored, warn_of_ignored
from gluon_gc.log import warn_once
from gluon_gc.options import listed
from tests.compressors import params_of

MU = 0.9
ONEBIT = {"compressor": "onebit", "ef": "vanilla", "momentum": "nesterov", "scaling": True}
COMPRESSORS = listed([f"'{name}'" for name in (*registry, "auto")], "or")


def test_the_published_dictionary_is_understood():
    params = parse(ONEBIT, MU)
    assert params == CompressionParams(registry["onebit"](scaling=True), "vanilla", 0.9)


@pytest.mark.parametrize(
    "params",
    [
        None,
        {},
        {"compressor": ""},
        {"compressor": None, "ef": "", "momentum": False, "fp16": None},
        {"compressor": False, "k": 1, "normalize": "max", "partition": "linear", "scaling": False},
    ],
)
def test_falsy_values_mean_off(params):
    assert parse(params) == CompressionParams()


def test_what_byteps_scripts_pass_for_other_compressors_is_no_contradiction():
    scripts = {"k": 1.0, "normalize": "max", "partition": "linear", "fp16": False}
    assert parse({**ONEBIT, **scripts}, MU) == parse(ONEBIT, MU)
    assert ignored({**ONEBIT, **scripts}) == {}


def test_numpy_scalars_are_as_good_as_pythons():
    params = parse({"compressor": "onebit", "scaling": np.bool_(True), "fp16": np.bool_(True)})
    assert params == CompressionParams(registry["onebit"](scaling=True), fp16=True)


FLAG, DECAY = "must be True or False, got ", "['ef_decay'] must be a number above 0 and at most 1, "
FEEDBACK = "['ef'] must be 'vanilla', 'corrected' or 'sparse', got "
SHARE = "must be a share below 1 or a whole number >= 1, got "
WARM_UP = "must be a number above 0 and at most 1, or a list of them"


def inner(compressor="blockwise", **options):
    return {"inner": {"compressor": compressor, **options}}


@pytest.mark.parametrize(
    "name, more, error, message",
    [
        (None, [], TypeError, "compression_params must be a dict, got list"),
        (None, {"compresor": "onebit"}, ValueError, "'compresor'; did you mean 'compressor'?"),
        (None, {3: 4}, ValueError, "no key 3"),
        (None, {"type": "2bit"}, ValueError, "['type'] is a key of MXNet's own"),
        ("topk", {"threshold": 1}, ValueError, "['threshold'] is a key of MXNet's"),
        ("onebits", {}, ValueError, f"['compressor'] must be {COMPRESSORS}, got 'onebits'"),
        (1, {}, TypeError, f"['compressor'] must be {COMPRESSORS}, got 1 (int)"),
        ("onebit", {"scaling": "yes"}, TypeError, f"['scaling'] {FLAG}'yes' (str)"),
        ("onebit", {"scaling": 1}, TypeError, f"['scaling'] {FLAG}1 (int)"),
        ("onebit", {"fp16": "half"}, TypeError, f"['fp16'] {FLAG}'half'"),
        ("onebit", {"ef": "vanila"}, ValueError, FEEDBACK + "'vanila'"),
        ("onebit", {"ef": True}, TypeError, FEEDBACK + "True"),
        ("onebit", {"ef": "vanilla", "ef_decay": 1.5}, ValueError, DECAY + "got 1.5"),
        ("onebit", {"ef": "vanilla", "ef_decay": 0}, ValueError, DECAY + "got 0"),
        ("onebit", {"ef": None, "ef_decay": 0.95}, ValueError, "needs 'ef', got 0.95 without err"),
        ("onebit", {"momentum": "polyak"}, ValueError, "['momentum'] must be 'nesterov', got 'po"),
        ("onebit", {"momentum": 0.9}, TypeError, "['momentum'] must be 'nesterov', got 0.9"),
        ("onebit", {"exchange": "ring"}, ValueError, "must be 'two_way' or 'gather', got 'ring'"),
        ("onebit", {"inner": "blockwise"}, TypeError, "['inner'] must be a dict with 'compressor'"),
        ("onebit", {"inner": {"compressor": "dgc"}}, ValueError, "['inner']['compressor'] must be"),
        ("onebit", {"inner": {"bits": 8}}, ValueError, "['inner']['compressor'] must be 'blockto"),
        ("onebit", inner(bits=9), ValueError, "['inner']['bits'] must be a whole number from 2"),
        ("onebit", inner(ef="vanilla"), ValueError, "['inner'] has no key 'ef' for blockwise; did"),
        ("onebit", inner("topk"), KeyError, "compression_params['inner']['k'] is missing; topk"),
        ("topk", {"k": 1, "value_bits": 8}, ValueError, "must be 16 or 32, got 8"),
        ("topk", {}, KeyError, "compression_params['k'] is missing; topk needs a share"),
        ("topk", {"k": None}, KeyError, "compression_params['k'] is missing"),
        ("topk", {"k": 0}, ValueError, f"['k'] {SHARE}0"),
        ("topk", {"k": -3}, ValueError, f"['k'] {SHARE}-3"),
        ("topk", {"k": 1.5}, ValueError, f"['k'] {SHARE}1.5"),
        ("topk", {"k": float("nan")}, ValueError, f"['k'] {SHARE}nan"),
        ("topk", {"k": float("inf")}, ValueError, f"['k'] {SHARE}inf"),
        ("topk", {"k": "10"}, TypeError, f"['k'] {SHARE}'10' (str)"),
        ("topk", {"k": True}, TypeError, f"['k'] {SHARE}True (bool)"),
        ("randomk", {}, KeyError, "compression_params['k'] is missing; randomk needs a share"),
        ("randomk", {"k": 3, "seed": 0}, ValueError, "['seed'] must be a whole number > 0, got 0"),
        ("randomk", {"k": 3, "seed": 1.5}, TypeError, "a whole number > 0, got 1.5 (float)"),
        ("dithering", {}, KeyError, "compression_params['k'] is missing; dithering needs"),
        ("dithering", {"k": 0.5}, ValueError, "['k'] must be a whole number >= 1, got 0.5"),
        ("dithering", {"k": 2**23}, ValueError, "from 1 to 8388607 for linear dithering"),
        ("dithering", {"k": 32, "partition": "natural"}, ValueError, "from 1 to 31 for natural di"),
        ("dithering", {"k": 2, "partition": "cubic"}, ValueError, "or 'natural', got 'cubic'"),
        ("dithering", {"k": 2, "normalize": "l1"}, ValueError, "'max' or 'l2', got 'l1'"),
        ("dgc", {}, KeyError, "['k'] is missing; dgc needs a share below 1"),
        ("dgc", {"k": 0.001, "compress_ratio": 1000}, ValueError, "'compress_ratio', which are th"),
        ("dgc", {"compress_ratio": 1}, ValueError, "a share between 0 and 1 or its reciprocal, go"),
        ("dgc", {"k": 9, "exchange": "two_way"}, ValueError, "['exchange'] must be 'gather' for d"),
        ("dgc", {"k": 9, "warmup_epochs": 3, "warmup_coeff": [0.1]}, ValueError, "of the 3 warmup"),
        ("dgc", {"k": 9, "warmup_coeff": [1.5]}, ValueError, f"['warmup_coeff'] {WARM_UP}"),
        ("dgc", {"k": 9, "sample_ratio": 0}, ValueError, "must be 0 < sample_ratio <= 1, got 0"),
        ("auto", {"accuracy": "fast"}, ValueError, "'exact', 'safe' or 'aggressive', got 'fast'"),
        ("auto", {"accuracy": 1}, TypeError, "'aggressive', got 1 (int)"),
        ("auto", {"ef": "sparse"}, ValueError, "'sparse' is for randomk, not for auto"),
        ("dgc", {"k": 9, "ef": "sparse"}, ValueError, "'sparse' is for randomk, not for dgc"),
        ("onebit", {"ef": "sparse"}, ValueError, "'sparse' is for randomk, not for onebit"),
    ],
)
def test_wrong_params_are_refused_by_name_rule_and_value(name, more, error, message):
    with pytest.raises(error) as raised:
        parse(more if name is None else {"compressor": name, **more}, MU)
    assert message in raised.value.args[0]


@pytest.mark.parametrize("mu", [None, 0, 0.0])
def test_momentum_needs_the_optimizers_momentum(mu):
    with pytest.raises(
        ValueError, match="needs an optimizer with momentum > 0, .* of Adam. Leave the key"
    ):
        parse(ONEBIT, mu, optimizer="Adam")


@pytest.mark.parametrize(
    "params, keys",
    [
        ({"compressor": "onebit", "k": 10, "seed": 2020}, ["k", "seed"]),
        ({"compressor": "onebit", "normalize": "l3"}, ["normalize"]),
        ({"compressor": "randomk", "k": 9, "normalize": "l2"}, ["normalize"]),
        ({"compressor": "topk", "k": 9, "scaling": True}, ["scaling"]),
        ({"compressor": "topk", "k": 9, "momentum_masking": True}, ["momentum_masking"]),
        ({"compressor": "topk", "k": 9, "momentum_masking": False}, []),
        ({"compressor": "dgc", "k": 9, "ef": "vanilla"}, ["ef"]),
        ({"compressor": "dgc", "k": 9, "ef": "vanilla", "ef_decay": 0.9}, ["ef", "ef_decay"]),
        ({"compressor": "onebit", "accuracy": "safe"}, ["accuracy"]),
        ({"accuracy": "safe"}, ["accuracy"]),
        ({"fp16": True, "inner": {"compressor": "bytegrad"}}, ["inner"]),
        ({"compressor": "auto", "k": 9, "fp16": True, "ef": "vanilla"}, ["k", "fp16"]),
        ({"compressor": "auto", "exchange": "gather"}, ["exchange"]),
        ({"ef": "sparse", "momentum": "nesterov"}, ["ef", "momentum"]),
        ({"exchange": "gather", "hierarchical": False, "fp16": True}, ["exchange"]),
    ],
)
def test_what_belongs_to_another_compressor_is_ignored(params, keys):
    assert list(ignored(params)) == keys
    assert parse(params) == parse({key: params[key] for key in params if key not in keys})


def test_one_warning_names_all_that_is_ignored():
    with pytest.warns(UserWarning) as warned:
        (lambda: warn_of_ignored({"compressor": "onebit", "seed": 3, "k": 2}, None, {"k": 2}))()
    (warning,) = warned
    assert str(warning.message) == (
        "compression_params has keys that are ignored: 'seed' is not for onebit, got 3; "
        "'k' is not for onebit, got 2; 'k' needs a compressor, got 2"
    )


@pytest.mark.parametrize("name", ["topk", "randomk", "dgc"])
@pytest.mark.parametrize("one", [1.0, np.float32(1), np.float64(1)])
def test_a_share_of_one_is_refused_where_one_is_an_element(name, one):
    with pytest.raises(
        ValueError,
        match=r"\['k'\] must be a share below 1 or .*, got .*1\.0\)?, which could be the share",
    ):
        parse({"compressor": name, "k": one})


@pytest.mark.parametrize("name", ["topk", "randomk", "dgc"])
@pytest.mark.parametrize("k", [1, np.int64(1), 2.0, 0.999])
def test_other_shares_and_numbers_are_what_they_say(name, k):
    assert parse({"compressor": name, "k": k}).compressor.k == k


def test_a_whole_float_is_a_number_of_levels():
    assert parse({"compressor": "dithering", "k": 1.0}).compressor.k == 1


@pytest.mark.parametrize(
    "params",
    [
        {"compressor": "onebit", "ef": "corrected", "scaling": True, "fp16": True},
        {"compressor": "bytegrad", "hierarchical": False, "exchange": "gather"},
        {"compressor": "onebit", "inner": {"compressor": "blockwise", "bits": 8}},
        {"compressor": "dgc", "k": 0.01, "warmup_epochs": 1, "warmup_coeff": [0.1]},
    ],
)
def test_described_params_are_read_back_as_they_were(params):
    described = json.loads(json.dumps(parse(params).describe()))
    assert parse(described) == parse(params)


@pytest.mark.parametrize("params", [{}, {"compressor": "bytegrad"}])
def test_a_machines_workers_sum_first_unless_told_otherwise(params):
    assert parse(params).hierarchical
    assert not parse({**params, "hierarchical": False}).hierarchical


def test_servers_decay_their_residuals_as_workers_do():
    params = parse({"compressor": "onebit", "ef": "vanilla", "ef_decay": 0.95})
    assert params.options()["ef_decay"] == params.aggregators.options()["ef_decay"] == 0.95
    assert parse(json.loads(json.dumps(params.aggregators.describe()))).ef_decay == 0.95
    (candidate,) = {
        candidate.ef_decay
        for candidate in candidates(parse({"compressor": "auto", "ef_decay": 0.5})).values()
        if candidate.compressor is not None
    }
    assert candidate == 0.5


def test_a_decay_of_one_is_the_default():
    params = {"compressor": "onebit", "ef": "vanilla"}
    assert parse({**params, "ef_decay": 1}) == parse(params)
    assert "ef_decay" not in parse(params).identity()


def test_a_compress_ratio_is_a_share_or_its_reciprocal():
    share = parse({"compressor": "dgc", "compress_ratio": 0.001})
    assert parse({"compressor": "dgc", "compress_ratio": 1000}) == share
    assert parse({"compressor": "dgc", "k": 0.001}) == share


def test_fp16_values_are_value_bits_of_16():
    halves = parse({"compressor": "dgc", "k": 0.1, "value_bits": 16})
    assert parse({"compressor": "dgc", "k": 0.1, "fp16_values": True}) == halves
    assert parse({"compressor": "dgc", "k": 0.1}).compressor.value_bits == 32


def test_dgc_takes_the_optimizers_momentum_in_the_form_that_is_asked_for():
    params = parse({"compressor": "dgc", "k": 0.1}, MU)
    assert (params.mu, params.nesterov) == (0.9, False)
    params = parse({"compressor": "dgc", "k": 0.1, "momentum": "nesterov"}, MU)
    assert (params.mu, params.nesterov) == (0.9, True)
    params = parse({"compressor": "dgc", "k": 0.1}, MU, nesterov=True)
    assert (params.mu, params.nesterov) == (0.9, True)
    assert parse({"compressor": "dgc", "k": 0.1}).mu is None


EVERY = {example: params for name in registry for example, params in params_of(name).items()}


@pytest.mark.parametrize("example", EVERY)
@pytest.mark.parametrize("more", [{}, {"ef": "corrected", "ef_decay": 0.95, "fp16": True}])
def test_every_compressors_params_are_read_back_as_they_were_described(example, more):
    params = parse({**EVERY[example], **more})
    assert parse(json.loads(json.dumps(params.describe()))) == params


@pytest.mark.parametrize("example", EVERY)
def test_numbers_may_come_as_numpys(example):
    numbers = {
        key: np.float64(value) if isinstance(value, float) else np.int64(value)
        for key, value in EVERY[example].items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    assert parse({**EVERY[example], **numbers}) == parse(EVERY[example])


@pytest.mark.parametrize(
    "name", [name for name, kind in registry.items() if not kind.traits.draws_alike]
)
def test_sparse_feedback_is_for_what_all_nodes_draw_alike(name):
    params = {**next(iter(params_of(name).values())), "ef": "sparse"}
    with pytest.raises(ValueError, match=f"'sparse' is for .*randomk.*, not for {name}"):
        parse(params)


@pytest.mark.parametrize("name", registry)
def test_each_compressor_has_options_with_rules_and_a_line_of_help(name):
    kind = registry[name]
    assert kind.name == name and kind.description
    for key, option in kind.keys().items():
        assert option.meaning and option.allowed
        assert users_of(key)[name] == option and key in keys()


# Random streams


@pytest.mark.parametrize("seed", [None, 3])
def test_every_node_has_a_stream_of_its_own_unless_all_draw_alike(seed):
    def start(name, node, index, begin):
        params = parse({"compressor": name, "k": 2, "seed": seed})
        return stream.start(params, 100, node, index, begin, b"entropy")

    own = {start("dithering", node, index, 0) for node in range(3) for index in range(3)}
    alike = {start("randomk", node, index, 0) for node in range(3) for index in range(3)}
    assert len(own) == 9 and len(alike) == 3
    for name in ("dithering", "randomk"):
        assert (start(name, 0, 0, 0) == start(name, 0, 0, 100)) == (seed is not None)


def test_with_a_seed_dithering_draws_on_the_aggregator_what_worker_0_draws():
    def start(node, seed, **compressor):
        params = parse({**compressor, "seed": seed})
        return stream.start(params, 100, node, 5, 0, b"entropy")

    dithering = {"compressor": "dithering", "k": 2}
    assert start(None, 7, **dithering) == start(0, 7, **dithering) == (7 + 5,) * 2
    for seed, others in ((None, dithering), (7, {"compressor": "blockwise", "stochastic": True})):
        workers = {start(node, seed, **others) for node in range(5)}
        assert len(workers | {start(None, seed, **others)}) == 6


def test_dithering_with_a_seed_is_warned_of_once_if_the_sum_is_compressed(logged):
    params = {"compressor": "dithering", "k": 2}
    warn_once.cache_clear()
    parse(params)
    parse({**params, "seed": 3, "exchange": "gather"})
    parse({"compressor": "blockwise", "stochastic": True, "seed": 3})
    assert not logged.messages
    for _ in range(2):
        parse({**params, "seed": 3})
    (text,) = logged.messages
    assert text.startswith("dithering with a seed makes the average biased")


def test_randomk_is_scaled_unless_it_is_said_as_bytepss_scripts_do():
    assert parse({"compressor": "randomk", "k": 2}).compressor.scaling is True
    assert parse({"compressor": "randomk", "k": 2, "scaling": False}).compressor.scaling is False


def test_a_seed_starts_the_stream_that_byteps_draws_from():
    def start(name, node):
        params = parse({"compressor": name, "k": 5, "seed": 7})
        return stream.start(params, 100, node, index=2, begin=0, entropy=b"")

    assert start("randomk", 3) == (7 + 2 + 5,) * 2
    assert start("dithering", 0) == (7 + 2,) * 2
