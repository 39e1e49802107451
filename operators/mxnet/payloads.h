// Reads and writes the payloads of messages in host memory: framed, or side by side in slots. A slot has room for the
// maximum length of its payload.
#pragma once

#include <cstring>

#include "calls.h"
#include "meter.h"

namespace gluon_gc {

// Unframes `count` messages into slots: the payload of a chunk of message m is at slots + m * payload_bytes +
// chunk.slot. `message` is room for one message.
inline void read_messages(const Chunks& chunks, std::vector<MXTensor>& inputs, std::size_t arrays, std::size_t count,
                          std::uint8_t* message, std::uint8_t* slots) {
  const std::vector<Words> present = present_rows(chunks.layout, inputs, arrays, count);
  for (std::size_t m = 0; m < count; ++m) {
    const std::size_t length =
        unframe_message(chunks.layout, present.data() + m * chunks.layout.message_rows, std::to_string(m), message);
    std::vector<std::uint8_t*> to;
    for (const Chunk& chunk : chunks.all) to.push_back(slots + m * chunks.payload_bytes + chunk.slot);
    split_message(chunks.layout, message, length, to);
  }
}

// Returns the slots of `count` messages that are not framed.
inline std::uint8_t* slots_in(const Chunks& chunks, MXTensor& messages, std::size_t count) {
  const std::size_t itemsize = messages.dtype == mxnet::ext::kUint8 ? 1 : chunks.dtype;
  require(static_cast<std::size_t>(messages.size()) * itemsize == count * chunks.payload_bytes,
          "the payloads do not have the length that their chunks need");
  return static_cast<std::uint8_t*>(messages.data_ptr);
}

// Writes a message: write(chunk, i, payload, status) writes the payload of chunk i and sets status->bytes. Returns the
// bytes on the wire.
template <typename Write>
std::size_t write_payloads(const Attributes& a, const Chunks& chunks, std::uint8_t* message,
                           std::vector<MXTensor>& outputs, const OpResource& resource, Write write) {
  if (!chunks.framed) message = static_cast<std::uint8_t*>(outputs.at(0).data_ptr);
  std::size_t length = chunks.framed ? chunks.layout.begin() : 0, used = 0;
  for (std::size_t i = 0; i < chunks.all.size(); ++i) {
    gluon_gc_status status{};
    write(chunks.all[i], i, message + (chunks.framed ? length : chunks.all[i].slot), &status);
    length += status.bytes;
    used += status.bytes;
  }
  return chunks.framed ? frame_message(chunks.layout, message, length, a.size("row"), resource) : used;
}

// Counts received messages in the meter. `rows` is the number of their rows, if they are framed. Throws if a chunk is
// not finite and the attribute `refused` has a name for the first such chunk.
inline void count_received(const Attributes& a, const Chunks& chunks, double started,
                           const std::vector<gluon_gc_status>& statuses, std::size_t rows, Meter& meter) {
  std::size_t used = 0;
  std::vector<std::size_t> nonfinite;
  for (std::size_t i = 0; i < statuses.size(); ++i) {
    used += statuses[i].bytes;
    if (statuses[i].finite == 0) nonfinite.push_back(i);
  }
  meter.decompressed(started, chunks.framed ? chunks.layout.traffic(rows) : used);
  meter.nonfinite += static_cast<double>(nonfinite.size());
  if (nonfinite.empty() || !a.has("refused")) return;
  const std::string name = a.lines("refused").at(nonfinite.front());
  require(name.empty(), meter.refusal(name));
}

}  // namespace gluon_gc
