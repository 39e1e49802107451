// MXNet operators that pack messages side by side for an all-to-all. Only the bytes of each part that are in use are
// packed. `packed` is two arrays: the bytes, uint8 (room,), and the number of bytes for or from each rank, int32.
//
// The attribute `parts` (message.h) lists the parts of all messages, and `counts` the number of parts of each message.
//
// gluon_gc_bundle(message (bytes,), ...) -> packed
//     `shares` lists how many messages go to each rank. Messages are in the order of the ranks.
//
// gluon_gc_repeat(packed) -> packed
//     Repeats all bytes for each of `copies` ranks.
//
// gluon_gc_unbundle(packed) -> (count, bytes), ...
//     Returns an array for each message. The packed bytes hold the whole list of messages `count` times.
#include <numeric>

#include "message.h"

namespace gluon_gc {
namespace {

using Map = Attributes::Map;
using Tensors = std::vector<MXTensor>;

struct Messages {
  explicit Messages(const Attributes& a) : parts(listed_parts(a)), counts(a.list("counts")) {
    auto part = parts.begin();
    for (const std::size_t count : counts) {
      require(count <= static_cast<std::size_t>(parts.end() - part), "counts must not exceed the number of parts");
      std::size_t most = 0;
      for (const auto last = part + count; part != last; ++part) most += part->bytes;
      bytes.push_back(most);
    }
  }

  std::size_t room() const { return std::accumulate(bytes.begin(), bytes.end(), std::size_t{0}); }

  std::vector<Part> parts;
  std::vector<std::size_t> counts, bytes;  // of each message
};

std::size_t packed_bytes(MXTensor& data, MXTensor& splits) {
  const auto* const each = splits.data<std::int32_t>();
  const std::int64_t total = std::accumulate(each, each + splits.size(), std::int64_t{0});
  require(total >= 0 && total <= data.size(), "packed messages must have 0 to " + std::to_string(data.size()) +
                                                  " bytes, got " + std::to_string(total));
  return static_cast<std::size_t>(total);
}

MXReturnValue packed_type(const Map&, std::vector<int>*, std::vector<int>* out) {
  *out = {mxnet::ext::kUint8, mxnet::ext::kInt32};
  return mxnet::ext::MX_SUCCESS;
}

MXReturnValue bundle_arity(const Map& map, int* inputs, int* outputs) {
  return guarded([&] {
    *inputs = static_cast<int>(Attributes(map).list("counts").size());
    *outputs = 2;
  });
}

MXReturnValue bundle_shape(const Map& map, std::vector<Shape>* in, std::vector<Shape>* out) {
  return guarded([&] {
    const Attributes a(map);
    const Messages messages(a);
    for (std::size_t i = 0; i < messages.bytes.size(); ++i) {
      require(elements(in->at(i)) == messages.bytes[i], "a message does not have the length of its parts");
    }
    out->at(0) = {static_cast<unsigned int>(messages.room())};
    out->at(1) = {static_cast<unsigned int>(a.list("shares").size())};
  });
}

MXReturnValue bundle(const Map& map, Tensors* inputs, Tensors* outputs, const OpResource&) {
  return guarded([&] {
    const Attributes a(map);
    const Messages messages(a);
    std::uint8_t* to = outputs->at(0).data<std::uint8_t>();
    auto* split = outputs->at(1).data<std::int32_t>();
    auto part = messages.parts.begin();
    std::size_t message = 0;
    for (const std::size_t share : a.list("shares")) {
      const std::uint8_t* const begin = to;
      for (const std::size_t last = message + share; message < last; ++message) {
        const std::uint8_t* from = inputs->at(message).data<std::uint8_t>();
        for (const auto end = part + messages.counts.at(message); part != end; ++part) {
          const std::size_t used = part->used(from, part->bytes);
          std::memcpy(to, from, used);
          to += used;
          from += part->bytes;
        }
      }
      *split++ = static_cast<std::int32_t>(to - begin);
    }
  });
}

MXReturnValue repeat_shape(const Map& map, std::vector<Shape>* in, std::vector<Shape>* out) {
  return guarded([&] {
    const auto copies = static_cast<unsigned int>(Attributes(map).size("copies"));
    out->at(0) = {copies * in->at(0).at(0)};
    out->at(1) = {copies};
  });
}

MXReturnValue repeat(const Map& map, Tensors* inputs, Tensors* outputs, const OpResource&) {
  return guarded([&] {
    const std::size_t copies = Attributes(map).size("copies"), bytes = packed_bytes(inputs->at(0), inputs->at(1));
    for (std::size_t i = 0; i < copies; ++i) {
      std::memcpy(outputs->at(0).data<std::uint8_t>() + i * bytes, inputs->at(0).data<std::uint8_t>(), bytes);
      outputs->at(1).data<std::int32_t>()[i] = static_cast<std::int32_t>(bytes);
    }
  });
}

MXReturnValue unbundle_arity(const Map& map, int* inputs, int* outputs) {
  return guarded([&] {
    *inputs = 2;
    *outputs = static_cast<int>(Attributes(map).list("counts").size());
  });
}

MXReturnValue unbundle_shape(const Map& map, std::vector<Shape>*, std::vector<Shape>* out) {
  return guarded([&] {
    const Attributes a(map);
    const Messages messages(a);
    for (std::size_t i = 0; i < messages.bytes.size(); ++i) {
      out->at(i) = {static_cast<unsigned int>(a.size("count")), static_cast<unsigned int>(messages.bytes[i])};
    }
  });
}

MXReturnValue unbundle(const Map& map, Tensors* inputs, Tensors* outputs, const OpResource&) {
  return guarded([&] {
    const Attributes a(map);
    const Messages messages(a);
    const std::uint8_t* from = inputs->at(0).data<std::uint8_t>();
    std::size_t left = packed_bytes(inputs->at(0), inputs->at(1));
    for (std::size_t row = 0, count = a.size("count"); row < count; ++row) {
      auto part = messages.parts.begin();
      for (std::size_t message = 0; message < messages.counts.size(); ++message) {
        std::uint8_t* to = outputs->at(message).data<std::uint8_t>() + row * messages.bytes[message];
        for (const auto end = part + messages.counts[message]; part != end; ++part) {
          const std::size_t used = part->used(from, left);
          require(used <= left, "messages end within a part");
          std::memcpy(to, from, used);
          from += used;
          left -= used;
          to += part->bytes;
        }
      }
    }
    require(left == 0, std::to_string(left) + " bytes are left after the last message");
  });
}

const auto& bundle_operator = add_operator("gluon_gc_bundle")
                                  .setParseAttrs(bundle_arity)
                                  .setInferType(packed_type)
                                  .setInferShape(bundle_shape)
                                  .setForward(bundle, "cpu");

const auto& repeat_operator = add_operator("gluon_gc_repeat")
                                  .setParseAttrs(fixed_arity<2, 2>)
                                  .setInferType(packed_type)
                                  .setInferShape(repeat_shape)
                                  .setForward(repeat, "cpu");

const auto& unbundle_operator = add_operator("gluon_gc_unbundle")
                                    .setParseAttrs(unbundle_arity)
                                    .setInferType(output_type<mxnet::ext::kUint8>)
                                    .setInferShape(unbundle_shape)
                                    .setForward(unbundle, "cpu");

}  // namespace
}  // namespace gluon_gc
