#include "core/low_rank.h"

#include "core/parallel.h"
#include "core/vec.h"

namespace gluon_gc {
namespace {

constexpr std::size_t block = 1024;      // columns of the factors that stay in the cache while rows pass by
constexpr std::size_t rows_at_once = 4;  // rows that share a load and a store of the right factor
constexpr std::size_t rank_at_once = 4;  // columns of a factor that share a load of the matrix

// Elements [j, j + lanes) of row i of transposed(P) Q, added in the order of the rank.
template <typename T, typename Present>
inline Vec<T> product(LowRank shape, const T* p, const T* q, std::size_t i, std::size_t j, Present present) {
  Vec<T> sum = broadcast(p[i]) * load(q + j, present);
  for (std::size_t k = 1; k < shape.rank; ++k) {
    sum = sum + broadcast(p[k * shape.rows + i]) * load(q + k * shape.columns + j, present);
  }
  return sum;
}

template <std::size_t number>
struct Count {
  static constexpr std::size_t value = number;
};

// Calls step(k, Count) for the columns [k, k + count) of a factor.
template <typename Step>
inline void in_groups(std::size_t rank, Step step) {
  std::size_t k = 0;
  for (; rank - k >= rank_at_once; k += rank_at_once) step(k, Count<rank_at_once>{});
  for (; k < rank; ++k) step(k, Count<1>{});
}

// left[k] += the dot product of x and y[k], for `count` of them. It has 32 chains, which are added in halves.
template <std::size_t count, typename T>
inline void add_dots(const T* x, const T* y, std::size_t columns, std::size_t n, T* left, std::size_t rows) {
  Vec<T> low[count], high[count];
  for (std::size_t k = 0; k < count; ++k) low[k] = high[k] = broadcast(T(0));
  sweep<2 * lanes>(0, n, [&](std::size_t i, auto present) {
    const auto first = present.part(0), second = present.part(1);
    const Vec<T> x_low = load(x + i, first), x_high = load(x + i + lanes, second);
    for (std::size_t k = 0; k < count; ++k) {
      low[k] = low[k] + x_low * load(y + k * columns + i, first);
      high[k] = high[k] + x_high * load(y + k * columns + i + lanes, second);
    }
  });
  for (std::size_t k = 0; k < count; ++k) {
    T chain[lanes];
    store(low[k] + high[k], chain, All{});
    for (std::size_t half = lanes / 2; half != 0; half /= 2) {
      for (std::size_t i = 0; i < half; ++i) chain[i] += chain[i + half];
    }
    left[k * rows] += chain[0];
  }
}

// Adds rows [i, i + count) of P M to columns [begin, end) of `right`, in the order of the rows.
template <std::size_t count, typename T>
inline void add_rows(LowRank shape, const T* p, const T* m, std::size_t i, std::size_t begin, std::size_t end,
                     T* right) {
  in_groups(shape.rank, [=](std::size_t k, auto group) {
    sweep<lanes>(begin, end, [=](std::size_t j, auto present) {
      Vec<T> row[count];
      for (std::size_t r = 0; r < count; ++r) row[r] = load(m + (i + r) * shape.columns + j, present);
      for (std::size_t own = k; own < k + decltype(group)::value; ++own) {
        T* const at = right + own * shape.columns + j;
        Vec<T> sum = load(at, present);
        for (std::size_t r = 0; r < count; ++r) sum = sum + broadcast(p[own * shape.rows + i + r]) * row[r];
        store(sum, at, present);
      }
    });
  });
}

}  // namespace

template <Isa isa, typename T>
void LowRankKernels<isa, T>::accumulate(LowRank shape, const T* g, const T* p, const T* q, const T* next, T* m, T* left,
                                      int threads) {
  fill_with_zeros(left, shape.rank * shape.rows, 1);
  Blocks<1>(shape.rows).run_parts(threads, [=](std::size_t, std::size_t first, std::size_t last) {
    for (std::size_t begin = 0; begin < shape.columns; begin += block) {
      const std::size_t end = shape.columns - begin < block ? shape.columns : begin + block;
      for (std::size_t i = first; i < last; ++i) {
        const T* const gradient = g + i * shape.columns;
        T* const row = m + i * shape.columns;
        sweep<lanes>(begin, end, [=](std::size_t j, auto present) {
          prefetch_ahead(row + j);
          prefetch_ahead(gradient + j);
          const Vec<T> residual = load(row + j, present) - product(shape, p, q, i, j, present);
          store(residual + load(gradient + j, present), row + j, present);
        });
        in_groups(shape.rank, [=](std::size_t k, auto group) {
          add_dots<decltype(group)::value>(row + begin, next + k * shape.columns + begin, shape.columns, end - begin,
                          left + k * shape.rows + i, shape.rows);
        });
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
  Blocks<1>(shape.rows).run_parts(threads, [=](std::size_t, std::size_t first, std::size_t last) {
    for (std::size_t begin = 0; begin < shape.columns; begin += block) {
      const std::size_t end = shape.columns - begin < block ? shape.columns : begin + block;
      for (std::size_t i = first; i < last; ++i) {
        sweep<lanes>(begin, end, [=](std::size_t j, auto present) {
          store(product(shape, p, q, i, j, present), out + i * shape.columns + j, present);
        });
      }
    }
  });
}

template struct LowRankKernels<this_isa, float>;
template struct LowRankKernels<this_isa, double>;

}  // namespace gluon_gc
