// The functions of the C interface that need no codec: the version check, the random stream, sums and checks of
// tensors, float16, framing, the sizes of row-sparse messages, and the loops of benchmarks.
#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "core/abi.h"
#include "core/finite.h"
#include "core/framing.h"
#include "core/half.h"
#include "core/limits.h"
#include "core/low_rank.h"
#include "core/row_format.h"
#include "core/squares.h"
#include "core/stream.h"

using namespace gluon_gc;

const char* gluon_gc_abi() {
  static const std::string sizes = [] {
    std::string text = "version=" + std::to_string(gluon_gc_abi_version);
    const auto add = [&](const char* name, std::size_t value) { text += " " + (name + ("=" + std::to_string(value))); };
    add("cuda", gluon_gc_cuda);
    add("ticket_bytes", gluon_gc_ticket_bytes);
    add("needs", sizeof(gluon_gc_needs));
    add("traits", sizeof(gluon_gc_traits));
    add("position", sizeof(gluon_gc_position));
    add("status", sizeof(gluon_gc_status));
    add("state", sizeof(gluon_gc_state));
    add("call", sizeof(gluon_gc_call));
    add("conversion", sizeof(gluon_gc_conversion));
    add("values", sizeof(gluon_gc_values));
    add("clipping", sizeof(gluon_gc_clipping));
    add("rows", sizeof(gluon_gc_rows));
    add("low_rank", sizeof(gluon_gc_low_rank));
    return text;
  }();
  return sizes.c_str();
}

void gluon_gc_draw(gluon_gc_position position, std::size_t n, std::uint64_t* draws) {
  Stream stream{{position.state[0], position.state[1]}};
  jump(stream, position.draws);
  for (std::size_t i = 0; i < n; ++i) draws[i] = stream();
}

void gluon_gc_jump(std::uint64_t state[2], std::uint64_t draws) { jump(*reinterpret_cast<Stream*>(state), draws); }

void gluon_gc_jump_to_worker(std::uint64_t state[2], std::uint64_t worker) {
  jump_to_worker(*reinterpret_cast<Stream*>(state), worker);
}

double gluon_gc_sum_of_squares(const void* x, std::size_t n, int itemsize, int threads, int isa) {
  std::vector<double> sums(tiles_of(n));
  if (itemsize == 4) return sum_of_squares(static_cast<const float*>(x), n, sums.data(), threads, Isa(isa));
  return sum_of_squares(static_cast<const double*>(x), n, sums.data(), threads, Isa(isa));
}

int gluon_gc_values_finite(const void* x, std::size_t n, int itemsize, int threads, int isa) {
  switch (itemsize) {
    case 2: return values_finite(static_cast<const std::uint16_t*>(x), n, threads, Isa(isa));
    case 4: return values_finite(static_cast<const float*>(x), n, threads, Isa(isa));
    default: return values_finite(static_cast<const double*>(x), n, threads, Isa(isa));
  }
}

void gluon_gc_half_from_float(const float* x, std::size_t n, float scale, std::uint16_t* out, int threads,
                              int isa) {
  half_from_float(x, n, scale, out, threads, Isa(isa));
}

void gluon_gc_float_from_half(const std::uint16_t* x, std::size_t n, float* out, int threads, int isa) {
  float_from_half(x, n, out, threads, Isa(isa));
}

namespace {

// Calls call(kernels, a null pointer to an element) for the instruction set and the element type of `shape`.
template <typename Call>
void low_rank(const gluon_gc_low_rank& shape, Call call) {
  dispatch(Isa(shape.isa), [&](auto isa) {
    if (shape.itemsize == 4) call(LowRankKernels<isa, float>(), static_cast<float*>(nullptr));
    else call(LowRankKernels<isa, double>(), static_cast<double*>(nullptr));
  });
}

}  // namespace

void gluon_gc_accumulate(const gluon_gc_low_rank* shape, const void* g, const void* p, const void* q, const void* next,
                         void* m, void* left) {
  low_rank(*shape, [=](auto kernels, auto* type) {
    using T = decltype(type);
    using Input = const std::remove_pointer_t<T>*;
    kernels.accumulate({shape->rows, shape->columns, shape->rank}, Input(g), Input(p), Input(q), Input(next), T(m),
                       T(left), shape->threads);
  });
}

void gluon_gc_project(const gluon_gc_low_rank* shape, const void* p, const void* m, void* right) {
  low_rank(*shape, [=](auto kernels, auto* type) {
    using T = decltype(type);
    using Input = const std::remove_pointer_t<T>*;
    kernels.project({shape->rows, shape->columns, shape->rank}, Input(p), Input(m), T(right), shape->threads);
  });
}

void gluon_gc_multiply(const gluon_gc_low_rank* shape, const void* p, const void* q, void* out) {
  low_rank(*shape, [=](auto kernels, auto* type) {
    using T = decltype(type);
    using Input = const std::remove_pointer_t<T>*;
    kernels.multiply({shape->rows, shape->columns, shape->rank}, Input(p), Input(q), T(out), shape->threads);
  });
}

void gluon_gc_orthonormalise(void* x, std::size_t count, std::size_t n, int itemsize) {
  if (itemsize == 4) orthonormalise(static_cast<float*>(x), count, n);
  else orthonormalise(static_cast<double*>(x), count, n);
}

std::size_t gluon_gc_frame_words(std::size_t bytes) { return frame_words(bytes); }

std::size_t gluon_gc_frame_bytes(std::size_t words) { return words / framing_block_words * framing_block_bytes; }

void gluon_gc_frame(const std::uint8_t* payload, std::size_t bytes, std::uint32_t* words, int threads, int isa) {
  frame(payload, bytes, words, threads, Isa(isa));
}

void gluon_gc_unframe(const std::uint32_t* words, std::size_t bytes, std::uint8_t* payload, int threads, int isa) {
  unframe(words, bytes, payload, threads, Isa(isa));
}

int gluon_gc_framed(const std::uint32_t* words, std::size_t n, int isa) { return framed(words, n, Isa(isa)); }

void gluon_gc_message_rows(std::size_t bytes, int varies, int in_one, gluon_gc_rows* rows) {
  rows->bytes = message_bytes(bytes, varies != 0);
  const std::size_t words = frame_words(rows->bytes);
  rows->row_words = varies && !in_one ? std::min(words, most_row_words) : words;
  rows->rows = rows->row_words == 0 ? 1 : (words + rows->row_words - 1) / rows->row_words;
}

std::size_t gluon_gc_row_list_bytes(std::size_t rows) { return row_list_bytes(rows); }
std::size_t gluon_gc_rows_head_bytes(std::size_t rows) { return rows_head_bytes(rows); }

const char* gluon_gc_limit(const char* name, void* a, void* b, void* c, std::size_t n, int threads, int isa) {
  const char* error = nullptr;
  dispatch(Isa(isa), [&](auto chosen) {
    using Limits = LimitKernels<chosen>;
    auto* const x = static_cast<float*>(a);
    auto* const y = static_cast<float*>(b);
    const std::string limit = name;
    if (limit == "sum") *y = Limits::sum(x, n, threads);
    else if (limit == "fill") Limits::fill(x, n, threads);
    else if (limit == "copy") Limits::copy(x, y, n, threads);
    else if (limit == "add_constant") Limits::add_constant(x, n, threads);
    else if (limit == "add") Limits::add(x, y, n, threads);
    else if (limit == "add_twice") Limits::add_twice(x, y, static_cast<const float*>(c), n, threads);
    else if (limit == "narrow") Limits::narrow(static_cast<std::uint32_t*>(a), static_cast<std::uint16_t*>(b), n, threads);
    else if (limit == "widen") Limits::widen(static_cast<std::uint16_t*>(a), static_cast<std::uint32_t*>(b), n, threads);
    else error = "there is no such loop";
  });
  return error;
}
