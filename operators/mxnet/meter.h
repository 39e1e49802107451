// Counters of the operators of one message, in a float64 array. The operators update it, and
// gluon_gc/mxnet/engine/operators.py reads it. Times are in seconds of the steady clock.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "operator.h"

namespace gluon_gc {

// For uncompressed messages, "compress" means fuse and "decompress" means defuse.
struct Meter {
  // The message in one step, from the start of compress to the end of decompress.
  struct Span {
    double step, begin, end;
  };

  static constexpr std::size_t kept_spans = 64;

  double calls;                             // of compress
  double sent_bytes, received_bytes;        // framed rows, or the bytes of payloads that are in use
  double compress_seconds, compressed_at;   // compressed_at: the end of the latest compress
  double wait_seconds;                      // from the end of compress to the start of decompress
  double decompress_seconds;
  double nonfinite;                         // results with a NaN or an infinity
  Span spans[kept_spans];                   // call i of compress is at i % kept_spans

  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  // `step` is the number of the exchange, or 0 if it is not counted.
  void compressed(double started, std::size_t bytes, std::size_t step) {
    compressed_at = now();
    calls += 1;
    latest() = {static_cast<double>(step), started, started};
    sent_bytes += static_cast<double>(bytes);
    compress_seconds += compressed_at - started;
  }

  void decompressed(double started, std::size_t bytes) {
    received_bytes += static_cast<double>(bytes);
    wait_seconds += started - compressed_at;
    latest().end = now();
    decompress_seconds += latest().end - started;
  }

  // The error message for a result with a NaN or an infinity.
  std::string refusal(const std::string& name) const {
    return name + " has a NaN or an infinity in step " + std::to_string(static_cast<std::size_t>(calls));
  }

 private:
  Span& latest() { return spans[static_cast<std::size_t>(calls) % kept_spans]; }
};

constexpr std::size_t meter_fields = sizeof(Meter) / sizeof(double);

// The shape callback of operators whose output is the meter.
inline MXReturnValue meter_shape(const Attributes::Map&, std::vector<Shape>*, std::vector<Shape>* out) {
  out->at(0) = {meter_fields};
  return mxnet::ext::MX_SUCCESS;
}

inline Meter& meter(MXTensor& array) {
  require(array.dtype == mxnet::ext::kFloat64 && static_cast<std::size_t>(array.size()) == meter_fields,
          "the meter must be float64, shape (" + std::to_string(meter_fields) + ",)");
  return *reinterpret_cast<Meter*>(array.data<double>());
}

}  // namespace gluon_gc
