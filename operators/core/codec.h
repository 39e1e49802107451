// What a compressor supplies, and the codec that is made of it.
//
// A compressor is one file of compressors/: its kernels, and a class over them, for float and double as T:
//
//   struct NAME {
//     static constexpr Traits traits;
//     NAME(const Options&, std::size_t n);                     // refuses what does not fit n elements
//     template <typename T> Needs needs() const;
//     template <typename T> bool compress(const Encoding<T>&) const;     // false: an element is not finite
//     template <typename T> void spoil(std::uint8_t* payload) const;     // makes it not finite
//     template <typename T> bool finite(const std::uint8_t* payload) const;
//     template <typename T> bool valid(const std::uint8_t* payload, std::size_t capacity) const;
//     template <typename T> void decompress(const Decoding<T>&) const;   // of payloads that are valid
//     template <typename T> void residual(T* const* memory, T* out) const;
//     template <typename T> void restore(const T* residual, T* const* memory) const;
//   };
//   GLUON_GC_COMPRESSOR(NAME of the file, NAME)
//
// The file is compiled once for each instruction set (see isa.h); the registry is made of the files that are
// there. Whatever a compressor is given, a call allocates nothing, and its result is the same bits for every
// instruction set and number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/feedback.h"
#include "core/isa.h"
#include "core/options.h"
#include "core/stream.h"

namespace gluon_gc {

constexpr std::size_t max_memory = 2;

struct Traits {
  bool draws = false;        // from the random stream
  bool alike = false;        // all nodes draw the same, and decompress does too
  bool summable = false;     // a payload is an array of T, and that of a sum is the sum of payloads
  bool variable = false;     // a payload begins with its length in bytes, a uint32
  bool accumulates = false;  // keeps what it does not send, and applies momentum, by itself
};

// What a codec needs.
struct Needs {
  std::size_t payload_bytes;          // at most
  std::size_t memory[max_memory];     // elements of T of each array that feedback keeps; zeros to begin with
  std::size_t workspace_bytes;        // uninitialised, for any call, aligned to 64 bytes
  std::uint64_t draws;                // that a call of compress takes
};

// What compress is given. p is g = gradient * gradient_scale after momentum and feedback.
template <typename T>
struct Encoding {
  [[gnu::always_inline]] FeedbackState<T> feedback() const { return {momentum, mu, memory[0], ratio}; }

  const T* gradient;
  T gradient_scale;
  T* momentum;            // n, or null
  T mu;
  T* memory[max_memory];  // as Needs has it, or null: no feedback
  T ratio;                // multiplies the residual
  Stream stream;
  std::uint8_t* payload;
  void* workspace;
  int threads;
};

// out = D(payload 0) + D(payload 1) + ..., added in that order in T, or with `add` out += that. Payload i is
// at payloads + i * stride.
template <typename T>
struct Decoding {
  [[gnu::always_inline]] const std::uint8_t* payload(std::size_t i) const { return payloads + i * stride; }

  const std::uint8_t* payloads;
  std::size_t stride, count;
  Stream stream;  // as compress had it
  T* out;
  bool add;
  void* workspace;
  int threads;
};

// A compressor's functions for T, of one instruction set, without its type.
template <typename T>
struct Functions {
  Needs (*needs)(const void* self);
  bool (*compress)(const void* self, const Encoding<T>&);
  void (*spoil)(const void* self, std::uint8_t* payload);
  bool (*finite)(const void* self, const std::uint8_t* payload);
  bool (*valid)(const void* self, const std::uint8_t* payload, std::size_t capacity);
  void (*decompress)(const void* self, const Decoding<T>&);
  void (*residual)(const void* self, T* const* memory, T* out);
  void (*restore)(const void* self, const T* residual, T* const* memory);
};

namespace {

// Base of a compressor of n elements whose memory is the residual.
struct KeepsResidual {
  template <typename T>
  void residual(T* const* memory, T* out) const {
    copy(memory[0], out);
  }

  template <typename T>
  void restore(const T* residual, T* const* memory) const {
    copy(residual, memory[0]);
  }

  template <typename T>
  void copy(const T* from, T* to) const {
    if (n != 0 && from != to) __builtin_memcpy(to, from, n * sizeof(T));
  }

  std::size_t n;
};

}  // namespace

constexpr std::size_t max_compressor_bytes = 256;

struct Compressor {
  Traits traits;
  void (*make)(void* self, const Options&, std::size_t n);  // in max_compressor_bytes
  Functions<float> of_float;
  Functions<double> of_double;
};

template <typename Kind, typename T>
constexpr Functions<T> functions_of() {
  return {
      [](const void* self) { return static_cast<const Kind*>(self)->template needs<T>(); },
      [](const void* self, const Encoding<T>& call) { return static_cast<const Kind*>(self)->compress(call); },
      [](const void* self, std::uint8_t* payload) {
        static_cast<const Kind*>(self)->template spoil<T>(payload);
      },
      [](const void* self, const std::uint8_t* payload) {
        return static_cast<const Kind*>(self)->template finite<T>(payload);
      },
      [](const void* self, const std::uint8_t* payload, std::size_t capacity) {
        return static_cast<const Kind*>(self)->template valid<T>(payload, capacity);
      },
      [](const void* self, const Decoding<T>& call) { static_cast<const Kind*>(self)->decompress(call); },
      [](const void* self, T* const* memory, T* out) { static_cast<const Kind*>(self)->residual(memory, out); },
      [](const void* self, const T* residual, T* const* memory) {
        static_cast<const Kind*>(self)->restore(residual, memory);
      },
  };
}

template <typename Kind>
constexpr Compressor compressor_of() {
  static_assert(sizeof(Kind) <= max_compressor_bytes, "codecs have no room for it");
  return {Kind::traits,
          [](void* self, const Options& options, std::size_t n) { *static_cast<Kind*>(self) = Kind(options, n); },
          functions_of<Kind, float>(), functions_of<Kind, double>()};
}

#define GLUON_GC_JOIN_(a, b) a##_##b
#define GLUON_GC_JOIN(a, b) GLUON_GC_JOIN_(a, b)

// Makes a class a compressor of the instruction set that is compiled for, as a constant: a constructor at
// start-up would run on machines that lack it.
#define GLUON_GC_COMPRESSOR(name, Kind)                                   \
  extern const Compressor GLUON_GC_JOIN(name, GLUON_GC_ISA);              \
  constexpr Compressor GLUON_GC_JOIN(name, GLUON_GC_ISA) = compressor_of<Kind>();

namespace cuda {
struct Compressor;
}

// A compressor by its name, for each instruction set, and for the GPU if it has kernels for it.
struct Registered {
  const char* name;
  const Compressor* compressor[3];
  const cuda::Compressor* cuda;
};

// In the order of the names, ended by one without a name. CMakeLists.txt writes it.
extern const Registered registry[];

}  // namespace gluon_gc
