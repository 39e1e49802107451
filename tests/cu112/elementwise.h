// The MXNet kernels that the tests need, by their mangled names: zeros, ones, a + b and a * scalar.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace {

// Takes the parameters of a launch: pointers to the number of elements, then to each array or scalar.
using Elementwise = void (*)(void** parameters);

template <typename Value>
Value parameter(void** parameters, int i) {
  return *static_cast<Value*>(parameters[i]);
}

template <typename T, int value>
void fill(void** parameters) {
  T* const out = parameter<T*>(parameters, 1);
  for (int i = 0; i < parameter<int>(parameters, 0); ++i) out[i] = value;
}

template <typename T>
void add(void** parameters) {
  T *const out = parameter<T*>(parameters, 1), *const a = parameter<T*>(parameters, 2);
  T* const b = parameter<T*>(parameters, 3);
  for (int i = 0; i < parameter<int>(parameters, 0); ++i) out[i] = a[i] + b[i];
}

template <typename T>
void scale(void** parameters) {
  T *const out = parameter<T*>(parameters, 1), *const a = parameter<T*>(parameters, 2);
  const T factor = parameter<T>(parameters, 3);
  for (int i = 0; i < parameter<int>(parameters, 0); ++i) out[i] = a[i] * factor;
}

// Returns the mangled name of the kernel that writes an operation's result instead of adding it.
std::string name_of(const std::string& operation, const std::string& parameters) {
  return "_ZN5mxnet2op8mxnet_op20mxnet_generic_kernelINS1_11op_with_reqI" + operation + "Li1EEEJ" + parameters +
         "EEEviDpT0_";
}

constexpr const char *zeros = "NS1_10set_to_intILi0EEE", *ones = "NS1_10set_to_intILi1EEE";
constexpr const char *plus = "NS0_10mshadow_op4plusE", *mul = "NS0_10mshadow_op3mulE";

// Returns the kernel of a name, or null if there is none here.
Elementwise elementwise(const char* name) {
  static const std::map<std::string, Elementwise> kernels{
      {name_of(zeros, "Pf"), fill<float, 0>},
      {name_of(zeros, "Pd"), fill<double, 0>},
      {name_of(zeros, "Ph"), fill<std::uint8_t, 0>},
      {name_of(zeros, "Pl"), fill<std::int64_t, 0>},
      {name_of(zeros, "PN7mshadow4half6half_tE"), fill<std::uint16_t, 0>},
      {name_of(ones, "Pf"), fill<float, 1>},
      {name_of(ones, "Pd"), fill<double, 1>},
      {name_of(plus, "PfS7_S7_"), add<float>},
      {name_of(plus, "PdS7_S7_"), add<double>},
      {name_of(mul, "PfS7_f"), scale<float>},
      {name_of(mul, "PdS7_d"), scale<double>},
  };
  const auto found = kernels.find(name);
  return found != kernels.end() ? found->second : nullptr;
}

}  // namespace
