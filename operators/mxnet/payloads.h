// The payloads of a message in the host's memory: side by side in slots, each with room for the longest, or as they
// travel.
#pragma once

#include <cstring>

#include "calls.h"
#include "meter.h"

namespace gluon_gc {

// Writes `count` messages as payloads: chunk i of message m is at slots + m * payload_bytes + its slot. `message`
// has room for one.
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

// The payloads of `count` messages that are not framed.
inline std::uint8_t* slots_in(const Chunks& chunks, MXTensor& messages, std::size_t count) {
  const std::size_t itemsize = messages.dtype == mxnet::ext::kUint8 ? 1 : chunks.dtype;
  require(static_cast<std::size_t>(messages.size()) * itemsize == count * chunks.payload_bytes,
          "the payloads are not of the length that their chunks need");
  return static_cast<std::uint8_t*>(messages.data_ptr);
}

// Writes the payloads of a message one after the other where they travel, by write(chunk, i, payload, status).
// Returns the bytes that travel.
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

// Lets the meter know of messages that came, framed in so many rows if they are, by the status of each chunk. Where
// `refused` has a line for one that is not finite, that is an error which calls it so.
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
  const std::string whose = a.lines("refused").at(nonfinite.front());
  require(whose.empty(), meter.refusal(whose));
}

}  // namespace gluon_gc
