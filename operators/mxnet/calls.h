// Shared by the codec operators: how they fill a gluon_gc_call, and the form of their messages.
//
// With the attribute row_words, messages are framed: row_sparse, from row `row` of `rows` on. Otherwise a message is
// uint8 of shape (payload_bytes,), or with `summable` an array of `dtype` with as many bytes.
#pragma once

#include "chunks.h"

namespace gluon_gc {

inline std::size_t optional(const Attributes& a, const char* name, std::size_t absent) {
  return a.has(name) ? a.size(name) : absent;
}

// Whether the operator has a meter (meter.h).
inline bool metered(const Attributes& a) { return !a.has("metered") || a.flag("metered"); }

constexpr std::size_t status_words = sizeof(gluon_gc_status) / sizeof(std::int64_t);

// The statuses in an int64 array.
inline gluon_gc_status* statuses_in(MXTensor& array) {
  return reinterpret_cast<gluon_gc_status*>(array.data<std::int64_t>());
}

// The fields that the calls for all chunks of a message share.
inline gluon_gc_call common_call(const Attributes& a, void* workspace) {
  gluon_gc_call call{};
  call.scale = a.number("scale", 1);
  call.ratio = a.number("ratio", 1);
  call.workspace = workspace;
  call.threads = static_cast<int>(optional(a, "threads", 1));
  return call;
}

inline gluon_gc_call call_for(const Chunk& chunk, gluon_gc_call common, gluon_gc_status* status) {
  common.codec = chunk.codec.get();
  common.position = chunk.position;
  common.status = status;
  return common;
}

// Callbacks of operators whose inputs are `arrays` arrays of messages and a meter, which they update.
inline MXReturnValue reader_arity(const Attributes::Map& map, int* inputs, int* outputs) {
  return guarded([&] {
    *inputs = static_cast<int>(Attributes(map).size("arrays") + 1);
    *outputs = 1;
  });
}

inline MXReturnValue reader_mutates(const Attributes::Map& map, std::vector<int>* indices) {
  return guarded([&] { indices->push_back(static_cast<int>(Attributes(map).size("arrays"))); });
}

inline MXReturnValue message_type(const Attributes::Map& map, std::vector<int>*, std::vector<int>* out) {
  return guarded([&] {
    const Attributes a(map);
    out->at(0) = a.flag("summable")     ? dtype_named(a.text("dtype"))
                 : a.has("row_words") ? mxnet::ext::kFloat32
                                        : mxnet::ext::kUint8;
  });
}

inline MXReturnValue message_storage(const Attributes::Map& map, std::vector<int>*, std::vector<int>* out) {
  out->at(0) = Attributes(map).has("row_words") ? mxnet::ext::kRowSparseStorage : mxnet::ext::kDefaultStorage;
  return mxnet::ext::MX_SUCCESS;
}

inline MXReturnValue message_shape(const Attributes::Map& map, std::vector<Shape>*, std::vector<Shape>* out) {
  return guarded([&] {
    const Attributes a(map);
    if (a.has("row_words")) {
      out->at(0) = {static_cast<unsigned int>(a.size("rows")), static_cast<unsigned int>(a.size("row_words"))};
    } else {
      const std::size_t itemsize = !a.flag("summable") ? 1 : a.text("dtype") == "float64" ? 8 : 4;
      out->at(0) = {static_cast<unsigned int>(a.size("payload_bytes") / itemsize)};
    }
  });
}

}  // namespace gluon_gc
