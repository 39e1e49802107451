"""dithering in NumPy; the kernels must give the same bits, payloads included."""

from dataclasses import dataclass

import numpy as np

from tests.neutral.kernels import sums

from . import replay
from .replay import bytes_of

LANES = 16
BLOCK = 32 * 16 * 129
"""The number of elements in one Elias segment."""
FIXED, ELIAS = 0, 1


@dataclass(frozen=True)
class Config:
    """The options of dithering."""

    levels: int
    natural: bool = False
    l2: bool = False
    fixed_width: bool = False

    @property
    def symbol_bits(self) -> int:
        return self.levels.bit_length()

    @property
    def top(self) -> int:
        return 2 ** (self.levels - 1) if self.natural else self.levels

    @property
    def options(self) -> dict:
        """The options as a codec takes them."""
        return {
            "k": self.levels,
            "partition": "natural" if self.natural else "linear",
            "normalize": "l2" if self.l2 else "max",
            "fixed_width": self.fixed_width,
        }

    @classmethod
    def of(cls, options) -> "Config":
        natural, l2 = options["partition"] == "natural", options["normalize"] == "l2"
        return cls(options["k"], natural, l2, options.get("fixed_width", False))


def below(draws, probability):
    """Return draws < probability * 2^64, computed exactly, for probability < 1."""
    bound = probability * probability.dtype.type(2.0**64)
    floor = bound.astype(np.uint64)
    return (draws < floor) | ((draws == floor) & (floor.astype(bound.dtype) < bound))


def symbols_of(p, norm, config, draws):
    """Return each element's level, counted from 0."""
    T = p.dtype.type
    far = 64 if T is np.float32 else 512
    unit = T(2.0**far if norm < 2.0**-far else 2.0**-far if norm > 2.0**far else 1)
    scale = T(config.top) / (norm * unit) if norm > 0 and np.isfinite(norm) else T(0)
    y = np.minimum(np.abs(p) * unit * scale, T(config.top))
    if not config.natural:
        whole = np.floor(y)
        return whole.astype(np.int64) + below(draws, y - whole)
    # lower = next_pow2(ceil(y)) >> 1; log2 is the exponent of the next power of two
    log2 = np.ceil(np.log2(np.maximum(np.ceil(y).astype(np.float64), 1)))
    lower = np.where(log2 > 0, 2.0 ** (log2 - 1), 0).astype(T)
    step = np.maximum(lower, T(1))
    probability = (y - lower) / step
    up = (probability == 1) | below(draws, np.where(probability == 1, T(0), probability))
    value = lower + step * up
    return np.where(value == 0, 0, np.frexp(value)[1])


def level_of(symbols, norm, config):
    """Return the decoded magnitudes of symbols, in the norm's dtype."""
    T = norm.dtype.type
    if config.natural:
        share = np.where(symbols == 0, 0, 2.0 ** (symbols - float(config.levels))).astype(T)
    else:
        share = symbols.astype(T) / T(config.levels)
    return share * norm


def bits_of(values, count):
    """Return the lowest ``count`` bits of each value, one row per value."""
    return (values[:, None] >> np.arange(count)) & 1


def elias_delta(x):
    """Return the Elias delta codes of whole numbers, as numbers, and their lengths in bits."""
    x = x.astype(np.int64)
    low = np.frexp(x)[1].astype(np.int64) - 1
    zeros = np.frexp(low + 1)[1].astype(np.int64) - 1
    prefix = (1 << zeros) | ((low + 1 - (1 << zeros)) << (zeros + 1))
    return prefix | ((x - (1 << low)) << (2 * zeros + 1)), 2 * zeros + 1 + low


def segment_of(symbols, negative):
    """Return the bits of a block's Elias code."""
    places = np.flatnonzero(symbols)
    distance, distance_length = elias_delta(np.diff(places, prepend=-1))
    level, level_length = elias_delta(symbols[places])
    lengths = distance_length + 1 + level_length
    codes = distance | (negative[places].astype(np.int64) << distance_length)
    codes |= level << (distance_length + 1)
    bits = np.zeros(lengths.sum(), np.uint8)
    starts = np.cumsum(lengths) - lengths
    for j in range(lengths.max(initial=0)):
        has = lengths > j
        bits[starts[has] + j] = (codes[has] >> j) & 1
    return bits


def payload_of(symbols, negative, norm, config):
    """Return the bytes in use of a payload."""
    planes = np.concatenate(
        [(negative & (symbols > 0))[:, None], bits_of(symbols, config.symbol_bits)], axis=1
    )
    padded = np.pad(planes, ((0, -len(planes) % LANES), (0, 0)))
    groups = padded.reshape(-1, LANES, planes.shape[1]).transpose(0, 2, 1)
    fixed = np.packbits(groups.astype(np.uint8), bitorder="little")
    fixed = np.pad(fixed, (0, -(fixed.size + norm.itemsize) % 4))

    blocks = range(0, symbols.size, BLOCK)
    segments = [segment_of(symbols[b : b + BLOCK], negative[b : b + BLOCK]) for b in blocks]
    table = np.array([s.size for s in segments], np.uint32).view(np.uint8)
    elias = [np.packbits(s, bitorder="little") for s in segments]
    elias = np.concatenate([table, *elias])

    coding = ELIAS if elias.size < fixed.size and not config.fixed_width else FIXED
    body = elias if coding == ELIAS else fixed
    header = np.array([8 + norm.itemsize + body.size, coding], np.uint32)
    return bytes_of(header, np.array([norm]), body)


class Replay(replay.Replay):
    """dithering in NumPy."""

    def encode(self, p):
        config = Config.of(self.options)
        norm = sums.l2_norm(p) if config.l2 else self.T(np.abs(p).max(initial=0))
        symbols = symbols_of(p, norm, config, self.draw(p.size))
        decoded = level_of(symbols, norm, config)
        decoded = np.where((p < 0) & (symbols > 0), -decoded, decoded)
        return payload_of(symbols, p < 0, norm, config), decoded
