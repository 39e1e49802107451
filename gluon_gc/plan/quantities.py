"""Quantities on the command line: rates such as 100Mbit, and numbers such as 124M."""

from __future__ import annotations

import argparse
import re

_RATES = {"Kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9}  # bits per second
_NUMBERS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9}


def rate(text: str) -> float:
    """Return bytes per second for text such as "100Mbit"; else raise ArgumentTypeError."""
    found = re.fullmatch(r"(\d+\.?\d*) ?([KMG]bit)(/s)?", text)
    if not found or not float(found[1]):
        raise argparse.ArgumentTypeError(
            f"must be a number with Kbit, Mbit or Gbit, such as 100Mbit, got {text!r}"
        )
    return float(found[1]) * _RATES[found[2]] / 8


def number(text: str) -> int:
    """Return the whole number above 0 of text such as "124M"; else raise ArgumentTypeError."""
    found = re.fullmatch(r"(\d+\.?\d*)([KMGB]?)", text)
    value = round(float(found[1]) * _NUMBERS[found[2]]) if found else 0
    if value < 1:
        raise argparse.ArgumentTypeError(
            f"must be a number above 0, such as 500000, 124M or 7B, got {text!r}"
        )
    return value


def seconds(text: str) -> float:
    """Return a number above 0; else raise ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, got {text!r}")
    return value
