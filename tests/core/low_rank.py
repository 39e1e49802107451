"""The products of low rank in NumPy, with the library's order of additions."""

import numpy as np

_BLOCK, _CHAINS, _LANES = 2048, 32, 16


def dot(x, y):
    """Return the dot product of two arrays of at most 2048 elements."""
    products = np.zeros(-(-x.size // _CHAINS) * _CHAINS, x.dtype)
    products[: x.size] = x * y
    total = np.zeros(_CHAINS, x.dtype)
    for row in products.reshape(-1, _CHAINS):
        total = total + row
    total = total[:_LANES] + total[_LANES:]
    while total.size > 1:
        total = total[: total.size // 2] + total[total.size // 2 :]
    return total[0]


def multiply(p, q):
    """Return p.T @ q, added in the order of the rank."""
    total = p[0][:, None] * q[0]
    for left, right in zip(p[1:], q[1:]):
        total = total + left[:, None] * right
    return total


def project(p, matrix):
    """Return p @ matrix, added in the order of the rows."""
    right = np.zeros((len(p), matrix.shape[1]), matrix.dtype)
    for weights, row in zip(p.T, matrix):
        right = right + weights[:, None] * row
    return right


def left_of(q, matrix):
    """Return q @ matrix.T, added block by block."""
    left = np.zeros((len(q), len(matrix)), matrix.dtype)
    for begin in range(0, matrix.shape[1], _BLOCK):
        part = slice(begin, begin + _BLOCK)
        for k, vector in enumerate(q):
            for i, row in enumerate(matrix):
                left[k, i] += dot(row[part], vector[part])
    return left


def accumulate(gradient, p, q, next_q, matrix):
    """Return the new total and the new left factor."""
    total = (matrix - multiply(p, q)) + gradient
    return total, left_of(next_q, total)


def _dot64(x, y):
    """Return the dot product of float64 arrays: 8 chains, which are added in their order."""
    chains = np.zeros(8)
    products = np.zeros(-(-x.size // 8) * 8)
    products[: x.size] = x * y
    for row in products.reshape(-1, 8):
        chains = chains + row
    total = 0.0
    for chain in chains:
        total = total + chain
    return total


def orthonormal(rows):
    """Return orthonormal rows: modified Gram-Schmidt in float64, projected twice."""
    done = []
    for given in rows:
        row = given.astype(np.float64)
        before = _dot64(row, row)
        for other in [*done, *done]:
            other = other.astype(np.float64)
            row = row - _dot64(row, other) * other
        after = _dot64(row, row)
        scale = 0.0 if after <= 1e-10 * before else 1 / np.sqrt(after)
        done.append((row * scale).astype(rows.dtype))
    return np.array(done)
