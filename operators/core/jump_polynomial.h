// Jumps in the random stream as polynomials. For host and device, so it includes no header of the standard library.
//
// One step of the generator is a linear map A over GF(2), with a characteristic polynomial p of degree 128. By
// Cayley-Hamilton, A^count = q(A) with q = x^count mod p.
#pragma once

namespace gluon_gc {

constexpr int jump_degree = 128;

// Coefficient i is bit i % 64 of word i / 64.
struct JumpPolynomial {
  constexpr bool operator[](int i) const { return word[i / 64] >> i % 64 & 1; }
  unsigned long long word[2];
};

// p without its term x^128. The Berlekamp-Massey algorithm found it from one bit of the state.
constexpr JumpPolynomial characteristic = {{0xbd82fd40e01730f9, 0x01f9f801f6fd0098}};

// x a mod p
constexpr JumpPolynomial times_x(const JumpPolynomial& a) {
  const unsigned long long carry = -(a.word[1] >> 63);
  return {{a.word[0] << 1 ^ (carry & characteristic.word[0]),
           (a.word[1] << 1 | a.word[0] >> 63) ^ (carry & characteristic.word[1])}};
}

// a b mod p
constexpr JumpPolynomial product(const JumpPolynomial& a, const JumpPolynomial& b) {
  JumpPolynomial sum = {};
  for (int i = jump_degree; i-- > 0;) {
    sum = times_x(sum);
    const unsigned long long set = a[i] ? ~0ull : 0;
    sum.word[0] ^= set & b.word[0];
    sum.word[1] ^= set & b.word[1];
  }
  return sum;
}

}  // namespace gluon_gc
