// The rows of row_sparse arrays.
#pragma once

#include <algorithm>
#include <vector>

#include "../core/row_format.h"
#include "message.h"

namespace gluon_gc {

using Ids = std::vector<std::int64_t>;
using mxnet::ext::MXSparse;

// The rows of a float32 array.
struct Rows {
  explicit Rows(MXTensor& array) : sparse(*array.data<MXSparse>()), width(1) {
    require(array.dtype == mxnet::ext::kFloat32, "rows must be float32");
    for (std::size_t i = 1; i < array.shape.size(); ++i) width *= static_cast<std::size_t>(array.shape[i]);
  }

  std::size_t count() const { return static_cast<std::size_t>(sparse.indices_len); }
  const float* at(std::size_t i) const { return static_cast<const float*>(sparse.data) + i * width; }

  // The bytes of so many with their numbers, in the array and in the list.
  std::size_t traffic(std::size_t rows) const { return rows * (width * sizeof(float) + row_key_bytes + row_id_bytes); }

  const MXSparse& sparse;
  std::size_t width;
};

// In ascending order.
inline Ids each_once(Ids ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

// Makes an output of these rows, which write(i, row) fills; one of zeros if there are none.
template <typename Write>
void write_rows(const Ids& ids, std::size_t width, const OpResource& resource, Write write) {
  MXSparse made;
  resource.alloc_sparse(&made, 0, static_cast<int>(std::max<std::size_t>(1, ids.size())));
  auto* const data = static_cast<float*>(made.data);
  made.indices[0] = 0;
  if (ids.empty()) std::fill(data, data + width, 0.0f);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    made.indices[i] = ids[i];
    write(i, data + i * width);
  }
}

}  // namespace gluon_gc
