// The C interface to the kernels, for tests and benchmarks; gluon_gc/kernels declares it to Python.
//
// `isa` is a value of gluon_gc::Isa that is at most gluon_gc_best_isa(). `itemsize` is that of T, the floats of
// a kernel: 4 or 8. The functions of all compressors take what they have in common in the same order, around
// what is their own:
//   capacity: itemsize, n, ...
//   compress: itemsize, gradient, n, gradient_scale, momentum, mu, ..., payload, threads, isa
//   valid: itemsize, payload, capacity, n, ..., isa
//   decompress_add: itemsize, payload, n, ..., out, threads, isa
//   decompress_sum: itemsize, payloads, stride_bytes, count, n, ..., out, threads, isa
#include "core/bytegrad.h"
#include "core/dgc.h"
#include "core/dithering.h"
#include "core/finite.h"
#include "core/framing.h"
#include "core/half.h"
#include "core/isa.h"
#include "core/limits.h"
#include "core/onebit.h"
#include "core/randomk.h"
#include "core/stream.h"
#include "core/topk.h"

using namespace gluon_gc;
using std::size_t;
using std::uint16_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;

namespace {

// An array whose T only itemsize tells. It is passed as the pointer that it holds.
struct Array {
  template <typename T>
  operator T*() const {
    return static_cast<T*>(address);
  }
  void* address;
};

// Returns call(T{}).
template <typename Call>
auto with_float(int itemsize, Call call) {
  return itemsize == sizeof(float) ? call(float{}) : call(double{});
}

// Returns compress(T{}, FeedbackState<T>).
template <typename Compress>
double with_feedback(int itemsize, Array momentum, double mu, Array residual, double ratio, Compress compress) {
  return with_float(itemsize, [=](auto zero) {
    using T = decltype(zero);
    const FeedbackState<T> state{momentum, static_cast<T>(mu), residual, static_cast<T>(ratio)};
    return compress(zero, state);
  });
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int gluon_gc_best_isa() { return static_cast<int>(best_isa()); }

size_t gluon_gc_onebit_capacity(int itemsize, size_t n) {
  return with_float(itemsize, [=](auto zero) { return onebit_payload_bytes<decltype(zero)>(n); });
}
double gluon_gc_onebit_compress(int itemsize, Array gradient, size_t n, double gradient_scale, Array momentum,
                                double mu, Array corrected, Array scale, double ratio, int scaling,
                                void* payload, int threads, int isa) {
  return with_float(itemsize, [=](auto zero) {
    using T = decltype(zero);
    const OnebitState<T> state{momentum, static_cast<T>(mu), corrected, scale, static_cast<T>(ratio)};
    return onebit_compress<T>(gradient, n, gradient_scale, scaling, state, payload, threads, Isa(isa));
  });
}
int gluon_gc_onebit_valid(int itemsize, const void*, size_t capacity, size_t n, int) {
  return capacity >= gluon_gc_onebit_capacity(itemsize, n);
}
void gluon_gc_onebit_decompress_add(int itemsize, const void* payload, size_t n, Array out, int threads,
                                    int isa) {
  with_float(itemsize, [=](auto zero) {
    onebit_decompress_add<decltype(zero)>(payload, n, out, threads, Isa(isa));
  });
}
void gluon_gc_onebit_decompress_sum(int itemsize, const void* payloads, size_t stride_bytes, size_t count,
                                    size_t n, Array out, int threads, int isa) {
  with_float(itemsize, [=](auto zero) {
    onebit_decompress_sum<decltype(zero)>(payloads, stride_bytes, count, n, out, threads, Isa(isa));
  });
}
void gluon_gc_onebit_residual(int itemsize, Array corrected, double scale, size_t n, Array residual, int isa) {
  with_float(itemsize, [=](auto zero) {
    onebit_residual<decltype(zero)>(corrected, scale, n, residual, Isa(isa));
  });
}

size_t gluon_gc_topk_capacity(int itemsize, size_t, size_t k) {
  return with_float(itemsize, [=](auto zero) { return topk_payload_bytes<decltype(zero)>(k); });
}
double gluon_gc_topk_compress(int itemsize, Array gradient, size_t n, double gradient_scale, Array momentum,
                              double mu, Array residual, double ratio, size_t k, void* payload, int threads,
                              int isa) {
  return with_feedback(itemsize, momentum, mu, residual, ratio, [=](auto zero, const auto& state) {
    return topk_compress<decltype(zero)>(gradient, n, k, gradient_scale, state, payload, threads, Isa(isa));
  });
}
int gluon_gc_topk_valid(int itemsize, const void* payload, size_t capacity, size_t n, size_t k, int isa) {
  return capacity >= gluon_gc_topk_capacity(itemsize, n, k) && with_float(itemsize, [=](auto zero) {
           return topk_valid<decltype(zero)>(payload, n, k, Isa(isa));
         });
}
void gluon_gc_topk_decompress_add(int itemsize, const void* payload, size_t, size_t k, Array out, int,
                                  int isa) {
  with_float(itemsize, [=](auto zero) { topk_decompress_add<decltype(zero)>(payload, k, out, Isa(isa)); });
}
void gluon_gc_topk_decompress_sum(int itemsize, const void* payloads, size_t stride_bytes, size_t count,
                                  size_t n, size_t k, Array out, int threads, int isa) {
  with_float(itemsize, [=](auto zero) {
    topk_decompress_sum<decltype(zero)>(payloads, stride_bytes, count, n, k, out, threads, Isa(isa));
  });
}

double gluon_gc_randomk_compress(int itemsize, Array gradient, size_t n, double gradient_scale, Array momentum,
                                 double mu, Array residual, double ratio, size_t k, Stream* stream,
                                 void* payload, int threads, int isa) {
  return with_feedback(itemsize, momentum, mu, residual, ratio, [=](auto zero, const auto& state) {
    return randomk_compress<decltype(zero)>(gradient, n, k, gradient_scale, state, *stream, payload, threads,
                                            Isa(isa));
  });
}
void gluon_gc_randomk_decompress(int itemsize, const void* payload, size_t n, size_t k, const Stream* start,
                                 Array out, int threads, int isa) {
  with_float(itemsize, [=](auto zero) {
    randomk_decompress<decltype(zero)>(payload, n, k, *start, out, threads, Isa(isa));
  });
}
void gluon_gc_randomk_decompress_add(int itemsize, const void* payload, size_t n, size_t k,
                                     const Stream* start, Array out, int, int isa) {
  with_float(itemsize, [=](auto zero) {
    randomk_decompress_add<decltype(zero)>(payload, n, k, *start, out, Isa(isa));
  });
}

int gluon_gc_dithering_allows(size_t levels, int natural) { return dithering_allows(levels, natural); }
size_t gluon_gc_dithering_capacity(int itemsize, size_t n, size_t levels) {
  return with_float(itemsize, [=](auto zero) { return dithering_capacity<decltype(zero)>(n, levels); });
}
double gluon_gc_dithering_compress(int itemsize, Array gradient, size_t n, double gradient_scale,
                                   Array momentum, double mu, Array residual, double ratio, uint32_t levels,
                                   int natural, int l2, int fixed_width, Stream* stream, void* payload,
                                   int threads, int isa) {
  const DitheringConfig config{levels, natural != 0, l2 != 0, fixed_width != 0};
  return with_feedback(itemsize, momentum, mu, residual, ratio, [=](auto zero, const auto& state) {
    return dithering_compress<decltype(zero)>(gradient, n, gradient_scale, config, state, *stream, payload,
                                              threads, Isa(isa));
  });
}
int gluon_gc_dithering_valid(int itemsize, const void* payload, size_t capacity, size_t n, uint32_t levels,
                             int natural, int isa) {
  const DitheringConfig config{levels, natural != 0, false, false};
  return with_float(itemsize, [=](auto zero) {
    return dithering_valid<decltype(zero)>(payload, capacity, n, config, Isa(isa));
  });
}
void gluon_gc_dithering_decompress_add(int itemsize, const void* payload, size_t n, uint32_t levels,
                                       int natural, Array out, int threads, int isa) {
  const DitheringConfig config{levels, natural != 0, false, false};
  with_float(itemsize, [=](auto zero) {
    dithering_decompress_add<decltype(zero)>(payload, n, config, out, threads, Isa(isa));
  });
}
void gluon_gc_dithering_decompress_sum(int itemsize, const void* payloads, size_t stride_bytes, size_t count,
                                       size_t n, uint32_t levels, int natural, Array out, int threads,
                                       int isa) {
  const DitheringConfig config{levels, natural != 0, false, false};
  with_float(itemsize, [=](auto zero) {
    dithering_decompress_sum<decltype(zero)>(payloads, stride_bytes, count, n, config, out, threads, Isa(isa));
  });
}

size_t gluon_gc_bytegrad_capacity(int itemsize, size_t n) {
  return with_float(itemsize, [=](auto zero) { return bytegrad_capacity<decltype(zero)>(n); });
}
double gluon_gc_bytegrad_compress(int itemsize, Array gradient, size_t n, double gradient_scale,
                                  Array momentum, double mu, Array residual, double ratio, void* payload,
                                  int threads, int isa) {
  return with_feedback(itemsize, momentum, mu, residual, ratio, [=](auto zero, const auto& state) {
    return bytegrad_compress<decltype(zero)>(gradient, n, gradient_scale, state, payload, threads, Isa(isa));
  });
}
int gluon_gc_bytegrad_valid(int itemsize, const void* payload, size_t capacity, size_t n, int isa) {
  return with_float(itemsize, [=](auto zero) {
    return bytegrad_valid<decltype(zero)>(payload, capacity, n, Isa(isa));
  });
}
void gluon_gc_bytegrad_decompress_add(int itemsize, const void* payload, size_t n, Array out, int threads,
                                      int isa) {
  with_float(itemsize, [=](auto zero) {
    bytegrad_decompress_add<decltype(zero)>(payload, n, out, threads, Isa(isa));
  });
}
void gluon_gc_bytegrad_decompress_sum(int itemsize, const void* payloads, size_t stride_bytes, size_t count,
                                      size_t n, Array out, int threads, int isa) {
  with_float(itemsize, [=](auto zero) {
    bytegrad_decompress_sum<decltype(zero)>(payloads, stride_bytes, count, n, out, threads, Isa(isa));
  });
}

int gluon_gc_dgc_allows(const DgcConfig* config, size_t n) { return dgc_allows(*config, n); }
size_t gluon_gc_dgc_capacity(int itemsize, size_t most, int half_values) {
  return with_float(itemsize, [=](auto zero) { return dgc_capacity<decltype(zero)>(most, half_values); });
}
double gluon_gc_dgc_compress(int itemsize, Array gradient, size_t n, double gradient_scale, Array momentum,
                             double mu, Array velocity, const DgcConfig* config, Stream* stream, void* payload,
                             int threads, int isa) {
  return with_float(itemsize, [=](auto zero) {
    using T = decltype(zero);
    const DgcState<T> state{momentum, static_cast<T>(mu), velocity};
    return dgc_compress<T>(gradient, n, gradient_scale, *config, state, *stream, payload, threads, Isa(isa));
  });
}
int gluon_gc_dgc_valid(int itemsize, const void* payload, size_t capacity, size_t n, int half_values,
                       int isa) {
  return with_float(itemsize, [=](auto zero) {
    return dgc_valid<decltype(zero)>(payload, capacity, n, half_values, Isa(isa));
  });
}
void gluon_gc_dgc_decompress_add(int itemsize, const void* payload, size_t, int half_values, Array out, int,
                                 int isa) {
  with_float(itemsize, [=](auto zero) {
    dgc_decompress_add<decltype(zero)>(payload, half_values, out, Isa(isa));
  });
}
void gluon_gc_dgc_decompress_sum(int itemsize, const void* payloads, size_t stride_bytes, size_t count,
                                 size_t n, int half_values, Array out, int threads, int isa) {
  with_float(itemsize, [=](auto zero) {
    dgc_decompress_sum<decltype(zero)>(payloads, stride_bytes, count, n, half_values, out, threads, Isa(isa));
  });
}

void gluon_gc_stream_draw(Stream* stream, size_t n, uint64_t* draws) {
  for (size_t i = 0; i < n; ++i) draws[i] = (*stream)();
}
void gluon_gc_stream_jump(Stream* stream, uint64_t count) { jump(*stream, count); }
void gluon_gc_stream_jump_to_worker(Stream* stream, uint64_t worker) { jump_to_worker(*stream, worker); }

int gluon_gc_values_finite(const void* x, size_t n, int itemsize, int threads, int isa) {
  if (itemsize == sizeof(uint16_t)) return values_finite(static_cast<const uint16_t*>(x), n, threads, Isa(isa));
  return with_float(itemsize, [=](auto zero) {
    return values_finite(static_cast<const decltype(zero)*>(x), n, threads, Isa(isa));
  });
}

void gluon_gc_half_from_float(const float* x, size_t n, float scale, uint16_t* out, int threads, int isa) {
  half_from_float(x, n, scale, out, threads, Isa(isa));
}
void gluon_gc_float_from_half(const uint16_t* x, size_t n, float* out, int threads, int isa) {
  float_from_half(x, n, out, threads, Isa(isa));
}

size_t gluon_gc_frame_words(size_t nbytes) { return frame_words(nbytes); }
void gluon_gc_frame(const uint8_t* payload, size_t nbytes, uint32_t* words, int threads, int isa) {
  frame(payload, nbytes, words, threads, Isa(isa));
}
void gluon_gc_unframe(const uint32_t* words, size_t nbytes, uint8_t* payload, int threads, int isa) {
  unframe(words, nbytes, payload, threads, Isa(isa));
}
int gluon_gc_framed(const uint32_t* words, size_t n, int isa) { return framed(words, n, Isa(isa)); }

float gluon_gc_limit_sum(const float* a, size_t n, int threads, int isa) {
  return dispatch(Isa(isa), [&](auto chosen) { return LimitKernels<chosen>::sum(a, n, threads); });
}
void gluon_gc_limit_fill(float* a, size_t n, int threads, int isa) {
  dispatch(Isa(isa), [&](auto chosen) { LimitKernels<chosen>::fill(a, n, threads); });
}
void gluon_gc_limit_copy(const float* a, float* b, size_t n, int threads, int isa) {
  dispatch(Isa(isa), [&](auto chosen) { LimitKernels<chosen>::copy(a, b, n, threads); });
}
void gluon_gc_limit_add_constant(float* a, size_t n, int threads, int isa) {
  dispatch(Isa(isa), [&](auto chosen) { LimitKernels<chosen>::add_constant(a, n, threads); });
}
void gluon_gc_limit_add(float* a, const float* b, size_t n, int threads, int isa) {
  dispatch(Isa(isa), [&](auto chosen) { LimitKernels<chosen>::add(a, b, n, threads); });
}
void gluon_gc_limit_add_twice(float* a, float* b, const float* c, size_t n, int threads, int isa) {
  dispatch(Isa(isa), [&](auto chosen) { LimitKernels<chosen>::add_twice(a, b, c, n, threads); });
}
void gluon_gc_limit_narrow(const uint32_t* a, uint16_t* b, size_t n, int threads, int isa) {
  dispatch(Isa(isa), [&](auto chosen) { LimitKernels<chosen>::narrow(a, b, n, threads); });
}
void gluon_gc_limit_widen(const uint16_t* a, uint32_t* b, size_t n, int threads, int isa) {
  dispatch(Isa(isa), [&](auto chosen) { LimitKernels<chosen>::widen(a, b, n, threads); });
}

}  // extern "C"
#pragma GCC visibility pop
