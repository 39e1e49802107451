// The chunks of a message and their state. All chunks of a message have the same compressor and options.
#pragma once

#include <algorithm>
#include <memory>

#include "../core/abi.h"
#include "message.h"

namespace gluon_gc {

struct Chunk {
  Chunk(const Attributes& a, gluon_gc_dtype dtype, std::size_t n, int isa = -1) : n(n) {
    gluon_gc_codec* new_codec = nullptr;
    check(gluon_gc_new(a.text("compressor").c_str(), a.text("options").c_str(), n, dtype, isa, &new_codec));
    codec.reset(new_codec);
    gluon_gc_need(new_codec, &needs);
  }

  struct Free {
    void operator()(gluon_gc_codec* codec) const { gluon_gc_free(codec); }
  };

  std::size_t n;
  std::unique_ptr<gluon_gc_codec, Free> codec;
  gluon_gc_needs needs;
  gluon_gc_position position{};
  std::size_t slot = 0;  // offset of the payload among those of its message, each with room for its maximum length
};

// Sets the position of each of `count` chunks in the random stream from the attribute `positions`, if present.
inline void read_positions(const Attributes& a, Chunk* chunks, std::size_t count) {
  if (!a.has("positions")) return;
  const std::vector<std::size_t> words = a.list("positions");
  require(words.size() == 3 * count, "positions must have three numbers for each chunk");
  for (std::size_t i = 0; i < count; ++i) {
    chunks[i].position = {{words[3 * i], words[3 * i + 1]}, words[3 * i + 2]};
  }
}

// Reads the chunks of a message from these attributes:
//
//   compressor, options : arguments of gluon_gc_new
//   dtype : of the codecs
//   sizes : the number of elements of each chunk
//   positions : three numbers a chunk, for compressors that draw: the two words of a gluon_gc_position, and its draws
//   row_words, message_rows : the size of a row, and the maximum rows of a framed message; absent if not framed
struct Chunks {
  // `isa` is an argument of gluon_gc_new.
  explicit Chunks(const Attributes& a, int isa = -1)
      : dtype(a.text("dtype") == "float64" ? gluon_gc_float64 : gluon_gc_float32),
        all(make(a, dtype, isa)),
        framed(a.has("row_words")),
        layout(framed ? Layout(parts(), a) : Layout()) {
    for (Chunk& chunk : all) {
      chunk.slot = payload_bytes;
      payload_bytes += chunk.needs.payload_bytes;
      workspace_bytes = std::max(workspace_bytes, chunk.needs.workspace_bytes);
    }
    read_positions(a, all.data(), all.size());
  }

  // The bytes of a message before it is framed; 0 if it is not framed.
  std::size_t message_bytes() const { return framed ? layout.bytes : 0; }

  gluon_gc_dtype dtype;
  std::vector<Chunk> all;
  bool framed;
  Layout layout;
  std::size_t payload_bytes = 0;    // the sum over all chunks
  std::size_t workspace_bytes = 0;  // the maximum over all chunks

 private:
  static std::vector<Chunk> make(const Attributes& a, gluon_gc_dtype dtype, int isa) {
    std::vector<Chunk> chunks;
    for (const std::size_t n : a.list("sizes")) chunks.emplace_back(a, dtype, n, isa);
    return chunks;
  }

  std::vector<Part> parts() const {
    std::vector<Part> parts;
    for (const Chunk& chunk : all) {
      const bool varies = chunk.needs.length_at >= 0;
      parts.push_back({chunk.needs.payload_bytes, varies,
                       varies ? static_cast<std::size_t>(chunk.needs.length_at) : 0});
    }
    return parts;
  }
};

// The state arrays of a message: momentum, then each array of memory, if the codecs need them. An array holds the
// state of all chunks, one after the other. Each takes whole cache lines, because codecs write states past the caches
// only if they begin with a line.
class StateArrays {
 public:
  // There are `count` arrays, the inputs from `first` on.
  StateArrays(const Chunks& chunks, std::vector<MXTensor>& inputs, std::size_t first, std::size_t count) {
    std::size_t taken = 0;
    for (std::size_t which = 0; which < arrays_of_state; ++which) {
      std::size_t elements = 0;
      for (const Chunk& chunk : chunks.all) elements += size(chunk, which, chunks.dtype);
      if (elements == 0) continue;
      require(taken < count && static_cast<std::size_t>(inputs.at(first + taken).size()) == elements,
              "the size of a state array is not the sum of what its chunks need");
      next[which] = static_cast<char*>(inputs[first + taken++].data_ptr);
    }
    require(taken == count, "there are more state arrays than the chunks need");
  }

  // Returns the state of the next chunk. Must be called once for each chunk, in order.
  gluon_gc_state take(const Chunk& chunk, gluon_gc_dtype dtype) {
    gluon_gc_state state{};
    void** const where[arrays_of_state] = {&state.momentum, &state.memory[0], &state.memory[1]};
    for (std::size_t which = 0; which < arrays_of_state; ++which) {
      *where[which] = next[which];
      if (next[which] != nullptr) next[which] += size(chunk, which, dtype) * dtype;
    }
    return state;
  }

 private:
  static constexpr std::size_t arrays_of_state = 3, cache_line_bytes = 64;

  static std::size_t size(const Chunk& chunk, std::size_t which, gluon_gc_dtype dtype) {
    const std::size_t needed = which == 0 ? chunk.needs.momentum : chunk.needs.memory[which - 1];
    const std::size_t line = cache_line_bytes / dtype;
    return (needed + line - 1) / line * line;
  }

  char* next[arrays_of_state] = {};
};

// How many sets of state arrays an operator has. With the attribute `earlier` there are two: it writes the first one,
// and reads the state before the call from the second one.
inline std::size_t sets_of_states(const Attributes& a) { return 1 + a.flag("earlier"); }

// The states of a message's calls, in the inputs from `first` on: sets_of_states sets of `count` arrays. It must outlive
// the calls.
class States {
 public:
  States(const Attributes& a, const Chunks& chunks, std::vector<MXTensor>& inputs, std::size_t first,
         std::size_t count)
      : dtype_(chunks.dtype), current_(chunks, inputs, first, count) {
    if (!a.flag("earlier")) return;
    StateArrays earlier(chunks, inputs, first + count, count);
    for (const Chunk& chunk : chunks.all) earlier_.push_back(earlier.take(chunk, dtype_));
  }

  // Sets the states of a call. Must be called once for each chunk, in order.
  void give(const Chunk& chunk, gluon_gc_call& call) {
    call.state = current_.take(chunk, dtype_);
    if (!earlier_.empty()) call.earlier = &earlier_.at(given_++);
  }

 private:
  const gluon_gc_dtype dtype_;
  StateArrays current_;
  std::vector<gluon_gc_state> earlier_;
  std::size_t given_ = 0;
};

}  // namespace gluon_gc
