// Codecs as MXNet operators, each for all chunks of a message (see chunks.h). They own memory and order; what is
// compressed, and how, is core/abi.h's.
//
// `states` is the number of arrays of state, which are momentum and then memory (chunks.h). Of chunk i,
// `tensors` says which of the gradients it is of, and `begins` where it begins in it. Gradients are of the
// codecs' dtype, or float16 where that is float32. With row_words, messages are framed: row_sparse, from row
// `row` of `rows` on; else they are payloads side by side, uint8, shape (payload_bytes,), or with `summable`
// values.
//
// gluon_gc_compress(state, ..., meter, gradient, ..., [factor]) -> message, of gradient * `scale`, and with
//     `clipped` * factor, which is float64 (1,); `ratio`: of learning rates; `step`: the meter's
// gluon_gc_aggregate(messages, state, ...) -> message: of the sum of `count` messages, on `threads` threads;
//     without row_words, messages have the shape (count, payload_bytes)
// gluon_gc_decompress(messages, ..., gradient, ...) -> meter, which must be given as `out`. Writes the sum of
//     `count` messages, in `arrays` arrays, to the gradients. Where `refused` has a line for a chunk, the
//     operator fails if it is not finite, and calls it so.
#include "../core/half.h"
#include "payloads.h"

namespace gluon_gc {
namespace {

using Map = Attributes::Map;
using Tensors = std::vector<MXTensor>;

// Where the chunks are in the gradients.
class Slices {
 public:
  Slices(const Attributes& a, const Chunks& chunks, Tensors& inputs, std::size_t first)
      : tensors_(a.list("tensors")), begins_(a.list("begins")), inputs_(inputs), first_(first), itemsize_(chunks.dtype) {
    require(tensors_.size() == chunks.all.size() && begins_.size() == chunks.all.size(),
            "tensors and begins must have a number for each chunk");
    for (std::size_t i = 0; i < chunks.all.size(); ++i) {
      MXTensor& x = inputs.at(first + tensors_[i]);
      require(begins_[i] + chunks.all[i].n <= static_cast<std::size_t>(x.size()),
              "a chunk ends behind its gradient");
      const bool wide = x.dtype == (itemsize_ == sizeof(double) ? mxnet::ext::kFloat64 : mxnet::ext::kFloat32);
      require(wide || is_half(i), "a gradient has another dtype than its chunks");
      if (is_half(i)) converted_bytes = std::max(converted_bytes, chunks.all[i].n * sizeof(float));
    }
  }

  bool is_half(std::size_t i) const {
    return itemsize_ == sizeof(float) && inputs_[first_ + tensors_[i]].dtype == mxnet::ext::kFloat16;
  }

  void* at(std::size_t i) const {
    const std::size_t itemsize = is_half(i) ? sizeof(std::uint16_t) : itemsize_;
    return static_cast<char*>(inputs_[first_ + tensors_[i]].data_ptr) + begins_[i] * itemsize;
  }

  std::size_t converted_bytes = 0;  // room for a chunk of float16 in float32

 private:
  const std::vector<std::size_t> tensors_, begins_;
  Tensors& inputs_;
  const std::size_t first_, itemsize_;
};

MXReturnValue compress_arity(const Map& map, int* inputs, int* outputs) {
  return guarded([&] {
    const Attributes a(map);
    *inputs = static_cast<int>(a.size("states") + 1 + a.size("gradients") + a.flag("clipped"));
    *outputs = 1;
  });
}

MXReturnValue compress_mutates(const Map& map, std::vector<int>* indices) {
  return guarded([&] {
    for (int i = 0; i <= static_cast<int>(Attributes(map).size("states")); ++i) indices->push_back(i);
  });
}

MXReturnValue compress(const Map& map, Tensors* inputs, Tensors* outputs, const OpResource& resource) {
  return guarded([&] {
    const double started = Meter::now();
    const Attributes a(map);
    const Chunks chunks(a);
    const std::size_t state_count = a.size("states");
    States states(chunks, *inputs, state_count);
    const Slices slices(a, chunks, *inputs, state_count + 1);
    const std::size_t message_bytes = chunks.message_bytes();
    Arena arena(resource, {message_bytes, slices.converted_bytes, chunks.workspace_bytes});
    std::uint8_t* const message = arena.take(message_bytes);
    auto* const converted = reinterpret_cast<float*>(arena.take(slices.converted_bytes));
    void* const workspace = arena.take(chunks.workspace_bytes);
    gluon_gc_call common = common_call(a, workspace);
    if (a.flag("clipped")) common.scale *= inputs->back().data<double>()[0];
    const auto compress_chunk = [&](const Chunk& chunk, std::size_t i, std::uint8_t* to, gluon_gc_status* status) {
      gluon_gc_call call = call_for(chunk, common, status);
      call.values = slices.at(i);
      if (slices.is_half(i)) {
        float_from_half(static_cast<const std::uint16_t*>(call.values), chunk.n, converted);
        call.values = converted;
      }
      call.payload = to;
      states.give(chunk, chunks.dtype, call);
      check(gluon_gc_compress(&call, 1));
    };
    const std::size_t bytes = write_payloads(a, chunks, message, *outputs, resource, compress_chunk);
    meter(inputs->at(state_count)).compressed(started, bytes, a.size("step"));
  });
}

MXReturnValue aggregate_arity(const Map& map, int* inputs, int* outputs) {
  return guarded([&] {
    *inputs = static_cast<int>(1 + Attributes(map).size("states"));
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
    Tensors state_arrays(inputs->begin() + 1, inputs->end());
    States states(chunks, state_arrays, state_arrays.size());
    const gluon_gc_call common = common_call(a, workspace);
    const auto compress_sum = [&](const Chunk& chunk, std::size_t, std::uint8_t* to, gluon_gc_status* status) {
      gluon_gc_call call = call_for(chunk, common, status);
      call.payloads = slots + chunk.slot;
      call.stride = chunks.payload_bytes;
      call.count = count;
      call.payload = to;
      states.give(chunk, chunks.dtype, call);
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
    Arena arena(resource, {message_bytes, chunks.framed ? received_bytes : 0, slices.converted_bytes,
                           chunks.workspace_bytes});
    std::uint8_t* const message = arena.take(message_bytes);
    std::uint8_t* slots = arena.take(chunks.framed ? received_bytes : 0);
    auto* const converted = reinterpret_cast<float*>(arena.take(slices.converted_bytes));
    void* const workspace = arena.take(chunks.workspace_bytes);
    if (chunks.framed) {
      read_messages(chunks, *inputs, arrays, count, message, slots);
    } else {
      slots = slots_in(chunks, inputs->at(0), count);
    }
    const gluon_gc_call common = common_call(a, workspace);
    std::size_t used = 0;
    std::vector<std::size_t> nonfinite;
    for (std::size_t i = 0; i < chunks.all.size(); ++i) {
      const Chunk& chunk = chunks.all[i];
      gluon_gc_status status{};
      gluon_gc_call call = call_for(chunk, common, &status);
      call.values = slices.is_half(i) ? converted : slices.at(i);
      call.payloads = slots + chunk.slot;
      call.stride = chunks.payload_bytes;
      call.count = count;
      check(gluon_gc_decompress(&call, 1));
      if (slices.is_half(i)) {
        half_from_float(converted, chunk.n, 1, static_cast<std::uint16_t*>(slices.at(i)));
      }
      used += status.bytes;
      if (status.finite == 0) nonfinite.push_back(i);
    }
    count_received(a, chunks, started, used, nonfinite, chunks.framed ? rows_in(*inputs, arrays) : 0,
                   meter(outputs->at(0)));
  });
}

const auto& compress_operator = add_operator("gluon_gc_compress")
                                    .setParseAttrs(compress_arity)
                                    .setInferType(message_type)
                                    .setInferSType(message_storage)
                                    .setInferShape(message_shape)
                                    .setMutateInputs(compress_mutates)
                                    .setForward(compress, "cpu");

const auto& aggregate_operator = add_operator("gluon_gc_aggregate")
                                     .setParseAttrs(aggregate_arity)
                                     .setInferType(message_type)
                                     .setInferSType(message_storage)
                                     .setInferShape(message_shape)
                                     .setMutateInputs(aggregate_mutates)
                                     .setForward(aggregate, "cpu");

const auto& decompress_operator = add_operator("gluon_gc_decompress")
                                      .setParseAttrs(decompress_arity)
                                      .setInferType(output_type<mxnet::ext::kFloat64>)
                                      .setInferSType(output_storage<mxnet::ext::kDefaultStorage>)
                                      .setInferShape(meter_shape)
                                      .setMutateInputs(decompress_mutates)
                                      .setForward(decompress, "cpu");

}  // namespace
}  // namespace gluon_gc
