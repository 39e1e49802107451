// The GPU versions of the codec operators. codec.cpp documents their inputs and outputs.
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

// The calls for all chunks of a message, with their temporary memory. They are queued together in MXNet's stream.
class Calls {
 public:
  Calls(const Attributes& a, const Chunks& chunks, const OpResource& resource,
        const std::vector<std::size_t>& converted_bytes)
      : chunks_(chunks), stream_(resource.get_cuda_stream()) {
    const std::size_t count = chunks.all.size();
    std::vector<std::size_t> sizes{count * gluon_gc_ticket_bytes};
    for (const Chunk& chunk : chunks.all) sizes.push_back(chunk.needs.workspace_bytes);
    sizes.insert(sizes.end(), converted_bytes.begin(), converted_bytes.end());
    Arena arena(resource, sizes, true);
    std::uint8_t* ticket = arena.take(count * gluon_gc_ticket_bytes);
    check(gluon_gc_clear(ticket, count * gluon_gc_ticket_bytes, stream_));
    for (const Chunk& chunk : chunks.all) {
      gluon_gc_call call = call_for(chunk, common_call(a, arena.take(chunk.needs.workspace_bytes)), nullptr);
      call.stream = stream_;
      call.ticket = ticket;
      ticket += gluon_gc_ticket_bytes;
      all.push_back(call);
    }
    for (const std::size_t bytes : converted_bytes) converted_.push_back(arena.take(bytes));
  }

  Calls(const Attributes& a, const Chunks& chunks, const OpResource& resource, const Slices& slices)
      : Calls(a, chunks, resource, slices.converted_bytes) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i].values = slices.is_half(i) ? converted_[i] : slices.at(i);
      if (slices.is_half(i)) halves_.push_back({slices.at(i), converted_[i], chunks.all[i].n});
    }
  }

  // Makes each call read its chunk's payloads from `count` messages.
  void read_from(MXTensor& messages, std::size_t count) {
    const std::uint8_t* const slots = slots_in(chunks_, messages, count);
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i].payloads = slots + chunks_.all[i].slot;
      all[i].stride = chunks_.payload_bytes;
      all[i].count = count;
    }
  }

  // Makes each call write its payload to a message and its chunk's state.
  void write_to(MXTensor& message, States& states) {
    std::uint8_t* const slots = slots_in(chunks_, message, 1);
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i].payload = slots + chunks_.all[i].slot;
      states.give(chunks_.all[i], all[i]);
    }
  }

  // Queues the conversion of float16 gradients to the calls' float32 values.
  void read_halves() const {
    std::vector<gluon_gc_conversion> all;
    for (const Half& half : halves_) all.push_back({half.gradient, half.values, half.n, 2, 4, 1, nullptr, nullptr});
    convert(all);
  }

  // Queues the conversion of the calls' float32 values, times `scale`, to float16 gradients.
  void write_halves(double scale) const {
    std::vector<gluon_gc_conversion> all;
    for (const Half& half : halves_) all.push_back({half.values, half.gradient, half.n, 4, 2, scale, nullptr, nullptr});
    convert(all);
  }

  std::vector<gluon_gc_call> all;

 private:
  struct Half {
    void *gradient, *values;
    std::size_t n;
  };

  void convert(const std::vector<gluon_gc_conversion>& all) const {
    if (!all.empty()) check(gluon_gc_convert(all.data(), all.size(), stream_));
  }

  const Chunks& chunks_;
  void* const stream_;
  std::vector<void*> converted_;
  std::vector<Half> halves_;
};

}  // namespace

MXReturnValue compress_on_gpu(const Map& map, Tensors* inputs, Tensors* outputs, const OpResource& resource) {
  return guarded([&] {
    const Attributes a(map);
    const Chunks chunks = chunks_on_gpu(a);
    const std::size_t state_count = a.size("states");
    States states(a, chunks, *inputs, 0, state_count);
    Calls calls(a, chunks, resource, Slices(a, chunks, *inputs, sets_of_states(a) * state_count));
    calls.write_to(outputs->at(0), states);
    const double* const factor = a.flag("clipped") ? inputs->back().data<double>() : nullptr;
    for (gluon_gc_call& call : calls.all) call.factor = factor;
    calls.read_halves();
    check(gluon_gc_compress(calls.all.data(), calls.all.size()));
  });
}

MXReturnValue aggregate_on_gpu(const Map& map, Tensors* inputs, Tensors* outputs, const OpResource& resource) {
  return guarded([&] {
    const Attributes a(map);
    const Chunks chunks = chunks_on_gpu(a);
    Calls calls(a, chunks, resource, std::vector<std::size_t>{});
    calls.read_from(inputs->at(0), a.size("count"));
    States states(a, chunks, *inputs, 1, (inputs->size() - 1) / sets_of_states(a));
    calls.write_to(outputs->at(0), states);
    check(gluon_gc_aggregate(calls.all.data(), calls.all.size()));
  });
}

MXReturnValue decompress_on_gpu(const Map& map, Tensors* inputs, Tensors* outputs, const OpResource& resource) {
  return guarded([&] {
    const Attributes a(map);
    const Chunks chunks = chunks_on_gpu(a);
    Calls calls(a, chunks, resource, Slices(a, chunks, *inputs, 1));
    calls.read_from(inputs->at(0), optional(a, "count", 1));
    gluon_gc_status* status = statuses_in(outputs->at(0));
    for (gluon_gc_call& call : calls.all) call.status = status++;
    check(gluon_gc_decompress(calls.all.data(), calls.all.size()));
    calls.write_halves(a.number("half_scale", 1));
  });
}

}  // namespace gluon_gc
