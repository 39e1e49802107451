// Reads and writes the rows of row_sparse arrays.
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

  // Bytes on the wire of these rows: values and keys in the array, and ids in the list of rows.
  std::size_t traffic(std::size_t rows) const { return rows * (width * sizeof(float) + row_key_bytes + row_id_bytes); }

  const MXSparse& sparse;
  std::size_t width;
};

// Sorts ids and removes duplicates.
inline Ids each_once(Ids ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

// Makes an output with these rows; write(i, row) fills row ids[i]. Without ids, the output has row 0, of zeros.
template <typename Write>
void write_rows(const Ids& ids, std::size_t width, const OpResource& resource, Write write) {
  MXSparse output;
  resource.alloc_sparse(&output, 0, static_cast<int>(std::max<std::size_t>(1, ids.size())));
  auto* const data = static_cast<float*>(output.data);
  output.indices[0] = 0;
  if (ids.empty()) std::fill(data, data + width, 0.0f);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    output.indices[i] = ids[i];
    write(i, data + i * width);
  }
}

}  // namespace gluon_gc
