// The messages of row-sparse gradients: the row numbers come before the values of the rows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gluon_gc {

constexpr std::size_t row_id_bytes = sizeof(std::uint32_t);  // a row number

// The size of a list of rows:  [its own length in bytes: uint32] [row numbers, ascending: uint32 each]
constexpr std::size_t row_list_bytes(std::size_t rows) { return sizeof(std::uint32_t) + rows * row_id_bytes; }

// The number of bytes before the payload in a message of compressed rows:
//   [its own length in bytes: uint32] [number of rows: uint32] [row numbers, ascending: uint32 each] [payload]
constexpr std::size_t rows_head_bytes(std::size_t rows) { return 2 * sizeof(std::uint32_t) + rows * row_id_bytes; }

}  // namespace gluon_gc
