// Codecs on GPUs as MXNet operators: codec.cpp says what they are given and make.
//
// A message's chunks are queued in one stream, so that they share a workspace, which MXNet hands out with anything
// in it.
#include "gpu.h"

#include "slices.h"

namespace gluon_gc {
namespace {

using Map = Attributes::Map;
using Tensors = std::vector<MXTensor>;

Chunks chunks_on_gpu(const Attributes& a) {
  require(!a.has("row_words"), "messages are not framed on a GPU");
  require(!metered(a), "there is no meter on a GPU: metered must be 0");
  return Chunks(a, gluon_gc_cuda);
}

// Of arrays of gradients, float16 ones excepted.
Slices slices_on_gpu(const Attributes& a, const Chunks& chunks, Tensors& inputs, std::size_t first) {
  Slices slices(a, chunks, inputs, first);
  require(slices.converted_bytes == 0, "a gradient is float16, which is not compressed on a GPU");
  return slices;
}

// What calls for all chunks have alike, with a workspace that is ready for them.
gluon_gc_call common_call_on_gpu(const Attributes& a, const Chunks& chunks, const OpResource& resource) {
  gluon_gc_call common = common_call(a, temporary_memory(resource, chunks.workspace_bytes, true));
  common.stream = resource.get_cuda_stream();
  check(gluon_gc_prepare(common.workspace, common.stream));
  return common;
}

std::uint8_t* bytes_of(MXTensor& array) { return static_cast<std::uint8_t*>(array.data_ptr); }

// `count` messages, as payloads that are side by side.
const std::uint8_t* received(const Chunks& chunks, MXTensor& messages, std::size_t count) {
  const std::size_t itemsize = messages.dtype == mxnet::ext::kUint8 ? 1 : chunks.dtype;
  require(static_cast<std::size_t>(messages.size()) * itemsize == count * chunks.payload_bytes,
          "the payloads are not of the length that their chunks need");
  return bytes_of(messages);
}

// Has a call read a chunk's payload of each of `count` messages.
void give_payloads(const Chunks& chunks, const Chunk& chunk, const std::uint8_t* messages, std::size_t count,
                   gluon_gc_call& call) {
  call.payloads = messages + chunk.slot;
  call.stride = chunks.payload_bytes;
  call.count = count;
}

}  // namespace

MXReturnValue compress_on_gpu(const Map& map, Tensors* inputs, Tensors* outputs, const OpResource& resource) {
  return guarded([&] {
    const Attributes a(map);
    const Chunks chunks = chunks_on_gpu(a);
    const std::size_t state_count = a.size("states");
    States states(chunks, *inputs, state_count);
    const Slices slices = slices_on_gpu(a, chunks, *inputs, state_count);
    gluon_gc_call common = common_call_on_gpu(a, chunks, resource);
    if (a.flag("clipped")) common.factor = inputs->back().data<double>();
    for (std::size_t i = 0; i < chunks.all.size(); ++i) {
      const Chunk& chunk = chunks.all[i];
      gluon_gc_call call = call_for(chunk, common, nullptr);
      call.values = slices.at(i);
      call.payload = bytes_of(outputs->at(0)) + chunk.slot;
      states.give(chunk, chunks.dtype, call);
      check(gluon_gc_compress(chunk.codec.get(), &call));
    }
  });
}

MXReturnValue aggregate_on_gpu(const Map& map, Tensors* inputs, Tensors* outputs, const OpResource& resource) {
  return guarded([&] {
    const Attributes a(map);
    const Chunks chunks = chunks_on_gpu(a);
    const std::size_t count = a.size("count");
    const std::uint8_t* const messages = received(chunks, inputs->at(0), count);
    Tensors state_arrays(inputs->begin() + 1, inputs->end());
    States states(chunks, state_arrays, state_arrays.size());
    const gluon_gc_call common = common_call_on_gpu(a, chunks, resource);
    for (const Chunk& chunk : chunks.all) {
      gluon_gc_call call = call_for(chunk, common, nullptr);
      give_payloads(chunks, chunk, messages, count, call);
      call.payload = bytes_of(outputs->at(0)) + chunk.slot;
      states.give(chunk, chunks.dtype, call);
      check(gluon_gc_aggregate(chunk.codec.get(), &call));
    }
  });
}

MXReturnValue decompress_on_gpu(const Map& map, Tensors* inputs, Tensors* outputs, const OpResource& resource) {
  return guarded([&] {
    const Attributes a(map);
    const Chunks chunks = chunks_on_gpu(a);
    const std::size_t count = optional(a, "count", 1);
    const std::uint8_t* const messages = received(chunks, inputs->at(0), count);
    const Slices slices = slices_on_gpu(a, chunks, *inputs, 1);
    gluon_gc_status* const statuses = statuses_in(outputs->at(0));
    const gluon_gc_call common = common_call_on_gpu(a, chunks, resource);
    for (std::size_t i = 0; i < chunks.all.size(); ++i) {
      const Chunk& chunk = chunks.all[i];
      gluon_gc_call call = call_for(chunk, common, statuses + i);
      give_payloads(chunks, chunk, messages, count, call);
      call.values = slices.at(i);
      check(gluon_gc_decompress(chunk.codec.get(), &call));
    }
  });
}

}  // namespace gluon_gc
