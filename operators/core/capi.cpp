// The C interface to the kernels, for tests and benchmarks; gluon_gc/kernels.py declares it to Python.
// `isa` is a value of gluon_gc::Isa that is at most gluon_gc_best_isa().
#include "core/bytegrad.h"
#include "core/dgc.h"
#include "core/dithering.h"
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

#pragma GCC visibility push(default)
extern "C" {

int gluon_gc_best_isa() { return static_cast<int>(best_isa()); }


size_t gluon_gc_onebit_payload_bytes_f32(size_t n) { return onebit_payload_bytes<float>(n); }
size_t gluon_gc_onebit_payload_bytes_f64(size_t n) { return onebit_payload_bytes<double>(n); }

double gluon_gc_onebit_compress_f32(const float* gradient, size_t n, float gradient_scale, int scaling,
                                    float* momentum, float mu, float* corrected, float* scale, float ratio,
                                    void* payload, int threads, int isa) {
  return onebit_compress<float>(gradient, n, gradient_scale, scaling, {momentum, mu, corrected, scale, ratio},
                                payload, threads, Isa(isa));
}
double gluon_gc_onebit_compress_f64(const double* gradient, size_t n, double gradient_scale, int scaling,
                                    double* momentum, double mu, double* corrected, double* scale,
                                    double ratio, void* payload, int threads, int isa) {
  return onebit_compress<double>(gradient, n, gradient_scale, scaling,
                                 {momentum, mu, corrected, scale, ratio}, payload, threads, Isa(isa));
}

void gluon_gc_onebit_decompress_f32(const void* payload, size_t n, float* out, int threads, int isa) {
  onebit_decompress(payload, n, out, threads, Isa(isa));
}
void gluon_gc_onebit_decompress_f64(const void* payload, size_t n, double* out, int threads, int isa) {
  onebit_decompress(payload, n, out, threads, Isa(isa));
}

void gluon_gc_onebit_decompress_add_f32(const void* payload, size_t n, float* out, int threads, int isa) {
  onebit_decompress_add(payload, n, out, threads, Isa(isa));
}
void gluon_gc_onebit_decompress_add_f64(const void* payload, size_t n, double* out, int threads, int isa) {
  onebit_decompress_add(payload, n, out, threads, Isa(isa));
}

void gluon_gc_onebit_decompress_sum_f32(const void* payloads, size_t stride_bytes, size_t count, size_t n,
                                        float* out, int threads, int isa) {
  onebit_decompress_sum(payloads, stride_bytes, count, n, out, threads, Isa(isa));
}
void gluon_gc_onebit_decompress_sum_f64(const void* payloads, size_t stride_bytes, size_t count, size_t n,
                                        double* out, int threads, int isa) {
  onebit_decompress_sum(payloads, stride_bytes, count, n, out, threads, Isa(isa));
}

void gluon_gc_onebit_residual_f32(const float* corrected, float scale, size_t n, float* residual, int isa) {
  onebit_residual(corrected, scale, n, residual, Isa(isa));
}
void gluon_gc_onebit_residual_f64(const double* corrected, double scale, size_t n, double* residual,
                                  int isa) {
  onebit_residual(corrected, scale, n, residual, Isa(isa));
}

float gluon_gc_randomk_compress_f32(const float* gradient, size_t n, size_t k, float gradient_scale,
                                    float* momentum, float mu, float* residual, float ratio, Stream* stream,
                                    void* payload, int threads, int isa) {
  return randomk_compress<float>(gradient, n, k, gradient_scale, {momentum, mu, residual, ratio}, *stream,
                               payload, threads, Isa(isa));
}
void gluon_gc_randomk_decompress_f32(const void* payload, size_t n, size_t k, const Stream* start,
                                     float* out, int threads, int isa) {
  randomk_decompress(payload, n, k, *start, out, threads, Isa(isa));
}
void gluon_gc_randomk_decompress_add_f32(const void* payload, size_t n, size_t k, const Stream* start,
                                         float* out, int isa) {
  randomk_decompress_add(payload, n, k, *start, out, Isa(isa));
}

double gluon_gc_randomk_compress_f64(const double* gradient, size_t n, size_t k, double gradient_scale,
                                     double* momentum, double mu, double* residual, double ratio,
                                     Stream* stream, void* payload, int threads, int isa) {
  return randomk_compress<double>(gradient, n, k, gradient_scale, {momentum, mu, residual, ratio}, *stream,
                               payload, threads, Isa(isa));
}
void gluon_gc_randomk_decompress_f64(const void* payload, size_t n, size_t k, const Stream* start,
                                     double* out, int threads, int isa) {
  randomk_decompress(payload, n, k, *start, out, threads, Isa(isa));
}
void gluon_gc_randomk_decompress_add_f64(const void* payload, size_t n, size_t k, const Stream* start,
                                         double* out, int isa) {
  randomk_decompress_add(payload, n, k, *start, out, Isa(isa));
}

size_t gluon_gc_topk_payload_bytes_f32(size_t k) { return topk_payload_bytes<float>(k); }
float gluon_gc_topk_compress_f32(const float* gradient, size_t n, size_t k, float gradient_scale,
                                 float* momentum, float mu, float* residual, float ratio, void* payload,
                                 int threads, int isa) {
  return topk_compress<float>(gradient, n, k, gradient_scale, {momentum, mu, residual, ratio}, payload,
                              threads, Isa(isa));
}
int gluon_gc_topk_valid_f32(const void* payload, size_t n, size_t k, int isa) {
  return topk_valid<float>(payload, n, k, Isa(isa));
}
void gluon_gc_topk_decompress_f32(const void* payload, size_t n, size_t k, float* out, int threads,
                                  int isa) {
  topk_decompress(payload, n, k, out, threads, Isa(isa));
}
void gluon_gc_topk_decompress_add_f32(const void* payload, size_t k, float* out, int isa) {
  topk_decompress_add(payload, k, out, Isa(isa));
}
void gluon_gc_topk_decompress_sum_f32(const void* payloads, size_t stride_bytes, size_t count, size_t n,
                                      size_t k, float* out, int threads, int isa) {
  topk_decompress_sum(payloads, stride_bytes, count, n, k, out, threads, Isa(isa));
}

size_t gluon_gc_topk_payload_bytes_f64(size_t k) { return topk_payload_bytes<double>(k); }
double gluon_gc_topk_compress_f64(const double* gradient, size_t n, size_t k, double gradient_scale,
                                  double* momentum, double mu, double* residual, double ratio,
                                  void* payload, int threads, int isa) {
  return topk_compress<double>(gradient, n, k, gradient_scale, {momentum, mu, residual, ratio}, payload,
                              threads, Isa(isa));
}
int gluon_gc_topk_valid_f64(const void* payload, size_t n, size_t k, int isa) {
  return topk_valid<double>(payload, n, k, Isa(isa));
}
void gluon_gc_topk_decompress_f64(const void* payload, size_t n, size_t k, double* out, int threads,
                                  int isa) {
  topk_decompress(payload, n, k, out, threads, Isa(isa));
}
void gluon_gc_topk_decompress_add_f64(const void* payload, size_t k, double* out, int isa) {
  topk_decompress_add(payload, k, out, Isa(isa));
}
void gluon_gc_topk_decompress_sum_f64(const void* payloads, size_t stride_bytes, size_t count, size_t n,
                                      size_t k, double* out, int threads, int isa) {
  topk_decompress_sum(payloads, stride_bytes, count, n, k, out, threads, Isa(isa));
}

void gluon_gc_stream_draw(Stream* stream, size_t n, std::uint64_t* draws) {
  for (size_t i = 0; i < n; ++i) draws[i] = (*stream)();
}
void gluon_gc_stream_jump(Stream* stream, std::uint64_t count) { jump(*stream, count); }
void gluon_gc_stream_jump_to_worker(Stream* stream, std::uint64_t worker) { jump_to_worker(*stream, worker); }

int gluon_gc_dithering_allows(size_t levels, int natural) { return dithering_allows(levels, natural); }

size_t gluon_gc_dithering_capacity_f32(size_t n, size_t levels) {
  return dithering_capacity<float>(n, levels);
}
double gluon_gc_dithering_compress_f32(const float* gradient, size_t n, float gradient_scale,
                                       std::uint32_t levels, int natural, int l2, int fixed_width,
                                       float* momentum, float mu, float* residual, float ratio,
                                       Stream* stream, void* payload, int threads, int isa) {
  const DitheringConfig config{levels, natural != 0, l2 != 0, fixed_width != 0};
  return dithering_compress<float>(gradient, n, gradient_scale, config, {momentum, mu, residual, ratio}, *stream,
                               payload, threads, Isa(isa));
}
int gluon_gc_dithering_valid_f32(const void* payload, size_t capacity, size_t n, std::uint32_t levels,
                                 int natural, int isa) {
  const DitheringConfig config{levels, natural != 0, false, false};
  return dithering_valid<float>(payload, capacity, n, config, Isa(isa));
}
void gluon_gc_dithering_decompress_f32(const void* payload, size_t n, std::uint32_t levels, int natural,
                                       float* out, int threads, int isa) {
  const DitheringConfig config{levels, natural != 0, false, false};
  dithering_decompress(payload, n, config, out, threads, Isa(isa));
}
void gluon_gc_dithering_decompress_add_f32(const void* payload, size_t n, std::uint32_t levels, int natural,
                                           float* out, int threads, int isa) {
  const DitheringConfig config{levels, natural != 0, false, false};
  dithering_decompress_add(payload, n, config, out, threads, Isa(isa));
}
void gluon_gc_dithering_decompress_sum_f32(const void* payloads, size_t stride_bytes, size_t count, size_t n,
                                           std::uint32_t levels, int natural, float* out, int threads,
                                           int isa) {
  const DitheringConfig config{levels, natural != 0, false, false};
  dithering_decompress_sum(payloads, stride_bytes, count, n, config, out, threads, Isa(isa));
}

size_t gluon_gc_dithering_capacity_f64(size_t n, size_t levels) {
  return dithering_capacity<double>(n, levels);
}
double gluon_gc_dithering_compress_f64(const double* gradient, size_t n, double gradient_scale,
                                       std::uint32_t levels, int natural, int l2, int fixed_width,
                                       double* momentum, double mu, double* residual, double ratio,
                                       Stream* stream, void* payload, int threads, int isa) {
  const DitheringConfig config{levels, natural != 0, l2 != 0, fixed_width != 0};
  return dithering_compress<double>(gradient, n, gradient_scale, config, {momentum, mu, residual, ratio}, *stream,
                               payload, threads, Isa(isa));
}
int gluon_gc_dithering_valid_f64(const void* payload, size_t capacity, size_t n, std::uint32_t levels,
                                 int natural, int isa) {
  const DitheringConfig config{levels, natural != 0, false, false};
  return dithering_valid<double>(payload, capacity, n, config, Isa(isa));
}
void gluon_gc_dithering_decompress_f64(const void* payload, size_t n, std::uint32_t levels, int natural,
                                       double* out, int threads, int isa) {
  const DitheringConfig config{levels, natural != 0, false, false};
  dithering_decompress(payload, n, config, out, threads, Isa(isa));
}
void gluon_gc_dithering_decompress_add_f64(const void* payload, size_t n, std::uint32_t levels, int natural,
                                           double* out, int threads, int isa) {
  const DitheringConfig config{levels, natural != 0, false, false};
  dithering_decompress_add(payload, n, config, out, threads, Isa(isa));
}
void gluon_gc_dithering_decompress_sum_f64(const void* payloads, size_t stride_bytes, size_t count, size_t n,
                                           std::uint32_t levels, int natural, double* out, int threads,
                                           int isa) {
  const DitheringConfig config{levels, natural != 0, false, false};
  dithering_decompress_sum(payloads, stride_bytes, count, n, config, out, threads, Isa(isa));
}

size_t gluon_gc_bytegrad_capacity_f32(size_t n) { return bytegrad_capacity<float>(n); }
float gluon_gc_bytegrad_compress_f32(const float* gradient, size_t n, float gradient_scale,
                                     float* momentum, float mu, float* residual, float ratio, void* payload,
                                     int threads, int isa) {
  return bytegrad_compress<float>(gradient, n, gradient_scale, {momentum, mu, residual, ratio}, payload,
                                  threads, Isa(isa));
}
int gluon_gc_bytegrad_valid_f32(const void* payload, size_t capacity, size_t n, int isa) {
  return bytegrad_valid<float>(payload, capacity, n, Isa(isa));
}
void gluon_gc_bytegrad_decompress_f32(const void* payload, size_t n, float* out, int threads, int isa) {
  bytegrad_decompress(payload, n, out, threads, Isa(isa));
}
void gluon_gc_bytegrad_decompress_add_f32(const void* payload, size_t n, float* out, int threads, int isa) {
  bytegrad_decompress_add(payload, n, out, threads, Isa(isa));
}
void gluon_gc_bytegrad_decompress_sum_f32(const void* payloads, size_t stride_bytes, size_t count, size_t n,
                                          float* out, int threads, int isa) {
  bytegrad_decompress_sum(payloads, stride_bytes, count, n, out, threads, Isa(isa));
}

size_t gluon_gc_bytegrad_capacity_f64(size_t n) { return bytegrad_capacity<double>(n); }
double gluon_gc_bytegrad_compress_f64(const double* gradient, size_t n, double gradient_scale,
                                      double* momentum, double mu, double* residual, double ratio,
                                      void* payload, int threads, int isa) {
  return bytegrad_compress<double>(gradient, n, gradient_scale, {momentum, mu, residual, ratio}, payload,
                                   threads, Isa(isa));
}
int gluon_gc_bytegrad_valid_f64(const void* payload, size_t capacity, size_t n, int isa) {
  return bytegrad_valid<double>(payload, capacity, n, Isa(isa));
}
void gluon_gc_bytegrad_decompress_f64(const void* payload, size_t n, double* out, int threads, int isa) {
  bytegrad_decompress(payload, n, out, threads, Isa(isa));
}
void gluon_gc_bytegrad_decompress_add_f64(const void* payload, size_t n, double* out, int threads, int isa) {
  bytegrad_decompress_add(payload, n, out, threads, Isa(isa));
}
void gluon_gc_bytegrad_decompress_sum_f64(const void* payloads, size_t stride_bytes, size_t count, size_t n,
                                          double* out, int threads, int isa) {
  bytegrad_decompress_sum(payloads, stride_bytes, count, n, out, threads, Isa(isa));
}

int gluon_gc_dgc_allows(const DgcConfig* config, size_t n) { return dgc_allows(*config, n); }

size_t gluon_gc_dgc_capacity_f32(size_t most, int half_values) {
  return dgc_capacity<float>(most, half_values);
}
double gluon_gc_dgc_compress_f32(const float* gradient, size_t n, float gradient_scale, const DgcConfig* config,
                                float* momentum, float mu, float* velocity, Stream* stream, void* payload,
                                int threads, int isa) {
  return dgc_compress<float>(gradient, n, gradient_scale, *config, {momentum, mu, velocity}, *stream, payload,
                             threads, Isa(isa));
}
int gluon_gc_dgc_valid_f32(const void* payload, size_t capacity, size_t n, int half_values, int isa) {
  return dgc_valid<float>(payload, capacity, n, half_values, Isa(isa));
}
void gluon_gc_dgc_decompress_f32(const void* payload, size_t n, int half_values, float* out, int threads,
                                 int isa) {
  dgc_decompress(payload, n, half_values, out, threads, Isa(isa));
}
void gluon_gc_dgc_decompress_add_f32(const void* payload, int half_values, float* out, int isa) {
  dgc_decompress_add(payload, half_values, out, Isa(isa));
}
void gluon_gc_dgc_decompress_sum_f32(const void* payloads, size_t stride_bytes, size_t count, size_t n,
                                     int half_values, float* out, int threads, int isa) {
  dgc_decompress_sum(payloads, stride_bytes, count, n, half_values, out, threads, Isa(isa));
}

size_t gluon_gc_dgc_capacity_f64(size_t most, int half_values) {
  return dgc_capacity<double>(most, half_values);
}
double gluon_gc_dgc_compress_f64(const double* gradient, size_t n, double gradient_scale, const DgcConfig* config,
                                double* momentum, double mu, double* velocity, Stream* stream, void* payload,
                                int threads, int isa) {
  return dgc_compress<double>(gradient, n, gradient_scale, *config, {momentum, mu, velocity}, *stream, payload,
                             threads, Isa(isa));
}
int gluon_gc_dgc_valid_f64(const void* payload, size_t capacity, size_t n, int half_values, int isa) {
  return dgc_valid<double>(payload, capacity, n, half_values, Isa(isa));
}
void gluon_gc_dgc_decompress_f64(const void* payload, size_t n, int half_values, double* out, int threads,
                                 int isa) {
  dgc_decompress(payload, n, half_values, out, threads, Isa(isa));
}
void gluon_gc_dgc_decompress_add_f64(const void* payload, int half_values, double* out, int isa) {
  dgc_decompress_add(payload, half_values, out, Isa(isa));
}
void gluon_gc_dgc_decompress_sum_f64(const void* payloads, size_t stride_bytes, size_t count, size_t n,
                                     int half_values, double* out, int threads, int isa) {
  dgc_decompress_sum(payloads, stride_bytes, count, n, half_values, out, threads, Isa(isa));
}

void gluon_gc_half_from_float(const float* x, size_t n, float scale, std::uint16_t* out, int threads,
                              int isa) {
  half_from_float(x, n, scale, out, threads, Isa(isa));
}
void gluon_gc_float_from_half(const std::uint16_t* x, size_t n, float* out, int threads, int isa) {
  float_from_half(x, n, out, threads, Isa(isa));
}

size_t gluon_gc_frame_words(size_t nbytes) { return frame_words(nbytes); }
void gluon_gc_frame(const std::uint8_t* payload, size_t nbytes, std::uint32_t* words, int threads, int isa) {
  frame(payload, nbytes, words, threads, Isa(isa));
}
void gluon_gc_unframe(const std::uint32_t* words, size_t nbytes, std::uint8_t* payload, int threads,
                      int isa) {
  unframe(words, nbytes, payload, threads, Isa(isa));
}
int gluon_gc_framed(const std::uint32_t* words, size_t n, int isa) { return framed(words, n, Isa(isa)); }

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
void gluon_gc_limit_narrow(const std::uint32_t* a, std::uint16_t* b, size_t n, int threads, int isa) {
  dispatch(Isa(isa), [&](auto chosen) { LimitKernels<chosen>::narrow(a, b, n, threads); });
}
void gluon_gc_limit_widen(const std::uint16_t* a, std::uint32_t* b, size_t n, int threads, int isa) {
  dispatch(Isa(isa), [&](auto chosen) { LimitKernels<chosen>::widen(a, b, n, threads); });
}

}  // extern "C"
#pragma GCC visibility pop
