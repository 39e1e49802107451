"""Conversions between float16 and float32, compared with NumPy's."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from . import arrays
from .bindings import float_from_half, half_from_float

ALL_HALVES = np.arange(2**16, dtype=np.uint16).view(np.float16)


def halve_in_numpy(x, scale=1.0):
    with np.errstate(over="ignore"):
        return (x * np.float32(scale)).astype(np.float16)


@arrays.each_isa
def test_all_halves_become_the_floats_of_their_value_and_come_back(isa):
    floats = float_from_half(ALL_HALVES, isa=isa)
    assert arrays.same_bits(floats, ALL_HALVES.astype(np.float32))
    assert arrays.same_bits(half_from_float(floats, isa=isa), ALL_HALVES)


@arrays.each_isa
def test_values_between_two_halves_go_to_the_nearer_one_and_ties_to_even(isa):
    finite = np.sort(ALL_HALVES[np.isfinite(ALL_HALVES)].astype(np.float32))
    ties = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(np.float32)
    x = np.concatenate(
        [ties, np.nextafter(ties, np.float32(-np.inf)), np.nextafter(ties, np.float32(np.inf))]
    )
    assert arrays.same_bits(half_from_float(x, isa=isa), halve_in_numpy(x))


@arrays.each_isa
def test_too_large_values_become_infinite_and_nans_stay_nans(isa):
    x = np.array([65519.996, 65520, -65520, 65536, 1e38, -np.inf, np.nan, -np.nan], np.float32)
    out = half_from_float(x, isa=isa)
    expected = [65504, np.inf, -np.inf, np.inf, np.inf, -np.inf, np.nan, np.nan]
    assert arrays.same_bits(out, np.array(expected, np.float16))
    signalling = np.array([0x7F800001, 0xFF800001, 0x7F802000], np.uint32).view(np.float32)
    assert np.isnan(half_from_float(signalling, isa=isa)).all()


@arrays.each_isa
def test_every_instruction_set_makes_the_same_bits_of_a_nan(isa):
    nans = np.random.default_rng(0).integers(1, 2**23, 5000).astype(np.uint32)
    nans = np.concatenate([nans | 0x7F800000, nans | 0xFF800000]).view(np.float32)
    assert np.array_equal(
        half_from_float(nans, isa=isa).view(np.uint16),
        half_from_float(nans, isa="scalar").view(np.uint16),
    )
    assert np.array_equal(
        float_from_half(ALL_HALVES, isa=isa).view(np.uint32),
        float_from_half(ALL_HALVES, isa="scalar").view(np.uint32),
    )


@given(
    arrays.sizes,
    arrays.seeds,
    st.sampled_from([1.0, 0.125, 1 / 3, -2.5]),
    arrays.isas,
    arrays.threads,
    arrays.offsets,
)
def test_conversion_multiplies_first_then_rounds_like_numpy(
    size, seed, scale, isa, threads, offset
):
    guarded = arrays.Guarded(offset)
    x = guarded.copy(arrays.awkward(size, np.float32, seed))
    half, back = guarded.empty(size, np.float16), guarded.empty(size, np.float32)

    half_from_float(x, scale, out=half, threads=threads, isa=isa)
    float_from_half(half, out=back, threads=threads, isa=isa)

    assert arrays.same_bits(half, halve_in_numpy(x, scale))
    assert arrays.same_bits(back, half.astype(np.float32))
    guarded.check()
