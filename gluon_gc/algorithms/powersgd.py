"""powersgd: gradients are averaged as matrices of low rank."""

from __future__ import annotations

import math
import zlib
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Callable, Mapping, NamedTuple, Sequence

import numpy as np

from .. import kernels
from ..exchange import plan
from ..options import whole
from .base import Algorithm, Array, Arrays, Framework, Round, Rounds, Shapes, State, Step, register

_UNIFORMS = 12  # uniform draws, whose sum has a variance of 1
_PARTS = 2  # that take turns: one is computed while the other one travels
_LARGE = 2**16  # a matrix with fewer elements is computed by one thread
_DIVIDED = 2**20  # elements of all matrices, below which one part is faster


class Part(NamedTuple):
    """Gradients whose factors are sent in rounds of their own: the kinds of round, and names."""

    left: str
    right: str
    names: Sequence[str]


@register
@dataclass(frozen=True)
class PowerSGD(Algorithm):
    """Average gradients as products of two thin matrices.

    A gradient is a matrix: its first dimension by the product of the others. It is compressed if
    its two factors have fewer than half of its elements. Gradients with one dimension and small
    ones travel as they are, in the messages of the first factor. In each step, worker i computes
    for each matrix, with its gradient G_i:

        M_i = E_i + G_i
        P = orthonormal(mean of M_i Q)
        Q = mean of transposed(M_i) P
        G = P transposed(Q)
        E_i = M_i - G

    The columns of Q are made orthonormal before they are used. The optimizer applies G. The
    residual E_i starts as 0, and is never formed: the state has M_i, P and Q. A column of Q that is
    0, as in the first step, is replaced by random numbers. P and Q have r columns, or as many as
    the smaller side of the matrix. They are stored transposed. With the rank 0, which only "auto"
    chooses, all gradients travel as they are.

    In the first `start` steps, the workers average whole gradients. If a round fails because of a
    NaN or infinity, the residuals restart from 0.

    References
    ----------
    Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
    Distributed Optimization", 2019.
    """

    name = "powersgd"
    description = "averages gradients as matrices of low rank, with error feedback"
    shared = ("left_factor", "right_factor")
    own = ("total",)
    averages_gradients = True
    equal_parameters = True
    allows_freezing = True
    compresses = True
    chosen_option = "rank"
    spellings = {  # of PyTorch's PowerSGDState
        "matrix_approximation_rank": "rank",
        "start_powerSGD_iter": "start",
    }

    rank: int = whole(1, "r: number of columns of each factor").field(1)
    start: int = whole(0, "number of first steps that average whole gradients").field(0)

    def rounds(self, shapes: Shapes) -> Mapping[str, Shapes]:
        kinds = {"gradient": shapes} if self.start else {}
        matrices, parts = self._matrices(shapes), self._parts(shapes)
        for part in parts:
            left = {n: matrices[n][0] if n in matrices else shapes[n] for n in part.names}
            right = {n: matrices[n][1] for n in part.names if n in matrices}
            kinds[part.left] = left
            if right:
                kinds[part.right] = right
        return kinds

    def begin(self, parameters: Arrays) -> dict[str, dict[str, Array]]:
        matrices = self._matrices({name: x.shape for name, x in parameters.items()})
        flat = {name: parameters[name].reshape((-1,)) for name in matrices}  # row by row
        shapes = {n: (left[1], right[1]) for n, (left, right) in matrices.items()}
        return {
            "total": {n: _zeros(flat[n], shape) for n, shape in shapes.items()},
            "left_factor": {n: _zeros(flat[n], left) for n, (left, _) in matrices.items()},
            "right_factor": {n: _zeros(flat[n], right) for n, (_, right) in matrices.items()},
        }

    def regrouped(self, states: Sequence[State]) -> dict[str, dict[str, Array]]:
        """The mean of M_i, so that the mean of the residuals stays the same."""
        return {
            kind: {
                name: (1.0 / len(states)) * sum(state[kind][name] for state in states)
                for name in states[0][kind]
            }
            for kind in self.own
            if kind in states[0]
        }

    def step(self, at: Step, state: State) -> Rounds:
        if at.number <= self.start:
            mean = yield Round("gradient", at.gradients)
            for name, gradient in at.gradients.items():
                gradient[:] = mean[name]
            at.update()
            return
        waiting: list[Callable[[], Arrays]] = []
        try:
            yield from self._average(at, state, waiting)
        except Exception:
            for wait in waiting:  # the other rounds must end, too
                with suppress(Exception):
                    at.framework.wait(wait().values())
            for kind in ("total", "left_factor"):  # so that the residuals are 0
                for name in state[kind].keys() & at.gradients.keys():
                    state[kind][name][:] = 0.0
            raise
        at.update()

    def _average(self, at: Step, state: State, waiting: list[Callable[[], Arrays]]) -> Rounds:
        """Replace the gradients by their averages.

        `waiting` gets the functions that wait for rounds, in the order of the rounds. One part's
        products are computed while the factors of the other one travel.
        """
        products, gradients = LowRank(at.framework), at.gradients
        totals, p, q = state["total"], state["left_factor"], state["right_factor"]
        parts = self._parts({name: x.shape for name, x in at.parameters.items()})
        for part in parts:
            sent = {name: gradients[name] for name in part.names if name in gradients}
            for name in [name for name in sent if name in totals]:
                draw = partial(random_row, name, at.number, q[name].shape[1])
                basis = products.basis(q[name], draw)
                sent[name] = products.accumulate(sent[name], p[name], q[name], basis, totals[name])
            waiting.append((yield Round(part.left, sent, waits=False)) if sent else dict)
        for part in parts:
            own = {}
            for name, mean in waiting.pop(0)().items():
                if name in totals:
                    p[name] = products.basis(mean)
                    own[name] = products.project(p[name], totals[name], q[name])
                else:
                    gradients[name][:] = mean
            waiting.append((yield Round(part.right, own, waits=False)) if own else dict)
        while waiting:
            for name, mean in waiting.pop(0)().items():
                q[name] = mean
                products.restore(p[name], mean, gradients[name])

    def _parts(self, shapes: Shapes) -> list[Part]:
        """Divide the gradients into parts with about the same number of elements in matrices."""
        sizes = {name: math.prod(shapes[name]) for name in self._matrices(shapes)}
        if sum(sizes.values()) < _DIVIDED or len(sizes) < _PARTS:
            return [Part("left_factor", "right_factor", list(shapes))]
        numbers = dict(zip(sizes, plan.assign(list(sizes.values()), _PARTS)))
        return [
            Part(
                f"left_factor.{number}",
                f"right_factor.{number}",
                [name for name in shapes if numbers.get(name, 0) == number],
            )
            for number in range(_PARTS)
        ]

    def _matrices(self, shapes: Shapes) -> dict[str, tuple[tuple[int, int], tuple[int, int]]]:
        """The shapes of the two factors of each gradient that is compressed."""
        matrices = {}
        for name, shape in shapes.items():
            rows, columns = shape[0] if shape else 1, math.prod(shape[1:])
            rank = min(self.rank, rows, columns)
            if 0 < 2 * rank * (rows + columns) < rows * columns:
                matrices[name] = (rank, rows), (rank, columns)
        return matrices


def random_row(name: str, step: int, size: int, number: int) -> np.ndarray:
    """A row of a right factor: nearly normal random numbers, equal on all machines.

    They are sums of uniform numbers, which take only additions.
    """
    random = np.random.RandomState([zlib.crc32(name.encode()), step, number])
    return random.random_sample((_UNIFORMS, size)).sum(axis=0) - _UNIFORMS / 2


def _zeros(flat: Array, shape: tuple[int, int]) -> Array:
    """Zeros of a shape with at most the elements of a flat array."""
    return 0.0 * flat[: math.prod(shape)].reshape(shape)


class LowRank:
    """Products of a matrix and its factors, on the arrays of a framework.

    Arrays in host memory use the kernels of `kernels.low_rank`, which explains the shapes. Arrays
    on a GPU use the matrix products of the framework.
    """

    def __init__(self, framework: Framework) -> None:
        self._framework = framework

    def basis(self, rows: Array, draw: Callable[[int], np.ndarray] | None = None) -> Array:
        """Orthonormal rows that span the rows of a matrix, in a new array.

        Equal matrices give equal bits on all machines. `draw(i)` replaces row i if it has only
        zeros.
        """
        values = np.array(self._framework.to_numpy(rows), order="C")
        if draw is not None:
            for i in np.flatnonzero(~values.any(axis=1)):
                values[i] = draw(int(i))
        kernels.orthonormalise(values)
        return self._framework.from_numpy(values, rows)

    def accumulate(self, gradient: Array, p: Array, q: Array, next_q: Array, total: Array) -> Array:
        """Set ``total = (total - p.T @ q) + gradient``. The result is ``next_q @ total.T``."""
        multiply = self._framework.multiply
        if not self._framework.in_host_memory(total):
            total[:] = (total - multiply(p.T, q)) + gradient.reshape(total.shape)
            return multiply(next_q, total.T)
        left = 1.0 * p
        in_rows = np.ascontiguousarray(self._numpy(gradient)).reshape(total.shape)
        arrays = [self._numpy(array) for array in (p, q, next_q, total, left)]
        kernels.accumulate(in_rows, *arrays, threads=self._threads(in_rows))
        return left

    def project(self, p: Array, total: Array, q: Array) -> Array:
        """The product ``p @ total``, in a new array with the shape of q."""
        if not self._framework.in_host_memory(total):
            return self._framework.multiply(p, total)
        right = 1.0 * q
        matrix = self._numpy(total)
        threads = self._threads(matrix)
        kernels.project(self._numpy(p), matrix, self._numpy(right), threads=threads)
        return right

    def restore(self, p: Array, q: Array, gradient: Array) -> None:
        """Set the gradient to ``p.T @ q``."""
        if not self._framework.in_host_memory(gradient):
            gradient[:] = self._framework.multiply(p.T, q).reshape(gradient.shape)
            return
        given, shape = self._numpy(gradient), (p.shape[1], q.shape[1])
        product = given.reshape(shape) if given.flags.c_contiguous else np.empty(shape, given.dtype)
        threads = self._threads(product)
        kernels.multiply(self._numpy(p), self._numpy(q), product, threads=threads)
        if not given.flags.c_contiguous:
            given[:] = product.reshape(given.shape)

    def _numpy(self, array: Array) -> np.ndarray:
        return self._framework.to_numpy(array)

    def _threads(self, matrix: np.ndarray) -> int:
        return self._framework.threads if matrix.size >= _LARGE else 1
