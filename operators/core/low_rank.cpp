#include "core/low_rank.h"

#include "core/parallel.h"
#include "core/vec.h"

namespace gluon_gc {
namespace {

constexpr std::size_t block = 2048;      // columns that stay in the cache between two loops
constexpr std::size_t rows_at_once = 4;  // rows that share a load and a store of the right factor

// Elements [j, j + lanes) of row i of transposed(P) Q, added in the order of the rank.
template <typename T, typename Present>
inline Vec<T> product(LowRank shape, const T* p, const T* q, std::size_t i, std::size_t j, Present present) {
  Vec<T> sum = broadcast(p[i]) * load(q + j, present);
  for (std::size_t k = 1; k < shape.rank; ++k) {
    sum = sum + broadcast(p[k * shape.rows + i]) * load(q + k * shape.columns + j, present);
  }
  return sum;
}

// The dot product of n elements: 32 chains, which are added in halves.
template <typename T>
inline T dot(const T* x, const T* y, std::size_t n) {
  Vec<T> low = broadcast(T(0)), high = low;
  sweep<2 * lanes>(0, n, [&](std::size_t i, auto present) {
    const auto first = present.part(0), second = present.part(1);
    low = low + load(x + i, first) * load(y + i, first);
    high = high + load(x + i + lanes, second) * load(y + i + lanes, second);
  });
  T chain[lanes];
  store(low + high, chain, All{});
  for (std::size_t half = lanes / 2; half != 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) chain[i] += chain[i + half];
  }
  return chain[0];
}

// Adds rows [i, i + count) of P M to columns [begin, end) of `right`, in the order of the rows.
template <std::size_t count, typename T>
inline void add_rows(LowRank shape, const T* p, const T* m, std::size_t i, std::size_t begin, std::size_t end, T* right) {
  for (std::size_t k = 0; k < shape.rank; ++k) {
    const T* weights = p + k * shape.rows + i;
    T* sums = right + k * shape.columns;
    sweep<lanes>(begin, end, [=](std::size_t j, auto present) {
      Vec<T> sum = load(sums + j, present);
      for (std::size_t row = 0; row < count; ++row) {
        sum = sum + broadcast(weights[row]) * load(m + (i + row) * shape.columns + j, present);
      }
      store(sum, sums + j, present);
    });
  }
}

}  // namespace

template <Isa isa, typename T>
void LowRankKernels<isa, T>::accumulate(LowRank shape, const T* g, const T* p, const T* q, const T* next, T* m, T* left,
                                      int threads) {
  Blocks<1>(shape.rows).run(threads, [=](std::size_t, std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) {
      const T* gradient = g + i * shape.columns;
      T* row = m + i * shape.columns;
      for (std::size_t k = 0; k < shape.rank; ++k) left[k * shape.rows + i] = 0;
      for (std::size_t begin = 0; begin < shape.columns; begin += block) {
        const std::size_t end = shape.columns - begin < block ? shape.columns : begin + block;
        sweep<lanes>(begin, end, [=](std::size_t j, auto present) {
          const Vec<T> residual = load(row + j, present) - product(shape, p, q, i, j, present);
          store(residual + load(gradient + j, present), row + j, present);
        });
        for (std::size_t k = 0; k < shape.rank; ++k) {
          left[k * shape.rows + i] += dot(row + begin, next + k * shape.columns + begin, end - begin);
        }
      }
    }
  });
}

template <Isa isa, typename T>
void LowRankKernels<isa, T>::project(LowRank shape, const T* p, const T* m, T* right, int threads) {
  fill_with_zeros(right, shape.rank * shape.columns, 1);
  Blocks<block>(shape.columns).run(threads, [=](std::size_t, std::size_t first, std::size_t last) {
    for (std::size_t begin = first; begin < last; begin += block) {
      const std::size_t end = last - begin < block ? last : begin + block;
      std::size_t i = 0;
      for (; shape.rows - i >= rows_at_once; i += rows_at_once) {
        add_rows<rows_at_once>(shape, p, m, i, begin, end, right);
      }
      for (; i < shape.rows; ++i) add_rows<1>(shape, p, m, i, begin, end, right);
    }
  });
}

template <Isa isa, typename T>
void LowRankKernels<isa, T>::multiply(LowRank shape, const T* p, const T* q, T* out, int threads) {
  Blocks<1>(shape.rows).run(threads, [=](std::size_t, std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) {
      sweep<lanes>(0, shape.columns, [=](std::size_t j, auto present) {
        store(product(shape, p, q, i, j, present), out + i * shape.columns + j, present);
      });
    }
  });
}

template struct LowRankKernels<this_isa, float>;
template struct LowRankKernels<this_isa, double>;

}  // namespace gluon_gc
