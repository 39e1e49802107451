// Jumps in the stream, by polynomials over GF(2) (jump_polynomial.h).
#include "core/stream.h"

#include "core/jump_polynomial.h"

namespace gluon_gc {
namespace {

using Polynomial = JumpPolynomial;
constexpr int degree = jump_degree;

// table[i] = x^(2^i) mod p, for i < 128
struct Powers {
  constexpr Powers() : table{} {
    table[0] = {{2, 0}};
    for (int i = 1; i < degree; ++i) table[i] = product(table[i - 1], table[i - 1]);
  }
  Polynomial table[degree];
};
constexpr Powers powers;

// x^count mod p
constexpr Polynomial power(std::uint64_t count) {
  Polynomial result = {{1, 0}};
  for (int i = 0; i < 64; ++i) {
    if (count >> i & 1) result = product(result, powers.table[i]);
  }
  return result;
}

// Advances the stream by the number of draws that a polynomial stands for.
void apply(const Polynomial& steps, Stream& stream) {
  Stream sum = {};
  for (int i = 0; i < degree; ++i) {
    const std::uint64_t set = -std::uint64_t{steps[i]};
    sum.state[0] ^= set & stream.state[0];
    sum.state[1] ^= set & stream.state[1];
    stream();
  }
  stream = sum;
}

// Applies power_of_bit[i] for each bit i that is set in `count`.
void jump_by_powers(Stream& stream, std::uint64_t count, const Polynomial* power_of_bit) {
  for (; count != 0; count >>= 1, ++power_of_bit) {
    if (count & 1) apply(*power_of_bit, stream);
  }
}

// The jump by one segment as a table. The jump is linear, so the new state is the exclusive or of the images of the
// old state's 32 hexadecimal digits.
struct SegmentJump {
  static constexpr int digits = degree / 4;

  SegmentJump() {
    constexpr Polynomial steps = power(stream_segment);
    for (int digit = 0; digit < digits; ++digit) {
      for (std::uint64_t value = 0; value < 16; ++value) {
        Stream& image = table[digit][value];
        image = {};
        image.state[digit / 16] = value << digit % 16 * 4;
        apply(steps, image);
      }
    }
  }

  // Four partial sums, because a single one would be a chain of 32 dependent operations.
  Stream operator()(const Stream& stream) const {
    constexpr int sums = 4;
    Stream sum[sums] = {};
#pragma GCC unroll 32
    for (int digit = 0; digit < digits; ++digit) {
      const Stream& image = table[digit][stream.state[digit / 16] >> digit % 16 * 4 & 15];
      sum[digit % sums].state[0] ^= image.state[0];
      sum[digit % sums].state[1] ^= image.state[1];
    }
    return {{sum[0].state[0] ^ sum[1].state[0] ^ sum[2].state[0] ^ sum[3].state[0],
             sum[0].state[1] ^ sum[1].state[1] ^ sum[2].state[1] ^ sum[3].state[1]}};
  }

  Stream table[digits][16];
};

}  // namespace

void jump(Stream& stream, std::uint64_t count) { jump_by_powers(stream, count, powers.table); }

void jump_to_worker(Stream& stream, std::uint64_t worker) {
  jump_by_powers(stream, worker, powers.table + 64);
}

void draw_segments(const Stream& stream, std::size_t n, Stream* states) {
  static const SegmentJump next;
  states[0] = stream;
  for (std::size_t i = 1; i < stream_states(n); ++i) states[i] = next(states[i - 1]);
}

}  // namespace gluon_gc
