// Codecs on GPUs as MXNet operators: codec.cpp says what they are given and make.
//
// The calls for all chunks of a message are queued together, and each has a ticket and a workspace in the memory that
// MXNet hands out for the time of an operator, with anything in it.
#include "gpu.h"

#include "payloads.h"
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

std::size_t float_bytes(const Chunk& chunk) { return Arena::rounded(chunk.n * sizeof(float)); }

// A call for each chunk of a message, and float32 copies of those of its gradients that are float16.
class CallsOnGpu {
 public:
  // `slices`: where the values of the chunks are; null: they have none
  CallsOnGpu(const Attributes& a, const Chunks& chunks, const Slices* slices, const OpResource& resource)
      : all(chunks.all.size()), chunks_(chunks), stream_(resource.get_cuda_stream()) {
    const std::size_t ticket_bytes = chunks.all.size() * gluon_gc_ticket_bytes;
    std::size_t workspace_bytes = 0, copied_bytes = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      workspace_bytes += Arena::rounded(chunks.all[i].needs.workspace_bytes);
      if (slices != nullptr && slices->is_half(i)) copied_bytes += float_bytes(chunks.all[i]);
    }
    Arena arena(resource, {ticket_bytes, workspace_bytes, copied_bytes}, true);
    std::uint8_t* ticket = arena.take(ticket_bytes);
    std::uint8_t* workspace = arena.take(workspace_bytes);
    std::uint8_t* copy = arena.take(copied_bytes);
    check(gluon_gc_prepare(ticket, all.size(), stream_));
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Chunk& chunk = chunks.all[i];
      all[i] = call_for(chunk, common_call(a, workspace), nullptr);
      all[i].stream = stream_;
      all[i].ticket = ticket;
      ticket += gluon_gc_ticket_bytes;
      workspace += Arena::rounded(chunk.needs.workspace_bytes);
      if (slices == nullptr) continue;
      all[i].values = slices->at(i);
      if (slices->is_half(i)) {
        halves_.push_back({slices->at(i), copy, chunk.n, sizeof(std::uint16_t), sizeof(float), 1, nullptr, nullptr});
        all[i].values = copy;
        copy += float_bytes(chunk);
      }
    }
  }

  // Gives each call the payloads that are in `count` messages.
  void read(MXTensor& messages, std::size_t count) {
    const std::uint8_t* const slots = slots_in(chunks_, messages, count);
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i].payloads = slots + chunks_.all[i].slot;
      all[i].stride = chunks_.payload_bytes;
      all[i].count = count;
    }
  }

  // Lets each call write its payload to a message.
  void write(MXTensor& message) {
    std::uint8_t* const slots = slots_in(chunks_, message, 1);
    for (std::size_t i = 0; i < all.size(); ++i) all[i].payload = slots + chunks_.all[i].slot;
  }

  void keep_in(States& states) {
    for (std::size_t i = 0; i < all.size(); ++i) states.give(chunks_.all[i], chunks_.dtype, all[i]);
  }

  // Queues that float16 gradients are copied to float32 arrays.
  void widen() const { check(gluon_gc_convert(halves_.data(), halves_.size(), stream_)); }

  // The other way round.
  void narrow() const {
    std::vector<gluon_gc_conversion> back;
    for (const gluon_gc_conversion& half : halves_) {
      back.push_back({half.to, const_cast<void*>(half.from), half.n, half.to_itemsize, half.from_itemsize, 1, nullptr,
                      nullptr});
    }
    check(gluon_gc_convert(back.data(), back.size(), stream_));
  }

  std::vector<gluon_gc_call> all;

 private:
  const Chunks& chunks_;
  void* const stream_;
  std::vector<gluon_gc_conversion> halves_;
};

}  // namespace

MXReturnValue compress_on_gpu(const Map& map, Tensors* inputs, Tensors* outputs, const OpResource& resource) {
  return guarded([&] {
    const Attributes a(map);
    const Chunks chunks = chunks_on_gpu(a);
    const std::size_t state_count = a.size("states");
    States states(chunks, *inputs, state_count);
    const Slices slices(a, chunks, *inputs, state_count);
    CallsOnGpu calls(a, chunks, &slices, resource);
    calls.keep_in(states);
    calls.write(outputs->at(0));
    if (a.flag("clipped")) {
      for (gluon_gc_call& call : calls.all) call.factor = inputs->back().data<double>();
    }
    calls.widen();
    check(gluon_gc_compress(calls.all.data(), calls.all.size()));
  });
}

MXReturnValue aggregate_on_gpu(const Map& map, Tensors* inputs, Tensors* outputs, const OpResource& resource) {
  return guarded([&] {
    const Attributes a(map);
    const Chunks chunks = chunks_on_gpu(a);
    Tensors state_arrays(inputs->begin() + 1, inputs->end());
    States states(chunks, state_arrays, state_arrays.size());
    CallsOnGpu calls(a, chunks, nullptr, resource);
    calls.keep_in(states);
    calls.read(inputs->at(0), a.size("count"));
    calls.write(outputs->at(0));
    check(gluon_gc_aggregate(calls.all.data(), calls.all.size()));
  });
}

MXReturnValue decompress_on_gpu(const Map& map, Tensors* inputs, Tensors* outputs, const OpResource& resource) {
  return guarded([&] {
    const Attributes a(map);
    const Chunks chunks = chunks_on_gpu(a);
    const Slices slices(a, chunks, *inputs, 1);
    CallsOnGpu calls(a, chunks, &slices, resource);
    calls.read(inputs->at(0), optional(a, "count", 1));
    gluon_gc_status* status = statuses_in(outputs->at(0));
    for (gluon_gc_call& call : calls.all) call.status = status++;
    check(gluon_gc_decompress(calls.all.data(), calls.all.size()));
    calls.narrow();
  });
}

}  // namespace gluon_gc
