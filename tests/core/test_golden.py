"""What BytePS computed, of every compressor that tests/golden has numbers of."""

import numpy as np
import pytest

from gluon_gc import kernels

from . import arrays, golden


def sent_beyond_the_levels(options, x, expected):
    """Whether BytePS's dithering sent the only element twice over.

    BytePS squares in float, so that a single element can be above its l2 norm by a rounding; a draw
    near 0 then takes it to the level after the last. Here its norm is itself, exactly.
    """
    natural_l2 = options.get("partition"), options.get("normalize")
    return natural_l2 == ("natural", "l2") and x.size == 1 and expected[0] == 2 * x[0]


# Where randomk draws more elements than there are is left out: no codec does.
@arrays.each_isa
@pytest.mark.parametrize(
    "name, count, beyond",
    [("onebit", 32, 0), ("topk", 12, 0), ("randomk", 16, 0), ("dithering", 224, 4)],
)
def test_a_single_compression_decodes_to_byteps_numbers(name, count, beyond, isa):
    counted = 0
    for options, x, expected in golden.compressions(name):
        if name == "randomk" and x.size < int(options["k"]):
            continue
        counted += 1
        codec = kernels.Codec(name, options, x.size, isa=isa)
        position = kernels.position([int(options.get("state_seed", 0))] * 2)
        payload, _ = codec.compress(x, position=position)
        decoded, _ = codec.decompress(payload, position)
        if sent_beyond_the_levels(options, x, expected):
            beyond -= 1
            expected = x
        np.testing.assert_array_max_ulp(decoded, expected, 2)
    assert (counted, beyond) == (count, 0)


@arrays.each_isa
@pytest.mark.parametrize("name, run", golden.all_runs(), ids=golden.name_of)
def test_each_step_with_feedback_from_byteps_state_differs_by_rounding_only(name, run, isa):
    codec = kernels.Codec(name, run.options, run.size, isa=isa)
    seed = int(run.options.get("state_seed", 0))
    state = codec.state()
    for number, (expected, ratio, bound) in enumerate(run.bounded_steps()):
        position = kernels.position((seed, seed), number * codec.draws)
        payload, _ = codec.compress(expected["g"], state, position, ratio=ratio)
        decoded, residual = codec.decompress(payload)[0], codec.residual(state)
        if sent_beyond_the_levels(run.options, expected["p"], expected["d"]):
            got = {"p": decoded}
        else:
            got = {"p": decoded + residual, "d": decoded, "e": residual}
            exact = "de" if not codec.draws else "d"  # a draw's p and d cancel to any ulp of e
            for key in exact if run.mu is None else "":
                np.testing.assert_array_max_ulp(got[key], expected[key], 2)
            if run.mu is not None:
                got["m"] = state.momentum
        for key, values in got.items():
            assert (np.abs(values - expected[key]) <= bound).all(), key
        codec.restore(state, expected["e"])
        if run.mu is not None:
            state.momentum[:] = expected["m"]
