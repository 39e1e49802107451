// Jumps in the stream as polynomials, for host and device: NVRTC has no header of the standard library.
//
// A step is linear over GF(2) and its characteristic polynomial p has degree 128, so that `count` steps are
// x^count mod p evaluated at the step.
#pragma once

namespace gluon_gc {
namespace {

using Word = unsigned long long;

constexpr int degree = 128;

// Coefficient i is bit i % 64 of word i / 64.
struct Polynomial {
  constexpr bool operator[](int i) const { return word[i / 64] >> i % 64 & 1; }
  Word word[2];
};

// p without x^128, from the Berlekamp-Massey algorithm on one bit of the state.
constexpr Polynomial characteristic = {{0xbd82fd40e01730f9, 0x01f9f801f6fd0098}};

constexpr Polynomial times_x(const Polynomial& a) {
  const Word carry = -(a.word[1] >> 63);
  return {{a.word[0] << 1 ^ (carry & characteristic.word[0]),
           (a.word[1] << 1 | a.word[0] >> 63) ^ (carry & characteristic.word[1])}};
}

// a b mod p
constexpr Polynomial product(const Polynomial& a, const Polynomial& b) {
  Polynomial sum = {};
  for (int i = degree; i-- > 0;) {
    sum = times_x(sum);
    const Word set = -Word{a[i]};
    sum.word[0] ^= set & b.word[0];
    sum.word[1] ^= set & b.word[1];
  }
  return sum;
}

// x^(2^i) mod p for i < 128
struct Powers {
  constexpr Powers() : of{} {
    of[0] = {{2, 0}};
    for (int i = 1; i < degree; ++i) of[i] = product(of[i - 1], of[i - 1]);
  }
  Polynomial of[degree];
};

}  // namespace
}  // namespace gluon_gc
