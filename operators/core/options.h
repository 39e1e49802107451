// The options of a codec, as text: lines of the form "name=value".
//
// These functions are not inline, so that kernel sources, which are compiled once per instruction set, share them.
#pragma once

#include <cstddef>

namespace gluon_gc {

// Throws std::invalid_argument. The message is formatted as by printf.
[[noreturn]] void refuse(const char* format, ...) __attribute__((format(printf, 1, 2)));

// A parser of the text, which it does not copy: the text must outlive it. The first of two equal names wins.
class Options {
 public:
  explicit Options(const char* text) : text_(text) {}

  bool has(const char* name) const;

  // The value as a number. Refuses an option that is missing or not a number. The second form returns `absent` for a
  // missing option. Python writes a float with the shortest digits that read back to the same float.
  double number(const char* name) const;
  double number(const char* name, double absent) const;

  // The value as a whole number >= 0.
  std::size_t count(const char* name) const;

  // Whether the value is a list: numbers with a comma after each.
  bool listed(const char* name) const;

  // Element `index` of a list, from 0.
  double element(const char* name, std::size_t index) const;

  // Whether the value is True or 1; false for a missing option.
  bool flag(const char* name) const;

  // Whether the option has this value; false for a missing option.
  bool is(const char* name, const char* value) const;

 private:
  const char* find(const char* name) const;  // the value, or null

  const char* text_;
};

// The number of elements that k stands for. k < 1 is a share of n: max(1, floor(k n)). k >= 1 is a number: min(k, n).
std::size_t element_count(double k, std::size_t n);

}  // namespace gluon_gc
