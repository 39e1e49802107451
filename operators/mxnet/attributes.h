// The attributes of an operator call, which MXNet hands over as strings, as typed values.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <unordered_map>

namespace gluon_gc {

class Attributes {
 public:
  using Map = std::unordered_map<std::string, std::string>;

  explicit Attributes(const Map& map) : map_(map) {}

  bool has(const std::string& name) const { return map_.count(name) != 0; }

  std::string text(const std::string& name) const {
    const auto found = map_.find(name);
    if (found == map_.end()) throw std::invalid_argument("attribute " + name + " is missing");
    return found->second;
  }

  // Python writes its floats with the shortest digits that read back exactly.
  double number(const std::string& name) const { return std::stod(text(name)); }
  double number(const std::string& name, double absent) const {
    return has(name) ? number(name) : absent;
  }
  std::size_t size(const std::string& name) const { return std::stoull(text(name)); }
  bool flag(const std::string& name) const {
    return has(name) && (text(name) == "True" || text(name) == "1");
  }

 private:
  const Map& map_;
};

}  // namespace gluon_gc
