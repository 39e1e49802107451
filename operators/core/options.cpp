#include "core/options.h"

#include <locale.h>
#include <stdlib.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <stdexcept>

namespace gluon_gc {
namespace {

// Reads a number that ends at a comma or at the end of the line, and sets `end` to that place. It uses the locale "C",
// because the program's locale may have another decimal point.
double read_number(const char* name, const char* text, const char** end) {
  static const locale_t plain = newlocale(LC_ALL_MASK, "C", nullptr);
  char* after;
  const double value = strtod_l(text, &after, plain);
  const bool whole = after != text && *text != '\n' && (*after == '\0' || *after == '\n' || *after == ',');
  if (!whole) refuse("%s must be a number, got '%.*s'", name, static_cast<int>(std::strcspn(text, "\n")), text);
  *end = after;
  return value;
}

}  // namespace

void refuse(const char* format, ...) {
  char message[400];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message, sizeof(message), format, arguments);
  va_end(arguments);
  throw std::invalid_argument(message);
}

const char* Options::find(const char* name) const {
  const std::size_t length = std::strlen(name);
  for (const char* line = text_; line != nullptr && *line != '\0';) {
    if (std::strncmp(line, name, length) == 0 && line[length] == '=') return line + length + 1;
    line = std::strchr(line, '\n');
    if (line != nullptr) ++line;
  }
  return nullptr;
}

bool Options::has(const char* name) const { return find(name) != nullptr; }

double Options::number(const char* name) const { return element(name, 0); }

double Options::number(const char* name, double absent) const { return has(name) ? number(name) : absent; }

std::size_t Options::count(const char* name) const {
  const double value = number(name);
  if (!(value >= 0 && value < 0x1p53) || value != static_cast<double>(static_cast<std::size_t>(value))) {
    refuse("%s must be a whole number >= 0, got %g", name, value);
  }
  return static_cast<std::size_t>(value);
}

bool Options::listed(const char* name) const {
  const char* const text = find(name);
  return text != nullptr && text[std::strcspn(text, ",\n")] == ',';
}

double Options::element(const char* name, std::size_t index) const {
  const char* text = find(name);
  if (text == nullptr) refuse("the option %s is missing", name);
  for (;;) {
    const char* end;
    const double value = read_number(name, text, &end);
    if (index-- == 0) return value;
    text = *end == ',' ? end + 1 : end;
  }
}

bool Options::is(const char* name, const char* value) const {
  const char* const text = find(name);
  const std::size_t length = std::strlen(value);
  if (text == nullptr || std::strncmp(text, value, length) != 0) return false;
  return text[length] == '\0' || text[length] == '\n';
}

bool Options::flag(const char* name) const { return is(name, "True") || is(name, "1"); }

std::size_t element_count(double k, std::size_t n) {
  if (!(k > 0)) refuse("k must be > 0, got %g", k);
  const double asked = k < 1 ? k * static_cast<double>(n) : k;
  if (asked >= static_cast<double>(n)) return n;
  return asked < 1 ? 1 : static_cast<std::size_t>(asked);
}

}  // namespace gluon_gc
