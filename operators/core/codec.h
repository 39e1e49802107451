// The interface that a compressor implements.
//
// A compressor turns n elements of type T, float or double, into a payload: the bytes that are sent. It is one source
// file in compressors/, or compressors/FILE/FILE.cpp with headers beside it. It has the CPU kernels and a class of the
// form below. C(p) is the payload of elements p, and D(payload) are the decoded elements. With error feedback, p
// contains the residual: the part of the elements that the previous compression lost. abi.h describes a step of
// training.
//
//   struct NAME {
//     static constexpr Traits traits;
//
//     // Throws an exception, by refuse() in options.h, if the options are invalid or do not fit n elements.
//     NAME(const Options&, std::size_t n);
//
//     // Returns the sizes of the memory that calls need.
//     template <typename T> Needs needs() const;
//
//     // Writes C(p), and every element of momentum and memory. Returns false if an element of p is NaN or infinite.
//     template <typename T> bool compress(const Encoding<T>&) const;
//
//     // Makes a payload decode to a NaN or an infinity. Called after compress returned false.
//     template <typename T> void spoil(std::uint8_t* payload) const;
//
//     // Whether a valid payload decodes to finite elements only.
//     template <typename T> bool finite(const std::uint8_t* payload) const;
//
//     // Whether the payload is well-formed. It came from the network, and only `capacity` bytes can be read.
//     template <typename T> bool valid(const std::uint8_t* payload, std::size_t capacity) const;
//
//     // Decodes and sums payloads, which are all valid.
//     template <typename T> void decompress(const Decoding<T>&) const;
//
//     // Optional: does decompress and then compress, but faster. `out` of the payloads is the gradient; at least one is
//     // given.
//     template <typename T> bool aggregate(const Decoding<T>&, const Encoding<T>&) const;
//
//     // For checkpoints: writes the residual, n elements, that `memory` stores; and sets `memory` from a residual.
//     template <typename T> void residual(T* const* memory, T* out) const;
//     template <typename T> void restore(const T* residual, T* const* memory) const;
//   };
//   GLUON_GC_COMPRESSOR(file, NAME)  // file: the name of the source file without .cpp
//
// abi_codec.h calls these functions. CMake compiles the compressor's source file once for each instruction set (isa.h),
// and makes the registry from the files in compressors/.
//
// Two rules hold for every compressor. A call allocates no memory. Its results have the same bits for every instruction
// set and every number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/feedback.h"
#include "core/isa.h"
#include "core/options.h"
#include "core/stream.h"

namespace gluon_gc {

// The maximum number of arrays for the state of error feedback. Each compressor decides in which form it stores the
// residual there.
constexpr std::size_t max_memory = 2;

// Properties of a compressor.
struct Traits {
  bool draws = false;        // It draws from the random stream.
  bool draws_alike = false;  // All workers and servers draw the same numbers; decompress draws them again.
  bool summable = false;     // A payload is an array of T, and D(a + b) = D(a) + D(b).
  bool variable = false;     // A payload begins with its own length in bytes, a uint32. abi_codec.h may put a header
                             // before it, so in abi.h the length is at gluon_gc_needs.length_at.
  bool accumulates = false;  // It applies momentum itself, and accumulates the elements that it does not send.
};

// Sizes of the memory that calls need.
struct Needs {
  std::size_t payload_bytes;       // largest size of a payload
  std::size_t memory[max_memory];  // elements of T in each array of error-feedback state; initially zeros
  std::size_t workspace_bytes;     // scratch memory of a call; uninitialised, aligned to 64 bytes
  std::uint64_t draws;             // draws that one call of compress takes from the random stream
};

// The arguments of compress. The elements to encode are p:
//   g = gradient * gradient_scale
//   m = mu m + g,  g = g + mu m      if `momentum` is not null
//   p = g + residual_factor e        if memory[0] is not null; e is the residual
// m and e on the right are the earlier ones. Afterwards e = p - D(payload). correction.h computes p inside the
// compressor's loop over the elements (the sweep). A compressor with Traits::accumulates has its own formulas instead.
template <typename T>
struct Encoding {
  [[gnu::always_inline]] FeedbackState<T> feedback() const {
    return {earlier_momentum, momentum, mu, earlier_memory[0], memory[0], residual_factor};
  }

  const T* gradient;
  T gradient_scale;
  const T* earlier_momentum;            // the momentum before the call
  T* momentum;                          // output: n elements; null: no momentum. It may be earlier_momentum
  T mu;
  const T* earlier_memory[max_memory];  // the memory before the call
  T* memory[max_memory];  // output: arrays of the sizes in Needs; memory[0] is null without error feedback. They may be
                          // earlier_memory; if not, their contents before the call are undefined
  T residual_factor;      // r in abi.h: ef_decay, and with ef "corrected" times a ratio of learning rates
                          // (gluon_gc_call.ratio in compress, the ratio in the payloads in aggregate)
  Stream stream;          // the random stream, at the position where this call starts to draw
  std::uint8_t* payload;  // output; payload_bytes of memory
  void* workspace;
  int threads;            // largest number of threads
};

// The arguments of decompress: out = D(payload 0) + D(payload 1) + ..., added in this order, in T; with `add`,
// out += D(payload 0), then out += D(payload 1), ...
template <typename T>
struct Decoding {
  [[gnu::always_inline]] const std::uint8_t* payload(std::size_t i) const { return payloads + i * stride; }

  const std::uint8_t* payloads;  // payload i is at payloads + i * stride
  std::size_t stride, count;
  Stream stream;                 // the random stream, at the position where compress started to draw
  T* out;                        // n elements
  bool add;
  void* workspace;
  int threads;
};

// The functions of a compressor for T and one instruction set, as pointers. `self` is an object of its class.
template <typename T>
struct Functions {
  Needs (*needs)(const void* self);
  bool (*compress)(const void* self, const Encoding<T>&);
  void (*spoil)(const void* self, std::uint8_t* payload);
  bool (*finite)(const void* self, const std::uint8_t* payload);
  bool (*valid)(const void* self, const std::uint8_t* payload, std::size_t capacity);
  void (*decompress)(const void* self, const Decoding<T>&);
  bool (*aggregate)(const void* self, const Decoding<T>&, const Encoding<T>&);  // or null
  void (*residual)(const void* self, T* const* memory, T* out);
  void (*restore)(const void* self, const T* residual, T* const* memory);
};

namespace {

// Base class of compressors that store the residual itself, n elements, in memory[0].
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

// A compressor for one instruction set.
struct Compressor {
  Traits traits;
  void (*make)(void* self, const Options&, std::size_t n);  // assigns a new object of the class to *self, which has
                                                            // max_compressor_bytes
  Functions<float> of_float;
  Functions<double> of_double;  // null for AVX2 (isa_of_doubles)
};

// The instruction set whose kernels doubles get. With AVX2 the compiler makes slower code of their vectors (vec.h) than
// without.
constexpr Isa isa_of_doubles(Isa isa) { return isa == Isa::avx2 ? Isa::scalar : isa; }

template <typename Kind, typename T, typename = void>
struct Aggregate {
  static constexpr decltype(Functions<T>::aggregate) function = nullptr;
};

template <typename Kind, typename T>
struct Aggregate<Kind, T, std::void_t<decltype(&Kind::template aggregate<T>)>> {
  static bool function(const void* self, const Decoding<T>& payloads, const Encoding<T>& call) {
    return static_cast<const Kind*>(self)->aggregate(payloads, call);
  }
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
      Aggregate<Kind, T>::function,
      [](const void* self, T* const* memory, T* out) { static_cast<const Kind*>(self)->residual(memory, out); },
      [](const void* self, const T* residual, T* const* memory) {
        static_cast<const Kind*>(self)->restore(residual, memory);
      },
  };
}

template <typename Kind, Isa isa>
constexpr Compressor compressor_of() {
  static_assert(sizeof(Kind) <= max_compressor_bytes, "the class is larger than max_compressor_bytes");
  Functions<double> doubles{};
  if constexpr (isa_of_doubles(isa) == isa) doubles = functions_of<Kind, double>();
  return {Kind::traits,
          [](void* self, const Options& options, std::size_t n) { *static_cast<Kind*>(self) = Kind(options, n); },
          functions_of<Kind, float>(), doubles};
}

#define GLUON_GC_JOIN_(a, b) a##_##b
#define GLUON_GC_JOIN(a, b) GLUON_GC_JOIN_(a, b)

// Defines the Compressor of a class, for the instruction set that the file is compiled for. It must be a constant: a
// static constructor would run at start-up, on CPUs that lack the instruction set too.
#define GLUON_GC_COMPRESSOR(name, Kind)                                   \
  extern const Compressor GLUON_GC_JOIN(name, GLUON_GC_ISA);              \
  constexpr Compressor GLUON_GC_JOIN(name, GLUON_GC_ISA) = compressor_of<Kind, Isa::GLUON_GC_ISA>();

namespace cuda {
struct Compressor;
}

// An entry of the registry.
struct Registered {
  const char* name;
  const Compressor* compressor[3];  // by Isa
  const cuda::Compressor* cuda;     // null: it has no CUDA kernels
};

// All compressors, sorted by name. The last entry has the name null. CMakeLists.txt generates it.
extern const Registered registry[];

}  // namespace gluon_gc
