// What a compressor's operators are given beside the values: momentum, memory and stream, as input arrays.
#pragma once

#include "compressor.h"

namespace gluon_gc {

inline bool has_memory(const Attributes& a) { return a.has("ef"); }
inline bool has_momentum(const Attributes& a) { return a.has("mu"); }
inline int threads(const Attributes& a) { return static_cast<int>(a.number("threads", 1)); }

// What travels in front of a payload.
template <typename Compressor>
std::size_t header_bytes(const Attributes& a) {
  const bool corrected = a.has("ef") && a.text("ef") == "corrected";
  return corrected && !Compressor::kSummable ? sizeof(double) : 0;
}

template <typename Compressor>
int state_arrays(const Attributes& a) {
  return Compressor::kDraws + has_momentum(a) + (has_memory(a) ? Compressor::kMemory : 0);
}

// The stream as it was before compress, and as it is.
inline Stream* streams(MXTensor& array) {
  require(array.dtype == mxnet::ext::kInt64 && array.size() == 4,
          "the stream must be int64, shape (2, 2)");
  return reinterpret_cast<Stream*>(array.data<std::int64_t>());
}

// The state from input `next` on. Moves the stream on to where compress begins.
template <typename Compressor, typename T>
struct State {
  State(const Attributes& a, std::vector<MXTensor>& inputs, std::size_t next, std::size_t n) {
    if (Compressor::kDraws) {
      stream = streams(inputs.at(next++));
      stream[0] = stream[1];
    }
    for (std::size_t i = next; i < inputs.size(); ++i) {
      require(inputs[i].dtype == dtype_of<T>(), "a state array has another dtype");
    }
    if (has_momentum(a)) {
      require(static_cast<std::size_t>(inputs[next].size()) == n,
              "the momentum has another size than the gradient");
      feedback.momentum = keep(inputs[next++]);
      feedback.mu = static_cast<T>(a.number("mu"));
    }
    if (has_memory(a)) {
      while (next < inputs.size()) memory.push_back(keep(inputs[next++]));
      feedback.memory = memory.data();
    }
  }

  T* keep(MXTensor& array) {
    kept.push_back(&array);
    return array.data<T>();
  }

  void forget() {
    for (MXTensor* array : kept) std::memset(array->data_ptr, 0, array->size() * sizeof(T));
  }

  void compress(const Attributes& a, const T* x, std::size_t n, double ratio,
                std::uint8_t* message) {
    feedback.ratio = static_cast<T>(ratio);
    std::memcpy(message, &ratio, header_bytes<Compressor>(a));
    Stream none{};
    std::uint8_t* const payload = message + header_bytes<Compressor>(a);
    const Compressor compressor(a);
    const double check = compressor.compress(x, n, feedback, stream != nullptr ? stream[1] : none,
                                             payload, threads(a));
    if (!std::isfinite(check)) {
      compressor.template spoil<T>(payload, n);
      forget();
    }
  }

  Stream* stream = nullptr;
  std::vector<MXTensor*> kept;
  std::vector<T*> memory;
  Feedback<T> feedback;
};

}  // namespace gluon_gc
