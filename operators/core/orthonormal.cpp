#include <cmath>
#include <vector>

#include "core/low_rank.h"

namespace gluon_gc {
namespace {

constexpr std::size_t chains = 8;
constexpr double dependent = 1e-10;  // a row depends on others if they leave less of its squared norm

// The dot product, whose order of additions depends on n only.
template <typename T>
double dot(const std::vector<double>& x, const T* y) {
  double chain[chains] = {};
  std::size_t i = 0;
  for (; i + chains <= x.size(); i += chains) {
    for (std::size_t j = 0; j < chains; ++j) chain[j] += x[i + j] * static_cast<double>(y[i + j]);
  }
  for (std::size_t j = 0; i < x.size(); ++i, ++j) chain[j] += x[i] * static_cast<double>(y[i]);
  double sum = 0;
  for (const double part : chain) sum += part;
  return sum;
}

}  // namespace

template <typename T>
void orthonormalise(T* x, std::size_t count, std::size_t n) {
  std::vector<double> row(n);
  for (std::size_t k = 0; k < count; ++k) {
    T* const out = x + k * n;
    for (std::size_t i = 0; i < n; ++i) row[i] = static_cast<double>(out[i]);
    const double before = dot(row, row.data());
    for (int pass = 0; pass < 2; ++pass) {  // the second pass removes the rounding errors of the first
      for (std::size_t other = 0; other < k; ++other) {
        const T* const direction = x + other * n;
        const double share = dot(row, direction);
        for (std::size_t i = 0; i < n; ++i) row[i] -= share * static_cast<double>(direction[i]);
      }
    }
    const double after = dot(row, row.data());
    const double scale = after <= dependent * before ? 0.0 : 1.0 / std::sqrt(after);
    for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<T>(row[i] * scale);
  }
}

template void orthonormalise(float*, std::size_t, std::size_t);
template void orthonormalise(double*, std::size_t, std::size_t);

}  // namespace gluon_gc
