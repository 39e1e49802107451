// The options of a codec, as text: "name=value" lines. Compiled once: kernels only call these functions.
#pragma once

#include <cstddef>

namespace gluon_gc {

// Throws std::invalid_argument with a message as of printf.
[[noreturn]] void refuse(const char* format, ...) __attribute__((format(printf, 1, 2)));

// A view of text that outlives it. An option that is there twice has its first value.
class Options {
 public:
  explicit Options(const char* text) : text_(text) {}

  bool has(const char* name) const;

  // Refuses an option that is missing or not a number. Python writes its floats with the shortest digits
  // that read back exactly.
  double number(const char* name) const;
  double number(const char* name, double absent) const;

  // A whole number that is not negative.
  std::size_t count(const char* name) const;

  // Whether an option is there and a list of numbers, with a comma after each.
  bool listed(const char* name) const;

  // Number `index` of a list.
  double element(const char* name, std::size_t index) const;

  // Whether a switch is there and on: True or 1.
  bool flag(const char* name) const;

  // Whether an option is there and has this value.
  bool is(const char* name, const char* value) const;

 private:
  const char* find(const char* name) const;  // its value, or null

  const char* text_;
};

// A share of n (0 < k < 1), of which at least one, or a number of elements, of which at most n.
std::size_t element_count(double k, std::size_t n);

}  // namespace gluon_gc
