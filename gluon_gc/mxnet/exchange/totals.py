"""Sums small arrays that are not gradients, such as flags and metrics, over all workers."""

from __future__ import annotations

from typing import List, Sequence

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from ...agreement import Facts
from ...compression import CompressionParams
from ...plan import Tensor
from .exchange import Exchange


def total(exchange: Exchange, name: str, array: NDArray, call: str, about: Facts = ()) -> NDArray:
    """Sum an array over all workers in place, uncompressed, and return it; all workers call this.

    Parameters
    ----------
    exchange : Exchange
    name : str
        The array's name. All arrays of one name have the same size and dtype.
    array : NDArray
    call : str
        The user's function that needs the sum, for errors.
    about : Facts, optional
        Facts that must be the same on all workers in the first call with this name.
    """
    if not exchange.declared(name):
        dtype = np.dtype(array.dtype).name
        tensor = Tensor(name, array.size, dtype, CompressionParams())
        exchange.declare([tensor], about=about, call=call)
    exchange.sum_in_place({name: array})
    return array


def total_of_parts(
    exchange: Exchange,
    name: str,
    parts: Sequence[np.ndarray],
    call: str,
    about: Facts = (),
) -> List[np.ndarray]:
    """The sum over all workers of several float64 arrays of one shape; waits for it.

    It takes one exchange. The parameters are those of `total`.
    """
    array = mx.nd.array(np.concatenate([part.reshape(-1) for part in parts]), dtype="float64")
    sums = np.split(total(exchange, name, array, call, about).asnumpy(), len(parts))
    return [part.reshape(parts[0].shape) for part in sums]
