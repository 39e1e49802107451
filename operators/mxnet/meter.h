// What the operators of one chunk did so far, in a float64 array that they update and
// gluon_gc/compression/codec.py reads.
#pragma once

#include <chrono>
#include <cstddef>

namespace gluon_gc {

struct Meter {
  double calls;                             // of compress: the number of the step
  double sent_bytes, received_bytes;        // payloads with what feedback sends before them
  double compress_seconds, compressed_at;   // the latter on the steady clock
  double wait_seconds;                      // from the end of compress to the start of decompress
  double decompress_seconds;
  double nonfinite;                         // results that had a NaN or an infinity

  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  void compressed(double started, std::size_t bytes) {
    compressed_at = now();
    calls += 1;
    sent_bytes += static_cast<double>(bytes);
    compress_seconds += compressed_at - started;
  }

  void decompressed(double started, std::size_t bytes) {
    received_bytes += static_cast<double>(bytes);
    wait_seconds += started - compressed_at;
    decompress_seconds += now() - started;
  }
};

constexpr std::size_t meter_fields = sizeof(Meter) / sizeof(double);

}  // namespace gluon_gc
