// MXNet operators on the host that convert between payloads of a GPU, which lie side by side in slots, and messages.
// The attributes for chunks and messages are those of chunks.h and codec.cpp.
//
// gluon_gc_pack(meter, payloads) -> message
//     Makes the message that gluon_gc_compress makes on the CPU. `step` is written to the meter.
//
// gluon_gc_unpack(messages, ..., meter) -> payloads, uint8 (count * payload_bytes,)
//     Returns the payloads of `count` messages, in `arrays` arrays. They are checked here, because gluon_gc_decompress
//     cannot check them on a GPU. `refused` works as for gluon_gc_decompress on the CPU.
#include "payloads.h"

namespace gluon_gc {
namespace {

using Map = Attributes::Map;
using Tensors = std::vector<MXTensor>;

std::size_t used(const Chunk& chunk, const std::uint8_t* payload) {
  const int at = chunk.needs.length_at;
  const std::size_t used = at < 0 ? chunk.needs.payload_bytes : at + read_length(payload + at);
  require(used <= chunk.needs.payload_bytes, "a payload of the GPU is longer than its maximum length");
  return used;
}

MXReturnValue pack(const Map& map, Tensors* inputs, Tensors* outputs, const OpResource& resource) {
  return guarded([&] {
    const double started = Meter::now();
    const Attributes a(map);
    const Chunks chunks(a);
    const std::uint8_t* const slots = slots_in(chunks, inputs->at(1), 1);
    std::uint8_t* const message = chunks.framed ? temporary_memory(resource, chunks.message_bytes()) : nullptr;
    const auto copy = [&](const Chunk& chunk, std::size_t, std::uint8_t* to, gluon_gc_status* status) {
      status->bytes = used(chunk, slots + chunk.slot);
      std::memcpy(to, slots + chunk.slot, status->bytes);
    };
    const std::size_t bytes = write_payloads(a, chunks, message, *outputs, resource, copy);
    meter(inputs->at(0)).compressed(started, bytes, a.size("step"));
  });
}

MXReturnValue unpack_shape(const Map& map, std::vector<Shape>*, std::vector<Shape>* out) {
  return guarded([&] {
    const Attributes a(map);
    out->at(0) = {static_cast<unsigned int>(a.size("count") * a.size("payload_bytes"))};
  });
}

MXReturnValue unpack(const Map& map, Tensors* inputs, Tensors* outputs, const OpResource& resource) {
  return guarded([&] {
    const double started = Meter::now();
    const Attributes a(map);
    const Chunks chunks(a);
    const std::size_t arrays = a.size("arrays"), count = a.size("count");
    std::uint8_t* const slots = slots_in(chunks, outputs->at(0), count);
    if (chunks.framed) {
      read_messages(chunks, *inputs, arrays, count, temporary_memory(resource, chunks.message_bytes()), slots);
    } else {
      std::memcpy(slots, slots_in(chunks, inputs->at(0), count), count * chunks.payload_bytes);
    }
    std::vector<gluon_gc_status> statuses(chunks.all.size());
    std::vector<gluon_gc_call> calls(chunks.all.size());
    for (std::size_t i = 0; i < calls.size(); ++i) {
      calls[i].codec = chunks.all[i].codec.get();
      calls[i].payloads = slots + chunks.all[i].slot;
      calls[i].stride = chunks.payload_bytes;
      calls[i].count = count;
      calls[i].status = &statuses[i];
    }
    check(gluon_gc_inspect(calls.data(), calls.size()));
    const std::size_t rows = chunks.framed ? rows_in(*inputs, arrays) : 0;
    count_received(a, chunks, started, statuses, rows, meter(inputs->at(arrays)));
  });
}

const auto& pack_operator = add_operator("gluon_gc_pack")
                                .setParseAttrs(fixed_arity<2>)
                                .setInferType(message_type)
                                .setInferSType(message_storage)
                                .setInferShape(message_shape)
                                .setMutateInputs(mutates_input<0>)
                                .setForward(pack, "cpu");

const auto& unpack_operator = add_operator("gluon_gc_unpack")
                                  .setParseAttrs(reader_arity)
                                  .setInferType(output_type<mxnet::ext::kUint8>)
                                  .setInferSType(output_storage<mxnet::ext::kDefaultStorage>)
                                  .setInferShape(unpack_shape)
                                  .setMutateInputs(reader_mutates)
                                  .setForward(unpack, "cpu");

}  // namespace
}  // namespace gluon_gc
