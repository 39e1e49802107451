// The attributes of an operator call, which MXNet hands over as strings, as typed values. Each costs Python time,
// so those that stay the same from call to call come in one, `message`, as lines "name=value".
#pragma once

#include <cstddef>
#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace gluon_gc {

class Attributes {
 public:
  using Map = std::unordered_map<std::string, std::string>;

  explicit Attributes(const Map& map) : map_(map) {
    for (const std::string& line : lines("message")) {
      const std::size_t at = line.find('=');
      if (at != std::string::npos) message_.emplace(line.substr(0, at), line.substr(at + 1));
    }
  }

  bool has(const std::string& name) const { return map_.count(name) + message_.count(name) != 0; }

  std::string text(const std::string& name) const {
    for (const Map* map : {&map_, &message_}) {
      const auto found = map->find(name);
      if (found != map->end()) return found->second;
    }
    throw std::invalid_argument("attribute " + name + " is missing");
  }

  // Python writes its floats with the shortest digits that read back exactly.
  double number(const std::string& name) const { return std::stod(text(name)); }
  double number(const std::string& name, double absent) const {
    return has(name) ? number(name) : absent;
  }
  std::size_t size(const std::string& name) const { return std::stoull(text(name)); }
  // Whole numbers, with a comma after each.
  std::vector<std::size_t> list(const std::string& name) const {
    const std::string values = text(name);
    std::vector<std::size_t> list;
    for (const char* at = values.c_str(); *at != '\0';) {
      char* end;
      list.push_back(std::strtoull(at, &end, 10));
      if (*end != ',') throw std::invalid_argument(name + " must be whole numbers, got " + values);
      at = end + 1;
    }
    return list;
  }
  // The lines of a text; none if it is not there.
  std::vector<std::string> lines(const std::string& name) const {
    std::vector<std::string> lines;
    std::istringstream text(has(name) ? this->text(name) : "");
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
  }
  bool flag(const std::string& name) const {
    return has(name) && (text(name) == "True" || text(name) == "1");
  }

 private:
  const Map& map_;
  Map message_;
};

}  // namespace gluon_gc
