"""dgc: the elements of the accumulated gradient that are largest, by a sampled threshold."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from .compressor import Codec, state_of
from .library import declare, integer, library, pointer, size
from .stream import stream_address


class DgcConfig(ctypes.Structure):
    """What decides which elements are sent, and how; the fields are those of operators/core/dgc.h.

    Parameters
    ----------
    selects : int
        Elements that are sent at most.
    samples : int
        Elements of the sample; n: all of them.
    top : int
        How many of the sample reach the first threshold.
    stride : int
        Of a strided sample.
    iterations : int
        How often the threshold is adapted at most.
    upper, lower : float
        The bounds of the number that reaches a threshold, as shares of selects, and the factors of
        the threshold.
    max_norm : float
        Of the gradient, l2; 0: any.
    strided : bool
        Whether the sample is every stride-th element, or else drawn.
    resample : bool
        Whether just the largest are sent if too many reach the threshold.
    nesterov, momentum_masking, half_values : bool
    """

    _fields_ = [
        ("selects", size),
        ("samples", size),
        ("top", size),
        ("stride", size),
        ("iterations", size),
        ("upper", ctypes.c_double),
        ("lower", ctypes.c_double),
        ("max_norm", ctypes.c_double),
        ("strided", ctypes.c_bool),
        ("resample", ctypes.c_bool),
        ("nesterov", ctypes.c_bool),
        ("momentum_masking", ctypes.c_bool),
        ("half_values", ctypes.c_bool),
    ]


class Dgc(Codec):
    """The kernels of dgc, whose one option is half_values, whether values are float16.

    The elements that a capacity is asked for are those that are sent.
    """

    name = "dgc"
    feedback_types = (pointer,)
    compress_types = pointer, pointer
    option_types = (integer,)

    def __init__(self) -> None:
        super().__init__()
        declare("dgc_allows", integer, pointer, size)

    def feedback(self, gradient: np.ndarray, velocity: np.ndarray) -> tuple:
        return (state_of("velocity", velocity, gradient),)

    def options(self, half_values: bool = False) -> tuple:
        return (half_values,)

    def compress(
        self,
        gradient: np.ndarray,
        velocity: np.ndarray,
        config: DgcConfig,
        stream: np.ndarray,
        **shared: Any,
    ) -> tuple[np.ndarray, float]:
        """Accumulate ``gradient * gradient_scale`` and take out what is large.

        Parameters
        ----------
        gradient : array of T, shape (n,)
        velocity : array of T, shape (n,)
            Updated in place; 0 where it was sent.
        config : DgcConfig
        stream : array of uint64, shape (2,)
            Moved on in place: by one draw if the sample is strided, by none if it is everything,
            else by config.samples.

        Returns
        -------
        payload : array of uint8
            The first uint32 says how many bytes are in use; the others have no meaning.
        check : float
            0, or NaN where an element of the velocity is not finite.
        """
        n, c = gradient.size, config
        if not library.gluon_gc_dgc_allows(ctypes.byref(c), n):
            raise ValueError(
                f"config must have 1 <= selects <= {n} and 1 <= top <= samples <= {n}, got "
                f"{c.selects}, {c.top} of {c.samples}, stride {c.stride}"
            )
        most = self.capacity(c.selects, gradient.dtype, half_values=c.half_values)
        own = ctypes.byref(c), stream_address(stream)
        return self._compress(gradient, most, np.uint8, *own, velocity=velocity, **shared)
