// Codecs on the GPU: what is alike for all compressors, as core/abi.cpp for the CPU.
//
// The workspace is the sum that aggregate compresses, and the compressor's own.
#include "cuda/codec.h"

#include "core/stream.h"

namespace gluon_gc {
namespace cuda {
namespace {

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

RandomStream stream_of(const gluon_gc_call& call) {
  gluon_gc::Stream stream{{call.position.state[0], call.position.state[1]}};
  jump(stream, call.position.draws);
  return {{stream.state[0], stream.state[1]}};
}

// What compress is given, but for the values and the ratio.
template <typename T>
Encoding<T> encoding_of(const Job& job) {
  const Plan& plan = job.plan;
  const gluon_gc_call& call = job.call;
  Encoding<T> encoding{};
  encoding.n = plan.n;
  encoding.scale = call.scale;
  encoding.factor = call.factor;
  encoding.momentum = plan.mu != 0 ? static_cast<T*>(call.momentum) : nullptr;
  encoding.mu = static_cast<T>(plan.mu);
  for (std::size_t i = 0; i < max_memory && plan.feedback; ++i) {
    encoding.memory[i] = static_cast<T*>(call.memory[i]);
    encoding.memory_elements[i] = plan.needs.memory[i];
  }
  encoding.ratio = 1;
  encoding.corrected = plan.corrected;
  encoding.message = call.payload;
  encoding.payload = call.payload + plan.header;
  encoding.bytes = plan.payload_bytes();
  encoding.status = status_of(call);
  encoding.stream = stream_of(call);
  encoding.ticket = static_cast<uint32*>(call.ticket);
  encoding.workspace = static_cast<char*>(call.workspace) + plan.sum_bytes();
  return encoding;
}

template <typename T>
Decoding<T> decoding_of(const Job& job, T* out, bool add, Status* status) {
  const Plan& plan = job.plan;
  const gluon_gc_call& call = job.call;
  if (call.count > 1 && call.stride < plan.payload_bytes()) {
    refuse("payloads of %zu elements take %zu bytes, not %zu", plan.n, plan.payload_bytes(), call.stride);
  }
  return {plan.n,
          call.payloads + plan.header,
          call.stride,
          call.count,
          out,
          add,
          call.count * plan.payload_bytes(),
          status,
          stream_of(call),
          static_cast<uint32*>(call.ticket),
          static_cast<char*>(call.workspace) + plan.sum_bytes()};
}

template <typename T>
Keeping<T> keeping_of(const Job& job) {
  const gluon_gc_call& call = job.call;
  return {job.plan.n, {static_cast<T*>(call.memory[0]), static_cast<T*>(call.memory[1])}, static_cast<T*>(call.values)};
}

// What kernels are given: make(job) of each, the largest first.
template <typename Make>
auto calls_of(const Jobs& jobs, Make make) {
  auto calls = each(jobs, make);
  largest_first(calls);
  return calls;
}

}  // namespace

void prepare(void* tickets, std::size_t count, Stream stream) {
  Queue(nullptr, stream).fill_with_zeros(tickets, count * gluon_gc_ticket_bytes);
}

Codec::Codec(const Compressor& compressor, const Options& options) : compressor_(compressor) {
  require(compressor.name);
  compressor.make(self_, options);
}

std::size_t Codec::workspace_bytes(const Plan& plan) const {
  std::size_t bytes = plan.sum_bytes();
  with_dtype(plan, [&](auto zero) { bytes += of<decltype(zero)>(compressor_).workspace_bytes(self_, plan.n); });
  return bytes;
}

// Calls body(functions of the dtype, queue, zero of the dtype).
template <typename Body>
void Codec::run(const Jobs& jobs, Body body) const {
  const Stream stream = jobs[0].call.stream;
  for (const Job& job : jobs) {
    if (job.call.stream != stream) refuse("calls that are queued together must be given one stream");
  }
  const Queue queue(compressor_.name, stream);
  with_dtype(jobs[0].plan, [&](auto zero) { body(of<decltype(zero)>(compressor_), queue, zero); });
}

void Codec::compress(const Jobs& jobs) const {
  run(jobs, [&](const auto& functions, const Queue& queue, auto zero) {
    using T = decltype(zero);
    functions.compress(self_, queue, calls_of(jobs, [](const Job& job) {
      Encoding<T> encoding = encoding_of<T>(job);
      encoding.gradient = static_cast<const T*>(job.call.values);
      encoding.ratio = job.call.ratio;
      return encoding;
    }));
  });
}

void Codec::aggregate(const Jobs& jobs) const {
  run(jobs, [&](const auto& functions, const Queue& queue, auto zero) {
    using T = decltype(zero);
    functions.decompress(self_, queue, calls_of(jobs, [](const Job& job) {
      return decoding_of<T>(job, static_cast<T*>(job.call.workspace), false, nullptr);
    }));
    functions.compress(self_, queue, calls_of(jobs, [](const Job& job) {
      Encoding<T> encoding = encoding_of<T>(job);
      encoding.gradient = static_cast<const T*>(job.call.workspace);
      encoding.ratio_from = job.plan.header != 0 ? job.call.payloads : nullptr;
      return encoding;
    }));
  });
}

void Codec::decompress(const Jobs& jobs) const {
  run(jobs, [&](const auto& functions, const Queue& queue, auto zero) {
    using T = decltype(zero);
    functions.decompress(self_, queue, calls_of(jobs, [](const Job& job) {
      return decoding_of<T>(job, static_cast<T*>(job.call.values), job.call.add != 0, status_of(job.call));
    }));
  });
}

void Codec::residual(const Jobs& jobs) const {
  run(jobs, [&](const auto& functions, const Queue& queue, auto zero) {
    functions.residual(self_, queue, calls_of(jobs, keeping_of<decltype(zero)>));
  });
}

void Codec::restore(const Jobs& jobs) const {
  run(jobs, [&](const auto& functions, const Queue& queue, auto zero) {
    functions.restore(self_, queue, calls_of(jobs, keeping_of<decltype(zero)>));
  });
}

}  // namespace cuda
}  // namespace gluon_gc
