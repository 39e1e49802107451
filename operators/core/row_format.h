// How rows of a tensor travel: the numbers of the rows in front of their values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gluon_gc {

constexpr std::size_t row_id_bytes = sizeof(std::uint32_t);  // of a row's number

// A list of rows has its own length in bytes as a uint32, and then the number of each row, ascending.
constexpr std::size_t row_list_bytes(std::size_t rows) { return sizeof(std::uint32_t) + rows * row_id_bytes; }

// A message of compressed rows has its own length in bytes and the number of rows, each as a uint32, the number of each
// row, ascending, and then the payload. Returns the bytes in front of the payload.
constexpr std::size_t rows_head_bytes(std::size_t rows) { return 2 * sizeof(std::uint32_t) + rows * row_id_bytes; }

}  // namespace gluon_gc
