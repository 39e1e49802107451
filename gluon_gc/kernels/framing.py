"""Framing: payload bytes as 32-bit words that are ordinary floats. And the sizes of messages.

MXNet's parameter server adds 0.0 to each value that it merges. This would change payload bits that
are a NaN, a denormal or -0.0 if they are read as a float. Framing puts a header word before each
127 words. An exclusive or with its value changes their exponents so that all are normal floats.
"""

from __future__ import annotations

import ctypes

import numpy as np

from .library import Rows, address_of, isa_number, library, output_of


def frame_words(nbytes: int) -> int:
    """The number of framed words for ``nbytes`` bytes of payload."""
    return library.gluon_gc_frame_words(nbytes)


def frame_bytes(words: int) -> int:
    """The bytes of payload in ``words`` framed words, a multiple of 128."""
    return library.gluon_gc_frame_bytes(words)


def message_rows(nbytes: int, varies: bool, in_one: bool = False) -> Rows:
    """The rows of the array in which a framed message is sent.

    Parameters
    ----------
    nbytes : int
        The maximum length of the message's payloads.
    varies : bool
        Whether the length varies. Such a message begins with its length, and only the rows that it
        fills are sent.
    in_one : bool
        Whether to send all messages as one row of the maximum length.

    Returns
    -------
    Rows
        The maximum `bytes` and `rows` of a message, and the `row_words` of each row.
    """
    rows = Rows()
    library.gluon_gc_message_rows(nbytes, varies, in_one, ctypes.byref(rows))
    return rows


def row_list_bytes(rows: int) -> int:
    """The maximum length of the list of a message's rows, for a tensor with this number of rows."""
    return library.gluon_gc_row_list_bytes(rows)


def rows_head_bytes(rows: int) -> int:
    """The maximum length of the head of a message with compressed rows, before the payload."""
    return library.gluon_gc_rows_head_bytes(rows)


def frame(
    payload: np.ndarray,
    *,
    out: np.ndarray | None = None,
    threads: int = 1,
    isa: str | None = None,
) -> np.ndarray:
    """Frame a uint8 payload: return uint32 words that a sum with 0.0 does not change."""
    out = output_of("out", out, frame_words(payload.size), np.uint32)
    library.gluon_gc_frame(
        address_of("payload", payload, payload.size, np.uint8),
        payload.size,
        out.ctypes.data,
        threads,
        isa_number(isa),
    )
    return out


def unframe(
    words: np.ndarray,
    nbytes: int,
    *,
    out: np.ndarray | None = None,
    threads: int = 1,
    isa: str | None = None,
) -> np.ndarray:
    """Undo `frame`: return ``nbytes`` bytes of payload as uint8."""
    out = output_of("out", out, nbytes, np.uint8)
    library.gluon_gc_unframe(
        address_of("words", words, frame_words(nbytes), np.uint32),
        nbytes,
        out.ctypes.data,
        threads,
        isa_number(isa),
    )
    return out
