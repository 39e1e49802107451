"""The kernels match BytePS's numbers, for every compressor in tests/neutral/golden."""

import numpy as np
import pytest

from gluon_gc import kernels
from tests.neutral.kernels import arrays

from . import golden


def sent_beyond_the_levels(options, x, expected):
    """Return whether BytePS's dithering decoded a single element to twice its value.

    BytePS squares in float32, so rounding can make a single element larger than its l2 norm. A draw
    near 0 then selects a level above the last one. Our norm is exact for a single element.
    """
    natural_l2 = options.get("partition"), options.get("normalize")
    return natural_l2 == ("natural", "l2") and x.size == 1 and expected[0] == 2 * x[0]


# Cases in which randomk draws more than n elements are left out, because no codec does that.
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
            # With draws, p and d nearly cancel in e = p - d, so an ulp of p may be many ulp of e.
            exact = "de" if not codec.draws else "d"
            for key in exact if run.mu is None else "":
                np.testing.assert_array_max_ulp(got[key], expected[key], 2)
            if run.mu is not None:
                got["m"] = state.momentum
        for key, values in got.items():
            assert (np.abs(values - expected[key]) <= bound).all(), key
        codec.restore(state, expected["e"])
        if run.mu is not None:
            state.momentum[:] = expected["m"]
