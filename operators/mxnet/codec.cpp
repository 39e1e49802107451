// MXNet operators that compress, aggregate and decompress gradients. One call handles all chunks of a message. The
// operators own memory and order; the functions of core/abi.h compress. gpu.cpp has the GPU versions.
//
// Chunks and state arrays are described in chunks.h, their places in the gradients in slices.h, and messages in
// calls.h. `states` is the number of state arrays. With `earlier` there are as many arrays with the state before the
// call, which is then not updated in place. With `metered=0` there is no meter.
//
// gluon_gc_compress(state, ..., [earlier state, ...], [meter], gradient, ..., [factor]) -> message
//     Compresses gradient * `scale`. With `clipped`, factor, float64 (1,), multiplies the scale. `ratio` is the
//     previous learning rate over the current one. `step` is written to the meter.
//
// gluon_gc_aggregate(messages, state, ..., [earlier state, ...]) -> message
//     Compresses the sum of `count` messages, on `threads` threads. Without row_words, messages have the shape
//     (count, payload_bytes).
//
// gluon_gc_decompress(messages, ..., gradient, ...) -> meter
//     Writes the sum of `count` messages, in `arrays` arrays, to the gradients; in float16 gradients, it is multiplied
//     by `half_scale` (default: 1) before it is rounded. The caller passes the meter as `out`.
//     `refused` has a line for each chunk: the operator fails with this name if the chunk is not finite, unless the
//     line is empty. Without a meter, `refused` is ignored and the output is each chunk's gluon_gc_status, int64.
#include "../core/finite.h"
#include "../core/half.h"
#include "gpu.h"
#include "payloads.h"
#include "slices.h"

namespace gluon_gc {
namespace {

using Map = Attributes::Map;
using Tensors = std::vector<MXTensor>;

std::size_t state_inputs(const Attributes& a) { return sets_of_states(a) * a.size("states"); }

MXReturnValue compress_arity(const Map& map, int* inputs, int* outputs) {
  return guarded([&] {
    const Attributes a(map);
    *inputs = static_cast<int>(state_inputs(a) + metered(a) + a.size("gradients") + a.flag("clipped"));
    *outputs = 1;
  });
}

MXReturnValue compress_mutates(const Map& map, std::vector<int>* indices) {
  return guarded([&] {
    const Attributes a(map);
    for (int i = 0; i < static_cast<int>(a.size("states")); ++i) indices->push_back(i);
    if (metered(a)) indices->push_back(static_cast<int>(state_inputs(a)));
  });
}

MXReturnValue compress(const Map& map, Tensors* inputs, Tensors* outputs, const OpResource& resource) {
  return guarded([&] {
    const double started = Meter::now();
    const Attributes a(map);
    const Chunks chunks(a);
    States states(a, chunks, *inputs, 0, a.size("states"));
    const Slices slices(a, chunks, *inputs, state_inputs(a) + metered(a));
    const std::size_t message_bytes = chunks.message_bytes();
    const std::size_t converted_bytes = slices.most_converted_bytes();
    Arena arena(resource, {message_bytes, converted_bytes, chunks.workspace_bytes});
    std::uint8_t* const message = arena.take(message_bytes);
    auto* const converted = reinterpret_cast<float*>(arena.take(converted_bytes));
    void* const workspace = arena.take(chunks.workspace_bytes);
    gluon_gc_call common = common_call(a, workspace);
    if (a.flag("clipped")) common.factor = inputs->back().data<double>();
    const auto compress_chunk = [&](const Chunk& chunk, std::size_t i, std::uint8_t* to, gluon_gc_status* status) {
      gluon_gc_call call = call_for(chunk, common, status);
      call.values = slices.at(i);
      if (slices.is_half(i)) {
        float_from_half(static_cast<const std::uint16_t*>(call.values), chunk.n, converted);
        call.values = converted;
      }
      call.payload = to;
      states.give(chunk, call);
      check(gluon_gc_compress(&call, 1));
    };
    const std::size_t bytes = write_payloads(a, chunks, message, *outputs, resource, compress_chunk);
    if (metered(a)) meter(inputs->at(state_inputs(a))).compressed(started, bytes, a.size("step"));
  });
}

MXReturnValue aggregate_arity(const Map& map, int* inputs, int* outputs) {
  return guarded([&] {
    *inputs = static_cast<int>(1 + state_inputs(Attributes(map)));
    *outputs = 1;
  });
}

MXReturnValue aggregate_mutates(const Map& map, std::vector<int>* indices) {
  return guarded([&] {
    for (int i = 1; i <= static_cast<int>(Attributes(map).size("states")); ++i) indices->push_back(i);
  });
}

MXReturnValue aggregate(const Map& map, Tensors* inputs, Tensors* outputs, const OpResource& resource) {
  return guarded([&] {
    const Attributes a(map);
    const Chunks chunks(a);
    const std::size_t count = a.size("count"), message_bytes = chunks.message_bytes();
    const std::size_t received_bytes = count * chunks.payload_bytes;
    Arena arena(resource, {message_bytes, chunks.framed ? received_bytes : 0, chunks.workspace_bytes});
    std::uint8_t* const message = arena.take(message_bytes);
    std::uint8_t* slots = arena.take(chunks.framed ? received_bytes : 0);
    void* const workspace = arena.take(chunks.workspace_bytes);
    if (chunks.framed) {
      read_messages(chunks, *inputs, 1, count, message, slots);
    } else {
      slots = slots_in(chunks, inputs->at(0), count);
    }
    States states(a, chunks, *inputs, 1, (inputs->size() - 1) / sets_of_states(a));
    const gluon_gc_call common = common_call(a, workspace);
    const auto compress_sum = [&](const Chunk& chunk, std::size_t, std::uint8_t* to, gluon_gc_status* status) {
      gluon_gc_call call = call_for(chunk, common, status);
      call.payloads = slots + chunk.slot;
      call.stride = chunks.payload_bytes;
      call.count = count;
      call.payload = to;
      states.give(chunk, call);
      check(gluon_gc_aggregate(&call, 1));
    };
    write_payloads(a, chunks, message, *outputs, resource, compress_sum);
  });
}

MXReturnValue decompress_arity(const Map& map, int* inputs, int* outputs) {
  return guarded([&] {
    const Attributes a(map);
    *inputs = static_cast<int>(a.size("arrays") + a.size("gradients"));
    *outputs = 1;
  });
}

MXReturnValue decompress_mutates(const Map& map, std::vector<int>* indices) {
  return guarded([&] {
    const Attributes a(map);
    const int first = static_cast<int>(a.size("arrays")), last = first + static_cast<int>(a.size("gradients"));
    for (int i = first; i < last; ++i) indices->push_back(i);
  });
}

MXReturnValue decompress(const Map& map, Tensors* inputs, Tensors* outputs, const OpResource& resource) {
  return guarded([&] {
    const double started = Meter::now();
    const Attributes a(map);
    const Chunks chunks(a);
    const std::size_t arrays = a.size("arrays"), count = optional(a, "count", 1);
    const Slices slices(a, chunks, *inputs, arrays);
    const std::size_t received_bytes = count * chunks.payload_bytes;
    const std::size_t message_bytes = chunks.message_bytes();
    const std::size_t converted_bytes = slices.most_converted_bytes();
    Arena arena(resource, {message_bytes, chunks.framed ? received_bytes : 0, converted_bytes,
                           chunks.workspace_bytes});
    std::uint8_t* const message = arena.take(message_bytes);
    std::uint8_t* slots = arena.take(chunks.framed ? received_bytes : 0);
    auto* const converted = reinterpret_cast<float*>(arena.take(converted_bytes));
    void* const workspace = arena.take(chunks.workspace_bytes);
    if (chunks.framed) {
      read_messages(chunks, *inputs, arrays, count, message, slots);
    } else {
      slots = slots_in(chunks, inputs->at(0), count);
    }
    const gluon_gc_call common = common_call(a, workspace);
    const auto half_scale = static_cast<float>(a.number("half_scale", 1));
    std::vector<gluon_gc_status> statuses(chunks.all.size());
    for (std::size_t i = 0; i < chunks.all.size(); ++i) {
      const Chunk& chunk = chunks.all[i];
      gluon_gc_call call = call_for(chunk, common, &statuses[i]);
      call.values = slices.is_half(i) ? converted : slices.at(i);
      call.payloads = slots + chunk.slot;
      call.stride = chunks.payload_bytes;
      call.count = count;
      check(gluon_gc_decompress(&call, 1));
      if (slices.is_half(i)) {
        auto* const half = static_cast<std::uint16_t*>(slices.at(i));
        half_from_float(converted, chunk.n, half_scale, half);
        statuses[i].finite &= values_finite(half, chunk.n);  // a decoded value may overflow float16
      }
    }
    if (!metered(a)) {
      std::copy(statuses.begin(), statuses.end(), statuses_in(outputs->at(0)));
      return;
    }
    count_received(a, chunks, started, statuses, chunks.framed ? rows_in(*inputs, arrays) : 0, meter(outputs->at(0)));
  });
}

MXReturnValue decompress_type(const Map& map, std::vector<int>*, std::vector<int>* out) {
  return guarded([&] { out->at(0) = metered(Attributes(map)) ? mxnet::ext::kFloat64 : mxnet::ext::kInt64; });
}

MXReturnValue decompress_shape(const Map& map, std::vector<Shape>* in, std::vector<Shape>* out) {
  return guarded([&] {
    const Attributes a(map);
    if (metered(a)) {
      meter_shape(map, in, out);
    } else {
      out->at(0) = {static_cast<unsigned int>(a.list("sizes").size() * status_words)};
    }
  });
}

const auto& compress_operator = add_operator("gluon_gc_compress")
                                    .setParseAttrs(compress_arity)
                                    .setInferType(message_type)
                                    .setInferSType(message_storage)
                                    .setInferShape(message_shape)
                                    .setMutateInputs(compress_mutates)
                                    .setForward(compress, "cpu")
                                    .setForward(compress_on_gpu, "gpu");

const auto& aggregate_operator = add_operator("gluon_gc_aggregate")
                                     .setParseAttrs(aggregate_arity)
                                     .setInferType(message_type)
                                     .setInferSType(message_storage)
                                     .setInferShape(message_shape)
                                     .setMutateInputs(aggregate_mutates)
                                     .setForward(aggregate, "cpu")
                                     .setForward(aggregate_on_gpu, "gpu");

const auto& decompress_operator = add_operator("gluon_gc_decompress")
                                      .setParseAttrs(decompress_arity)
                                      .setInferType(decompress_type)
                                      .setInferSType(output_storage<mxnet::ext::kDefaultStorage>)
                                      .setInferShape(decompress_shape)
                                      .setMutateInputs(decompress_mutates)
                                      .setForward(decompress, "cpu")
                                      .setForward(decompress_on_gpu, "gpu");

}  // namespace
}  // namespace gluon_gc
