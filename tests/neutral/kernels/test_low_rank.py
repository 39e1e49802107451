"""Products of matrices of low rank, compared with NumPy's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluon_gc import kernels

from . import arrays, low_rank

SIDES, RANKS = st.integers(1, 40), st.integers(1, 5)


def matrices(rows, columns, rank, seed, dtype):
    """Return a gradient, its total, two left factors and two right ones."""
    random = np.random.default_rng(seed)
    shapes = [(rows, columns)] * 2 + [(rank, rows)] * 2 + [(rank, columns)] * 2
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


@given(SIDES, SIDES, RANKS, arrays.seeds, arrays.dtypes, arrays.isas, arrays.threads)
def test_products_add_in_the_documented_order(rows, columns, rank, seed, dtype, isa, threads):
    check_products(rows, columns, rank, seed, dtype, isa, threads)


@arrays.each_isa
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_longer_than_a_block_add_block_by_block(isa, threads):
    check_products(5, 4500, 2, 0, np.float32, isa, threads)


def check_products(rows, columns, rank, seed, dtype, isa, threads):
    gradient, total, p, left, q, next_q = matrices(rows, columns, rank, seed, dtype)
    expected = low_rank.accumulate(gradient, p, q, next_q, total)
    how = dict(isa=isa, threads=threads)
    kernels.accumulate(gradient, p, q, next_q, total, left, **how)
    np.testing.assert_array_equal(total, expected[0])
    np.testing.assert_array_equal(left, expected[1])
    right, product = np.empty_like(q), np.empty_like(total)
    kernels.project(p, total, right, **how)
    np.testing.assert_array_equal(right, low_rank.project(p, total))
    kernels.multiply(p, q, product, **how)
    np.testing.assert_array_equal(product, low_rank.multiply(p, q))
    np.testing.assert_allclose(product, p.T @ q, rtol=1e-4, atol=1e-4)


@given(RANKS, SIDES, arrays.seeds, arrays.dtypes, st.sampled_from([1e-18, 1.0, 1e18]))
def test_rows_become_orthonormal_and_dependent_ones_zero(count, extra, seed, dtype, scale):
    x = np.random.default_rng(seed).standard_normal((count, count + extra)).astype(dtype)
    x *= scale
    x = np.concatenate([x, x[:1], np.zeros_like(x[:1])])
    expected = low_rank.orthonormal(x)
    kernels.orthonormalise(x)
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_allclose(x[:count] @ x[:count].T, np.eye(count), atol=1e-5)
    assert not x[count:].any()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_so(bad):
    x = np.ones((2, 3), np.float32)
    x[0, 1] = bad
    kernels.orthonormalise(x)
    assert np.isnan(x).any(axis=1).all()


def test_arrays_that_do_not_fit_are_refused():
    gradient, total, p, left, q, next_q = matrices(4, 6, 2, 0, np.float32)
    with pytest.raises(ValueError, match=r"p must have the shape \(rank, 4\), got \(2, 6\)"):
        kernels.multiply(q, q, total)
    with pytest.raises(ValueError, match=r"p must have the shape \(rank, 4\), got \(4,\)"):
        kernels.project(p[0], total, q)
    with pytest.raises(ValueError, match=r"out must have two dimensions, got the shape \(24,\)"):
        kernels.multiply(p, q, total.ravel())
    with pytest.raises(TypeError, match="x must be float32 or float64, got float16"):
        kernels.orthonormalise(p.astype(np.float16))


@pytest.mark.parametrize("shape", [(12,), (2, 3, 8)])
def test_only_rows_of_a_matrix_become_orthonormal(shape):
    x = np.ones(shape)
    with pytest.raises(ValueError, match="x must have two dimensions, got the shape"):
        kernels.orthonormalise(x)
    assert (x == 1).all()


def test_transposed_matrices_are_refused():
    gradient, total, p, left, q, next_q = matrices(4, 6, 2, 0, np.float32)
    products = {
        kernels.accumulate: dict(
            gradient=gradient, p=p, q=q, next_q=next_q, total=total, left=left
        ),
        kernels.project: dict(p=p, total=total, right=q),
        kernels.multiply: dict(p=p, q=q, out=total),
    }
    for product, matrices_of in products.items():
        for name, matrix in matrices_of.items():
            transposed = np.ascontiguousarray(matrix.T)
            with pytest.raises(ValueError, match="must have the shape"):
                product(**{**matrices_of, name: transposed})
