// Typed access to the attributes of an operator call, which MXNet passes as strings. Each attribute costs Python time,
// so most of them are lines "name=value" in one attribute, `message`.
#pragma once

#include <charconv>
#include <cstddef>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace gluon_gc {

class Attributes {
 public:
  using Map = std::unordered_map<std::string, std::string>;

  explicit Attributes(const Map& map) : map_(map) {
    const auto message = map.find("message");
    if (message != map.end()) message_ = message->second;
  }

  bool has(const std::string& name) const { return find(name).data() != nullptr; }

  std::string text(const std::string& name) const { return std::string(given(name)); }

  // Exact, because Python writes the shortest digits that read back as the same float.
  double number(const std::string& name) const { return std::stod(text(name)); }
  double number(const std::string& name, double absent) const {
    return has(name) ? number(name) : absent;
  }
  std::size_t size(const std::string& name) const { return std::stoull(text(name)); }
  // A list of whole numbers, each followed by a comma.
  std::vector<std::size_t> list(const std::string& name) const {
    const std::string_view values = given(name);
    std::vector<std::size_t> list;
    for (const char *at = values.begin(), *end = values.end(); at != end;) {
      std::size_t value;
      const auto [next, error] = std::from_chars(at, end, value);
      if (error != std::errc() || next == end || *next != ',') {
        throw std::invalid_argument(name + " must be whole numbers, got " + text(name));
      }
      list.push_back(value);
      at = next + 1;
    }
    return list;
  }
  // The lines of a text. Empty if the attribute is missing.
  std::vector<std::string> lines(const std::string& name) const {
    std::vector<std::string> lines;
    std::istringstream text{std::string(find(name))};
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
  }
  bool flag(const std::string& name) const {
    const std::string_view value = find(name);
    return value == "True" || value == "1";
  }

 private:
  std::string_view given(const std::string& name) const {
    const std::string_view value = find(name);
    if (value.data() == nullptr) throw std::invalid_argument("attribute " + name + " is missing");
    return value;
  }

  // Returns a null view if the attribute is missing. Nothing is copied, because MXNet asks for the same few attributes
  // five times a call.
  std::string_view find(const std::string& name) const {
    const auto found = map_.find(name);
    if (found != map_.end()) return found->second;
    for (std::size_t at = message_.find(name); at != message_.npos; at = message_.find(name, at + 1)) {
      const std::size_t end = at + name.size();
      const bool starts_line = at == 0 || message_[at - 1] == '\n';
      if (starts_line && end < message_.size() && message_[end] == '=') {
        return message_.substr(end + 1, message_.find('\n', end) - end - 1);
      }
    }
    return {};
  }

  const Map& map_;
  std::string_view message_;
};

}  // namespace gluon_gc
