"""The products of low rank in NumPy, with the library's order of additions."""

import numpy as np

_BLOCK, _CHAINS = 1024, 32


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
    """Return q @ matrix.T: blocks of 1024 columns, each with 32 chains that are added in halves."""
    left = np.zeros((len(q), len(matrix)), matrix.dtype)
    for begin in range(0, matrix.shape[1], _BLOCK):
        part = matrix[:, begin : begin + _BLOCK]
        padding = -part.shape[1] % _CHAINS
        for k, vector in enumerate(q):
            products = np.pad(part * vector[begin : begin + _BLOCK], ((0, 0), (0, padding)))
            total = np.zeros((len(matrix), _CHAINS), matrix.dtype)
            for chains in products.reshape(len(matrix), -1, _CHAINS).swapaxes(0, 1):
                total = total + chains
            while total.shape[1] > 1:
                half = total.shape[1] // 2
                total = total[:, :half] + total[:, half:]
            left[k] += total[:, 0]
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
