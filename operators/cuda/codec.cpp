// Codecs on the GPU: what is alike for all compressors, as core/abi.cpp for the CPU.
//
// The workspace is the kernels' ticket, the sum that aggregate compresses, and the compressor's own.
#include "cuda/codec.h"

namespace gluon_gc {
namespace cuda {
namespace {

constexpr std::size_t ticket_bytes = 64;

static_assert(sizeof(Status) == sizeof(gluon_gc_status), "kernels write another status");
Status* status_of(const gluon_gc_call& call) { return reinterpret_cast<Status*>(call.status); }

template <typename T>
const Functions<T>& of(const Compressor& compressor);
template <>
const Functions<float>& of(const Compressor& compressor) { return compressor.of_float; }
template <>
const Functions<double>& of(const Compressor& compressor) { return compressor.of_double; }

template <typename Body>
void with_dtype(const Plan& plan, Body body) {
  plan.itemsize == sizeof(float) ? body(float{}) : body(double{});
}

// What compress is given, but for the values, the ratio and where the workspace begins that is its own.
template <typename T>
Encoding<T> encoding_of(const Plan& plan, const gluon_gc_call& call) {
  Encoding<T> encoding{};
  encoding.n = plan.n;
  encoding.gradient_scale = static_cast<T>(call.scale);
  encoding.momentum = plan.mu != 0 ? static_cast<T*>(call.momentum) : nullptr;
  encoding.mu = static_cast<T>(plan.mu);
  for (std::size_t i = 0; i < max_memory && plan.feedback; ++i) {
    encoding.memory[i] = static_cast<T*>(call.memory[i]);
    encoding.memory_elements[i] = plan.needs.memory[i];
  }
  encoding.ratio = 1;
  gluon_gc::Stream stream{{call.position.state[0], call.position.state[1]}};
  if (plan.needs.draws != 0) jump(stream, call.position.draws);
  for (int i = 0; i < 2; ++i) encoding.stream[i] = stream.state[i];
  encoding.corrected = plan.corrected;
  encoding.message = call.payload;
  encoding.payload = call.payload + plan.header;
  encoding.bytes = plan.payload_bytes();
  encoding.status = status_of(call);
  encoding.ticket = static_cast<uint32*>(call.workspace);
  encoding.workspace = static_cast<char*>(call.workspace) + ticket_bytes + plan.sum_bytes();
  return encoding;
}

template <typename T>
Decoding<T> decoding_of(const Plan& plan, const gluon_gc_call& call, T* out, bool add, Status* status) {
  if (call.count > 1 && call.stride < plan.payload_bytes()) {
    refuse("payloads of %zu elements take %zu bytes, not %zu", plan.n, plan.payload_bytes(), call.stride);
  }
  return {plan.n, call.payloads + plan.header, call.stride, call.count, out, add, call.count * plan.payload_bytes(),
          status};
}

}  // namespace

Codec::Codec(const Compressor& compressor, const Options& options, const Plan& plan)
    : compressor_(compressor), plan_(plan) {
  require(compressor.name);
  compressor.make(self_, options, plan.n);
}

std::size_t Codec::workspace_bytes() const {
  std::size_t bytes = ticket_bytes + plan_.sum_bytes();
  with_dtype(plan_, [&](auto zero) { bytes += of<decltype(zero)>(compressor_).workspace_bytes(self_); });
  return bytes;
}

void Codec::compress(const gluon_gc_call& call) const {
  const Queue queue(compressor_.name, call.stream);
  with_dtype(plan_, [&](auto zero) {
    using T = decltype(zero);
    Encoding<T> encoding = encoding_of<T>(plan_, call);
    encoding.gradient = static_cast<const T*>(call.values);
    encoding.ratio = call.ratio;
    of<T>(compressor_).compress(self_, queue, encoding);
  });
}

void Codec::aggregate(const gluon_gc_call& call) const {
  const Queue queue(compressor_.name, call.stream);
  with_dtype(plan_, [&](auto zero) {
    using T = decltype(zero);
    T* const sum = reinterpret_cast<T*>(static_cast<char*>(call.workspace) + ticket_bytes);
    of<T>(compressor_).decompress(self_, queue, decoding_of<T>(plan_, call, sum, false, nullptr));
    Encoding<T> encoding = encoding_of<T>(plan_, call);
    encoding.gradient = sum;
    encoding.ratio_from = plan_.header != 0 ? call.payloads : nullptr;
    of<T>(compressor_).compress(self_, queue, encoding);
  });
}

void Codec::decompress(const gluon_gc_call& call) const {
  const Queue queue(compressor_.name, call.stream);
  with_dtype(plan_, [&](auto zero) {
    using T = decltype(zero);
    T* const out = static_cast<T*>(call.values);
    of<T>(compressor_).decompress(self_, queue, decoding_of<T>(plan_, call, out, call.add != 0, status_of(call)));
  });
}

void Codec::residual(const gluon_gc_call& call) const {
  const Queue queue(compressor_.name, call.stream);
  with_dtype(plan_, [&](auto zero) {
    using T = decltype(zero);
    T* const memory[max_memory] = {static_cast<T*>(call.memory[0]), static_cast<T*>(call.memory[1])};
    of<T>(compressor_).residual(self_, queue, memory, static_cast<T*>(call.values));
  });
}

void Codec::restore(const gluon_gc_call& call) const {
  const Queue queue(compressor_.name, call.stream);
  with_dtype(plan_, [&](auto zero) {
    using T = decltype(zero);
    T* const memory[max_memory] = {static_cast<T*>(call.memory[0]), static_cast<T*>(call.memory[1])};
    of<T>(compressor_).restore(self_, queue, static_cast<const T*>(call.values), memory);
  });
}

}  // namespace cuda
}  // namespace gluon_gc
