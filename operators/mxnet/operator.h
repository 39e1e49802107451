// Helpers for registering MXNet operators: memory, shapes, dtypes, and errors that MXNet reports.
#pragma once

#include <cstdint>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "attributes.h"
#include "mxnet/lib_api.h"

namespace gluon_gc {

using mxnet::ext::MXReturnValue;
using mxnet::ext::MXTensor;
using mxnet::ext::OpResource;
using Shape = std::vector<unsigned int>;

inline void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

// Throws the error message that a function of core/abi.h returned, if any.
inline void check(const char* message) {
  if (message != nullptr) throw std::invalid_argument(message);
}

// Runs the body of a callback. An exception becomes the operator's error in MXNet.
template <typename Body>
MXReturnValue guarded(Body&& body) {
  try {
    body();
    return mxnet::ext::MX_SUCCESS;
  } catch (const std::exception& error) {
    MX_ERROR_MSG << "gluon_gc: " << error.what();
    return mxnet::ext::MX_FAIL;
  }
}

// Returns temporary memory, aligned to 64 bytes and valid during the call. A call may ask for it only once. MXNet
// counts the bytes in an int.
inline std::uint8_t* temporary_memory(const OpResource& resource, std::size_t bytes, bool on_gpu = false) {
  constexpr std::size_t alignment = 64, most = std::numeric_limits<int>::max() - alignment;
  require(bytes <= most, "the memory of a call must be at most " + std::to_string(most) + " bytes, got " +
                             std::to_string(bytes) + "; see BYTEPS_PARTITION_BYTES");
  const int wanted = static_cast<int>(bytes + alignment);
  const auto begin = reinterpret_cast<std::uintptr_t>(on_gpu ? resource.alloc_gpu(wanted) : resource.alloc_cpu(wanted));
  return reinterpret_cast<std::uint8_t*>((begin + alignment - 1) / alignment * alignment);
}

// The temporary memory of a call, cut into pieces that are aligned to 64 bytes.
class Arena {
 public:
  Arena(const OpResource& resource, const std::vector<std::size_t>& sizes, bool on_gpu = false) {
    std::size_t bytes = 0;
    for (const std::size_t size : sizes) bytes += rounded(size);
    at_ = temporary_memory(resource, bytes, on_gpu);
  }

  std::uint8_t* take(std::size_t bytes) {
    std::uint8_t* const taken = at_;
    at_ += rounded(bytes);
    return taken;
  }

  static std::size_t rounded(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

 private:
  std::uint8_t* at_;
};

inline std::size_t elements(const Shape& shape) {
  std::size_t n = 1;
  for (unsigned int dimension : shape) n *= dimension;
  return n;
}

// Calls body with a zero of the floating-point type that dtype names.
template <typename Body>
void with_dtype(int dtype, Body&& body) {
  if (dtype == mxnet::ext::kFloat32) return body(float{});
  if (dtype == mxnet::ext::kFloat64) return body(double{});
  throw std::invalid_argument("the dtype must be float32 or float64");
}

inline int bytes_of_float(int dtype) {
  switch (dtype) {
    case mxnet::ext::kFloat16: return 2;
    case mxnet::ext::kFloat32: return 4;
    case mxnet::ext::kFloat64: return 8;
    default: throw std::invalid_argument("the dtype must be float16, float32 or float64");
  }
}

inline int dtype_named(const std::string& name) {
  if (name == "float16") return mxnet::ext::kFloat16;
  if (name == "float32") return mxnet::ext::kFloat32;
  if (name == "float64") return mxnet::ext::kFloat64;
  throw std::invalid_argument("dtype must be float16, float32 or float64, got " + name);
}

// Callbacks of operators with a fixed number of inputs and outputs, and of operators that update one fixed input.
template <int Inputs, int Outputs = 1>
MXReturnValue fixed_arity(const Attributes::Map&, int* inputs, int* outputs) {
  *inputs = Inputs;
  *outputs = Outputs;
  return mxnet::ext::MX_SUCCESS;
}

template <int Input>
MXReturnValue mutates_input(const Attributes::Map&, std::vector<int>* indices) {
  indices->push_back(Input);
  return mxnet::ext::MX_SUCCESS;
}

// Callbacks of operators whose outputs always have one dtype, or one storage type.
template <int Type>
MXReturnValue output_type(const Attributes::Map&, std::vector<int>*, std::vector<int>* out) {
  for (int& type : *out) type = Type;
  return mxnet::ext::MX_SUCCESS;
}

template <int Storage>
MXReturnValue output_storage(const Attributes::Map&, std::vector<int>*, std::vector<int>* out) {
  for (int& storage : *out) storage = Storage;
  return mxnet::ext::MX_SUCCESS;
}

inline mxnet::ext::CustomOp& add_operator(const std::string& name) {
  const auto& kept = *new std::string(name);  // the registry keeps the pointer forever
  return mxnet::ext::Registry<mxnet::ext::CustomOp>::get()->add(kept.c_str());
}

}  // namespace gluon_gc
