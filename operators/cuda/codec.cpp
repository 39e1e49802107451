// Codecs on the GPU: the work that all compressors share. core/abi_codec.h has it for the CPU.
//
// The workspace holds the sum that aggregate compresses, and then the compressor's own workspace.
#include "cuda/codec.h"

#include "core/stream.h"

namespace gluon_gc {
namespace cuda {
namespace {

static_assert(sizeof(Status) == sizeof(gluon_gc_status), "kernels write Status for gluon_gc_status");
Status* status_of(const gluon_gc_call& call) { return reinterpret_cast<Status*>(call.status); }

template <typename T>
const Functions<T>& functions_for(const Compressor& compressor);
template <>
const Functions<float>& functions_for(const Compressor& compressor) { return compressor.of_float; }
template <>
const Functions<double>& functions_for(const Compressor& compressor) { return compressor.of_double; }

template <typename Body>
void with_dtype(const Plan& plan, Body body) {
  plan.itemsize == sizeof(float) ? body(float{}) : body(double{});
}

RandomStream stream_of(const gluon_gc_call& call) {
  gluon_gc::Stream stream{{call.position.state[0], call.position.state[1]}};
  jump(stream, call.position.draws);
  return {{stream.state[0], stream.state[1]}};
}

// The words that the blocks of a call share.
uint32* ticket_of(const gluon_gc_call& call) { return static_cast<uint32*>(call.ticket); }

// The compressor's own workspace.
void* workspace_of(const Job& job) { return static_cast<char*>(job.call.workspace) + job.codec.plan.sum_bytes(); }

// The argument of compress, except the gradient and the ratio.
template <typename T>
Encoding<T> encoding_of(const Job& job) {
  const Plan& plan = job.codec.plan;
  const gluon_gc_call& call = job.call;
  const gluon_gc_state& earlier = call.earlier != nullptr ? *call.earlier : call.state;
  Encoding<T> encoding{};
  encoding.n = plan.n;
  encoding.scale = call.scale;
  encoding.scale_by = call.factor;
  encoding.earlier_momentum = plan.mu != 0 ? static_cast<const T*>(earlier.momentum) : nullptr;
  encoding.momentum = plan.mu != 0 ? static_cast<T*>(call.state.momentum) : nullptr;
  encoding.mu = static_cast<T>(plan.mu);
  for (std::size_t i = 0; i < max_memory && plan.feedback; ++i) {
    encoding.earlier_memory[i] = static_cast<const T*>(earlier.memory[i]);
    encoding.memory[i] = static_cast<T*>(call.state.memory[i]);
  }
  encoding.second_elements = static_cast<uint32>(plan.needs.memory[1]);
  encoding.header = static_cast<uint32>(plan.header);
  encoding.ratio = 1;
  encoding.decay = plan.decay;
  encoding.payload = call.payload + plan.header;
  encoding.bytes = plan.payload_bytes();
  encoding.status = status_of(call);
  encoding.stream = stream_of(call);
  encoding.ticket = ticket_of(call);
  encoding.workspace = workspace_of(job);
  return encoding;
}

template <typename T>
Decoding<T> decoding_of(const Job& job, T* out, bool add, Status* status) {
  const Plan& plan = job.codec.plan;
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
          ticket_of(call),
          workspace_of(job)};
}

template <typename T>
Keeping<T> keeping_of(const Job& job) {
  const gluon_gc_call& call = job.call;
  T* const first = static_cast<T*>(call.state.memory[0]);
  return {job.codec.plan.n, {first, static_cast<T*>(call.state.memory[1])}, static_cast<T*>(call.values)};
}

// Returns make(job) for each job, with its launcher.
template <typename Make>
auto tasks_of(const Jobs& jobs, Make make) {
  return each(jobs, [&](const Job& job) { return Task<decltype(make(job))>{job.codec.launcher, make(job)}; });
}

// Calls body(functions of the dtype, queue, zero of the dtype).
template <typename Body>
void run(const Jobs& jobs, Body body) {
  const Codec& first = jobs[0].codec;
  const Stream stream = jobs[0].call.stream;
  for (const Job& job : jobs) {
    if (job.call.stream != stream) refuse("calls that are queued together must have one stream");
  }
  const Queue queue(first.compressor.name, stream);
  with_dtype(first.plan, [&](auto zero) { body(functions_for<decltype(zero)>(first.compressor), queue, zero); });
}

}  // namespace

Codec::Codec(const Compressor& compressor, const Options& options, const Plan& plan)
    : compressor(compressor), plan(plan) {
  require(compressor.name);
  compressor.make(launcher, options, plan.n);
}

std::size_t Codec::workspace_bytes() const {
  std::size_t bytes = plan.sum_bytes();
  with_dtype(plan, [&](auto zero) { bytes += functions_for<decltype(zero)>(compressor).workspace_bytes(launcher); });
  return bytes;
}

void compress(const Jobs& jobs) {
  run(jobs, [&](const auto& functions, const Queue& queue, auto zero) {
    using T = decltype(zero);
    functions.compress(queue, tasks_of(jobs, [](const Job& job) {
      Encoding<T> encoding = encoding_of<T>(job);
      encoding.gradient = static_cast<const T*>(job.call.values);
      if (job.codec.plan.corrected) encoding.ratio = job.call.ratio;
      return encoding;
    }));
  });
}

void aggregate(const Jobs& jobs) {
  run(jobs, [&](const auto& functions, const Queue& queue, auto zero) {
    using T = decltype(zero);
    functions.decompress(queue, tasks_of(jobs, [](const Job& job) {
      return decoding_of<T>(job, static_cast<T*>(job.call.workspace), false, nullptr);
    }));
    functions.compress(queue, tasks_of(jobs, [](const Job& job) {
      Encoding<T> encoding = encoding_of<T>(job);
      encoding.gradient = static_cast<const T*>(job.call.workspace);
      encoding.ratio_from = job.codec.plan.header != 0 ? job.call.payloads : nullptr;
      return encoding;
    }));
  });
}

void decompress(const Jobs& jobs) {
  run(jobs, [&](const auto& functions, const Queue& queue, auto zero) {
    using T = decltype(zero);
    functions.decompress(queue, tasks_of(jobs, [](const Job& job) {
      return decoding_of<T>(job, static_cast<T*>(job.call.values), job.call.add != 0, status_of(job.call));
    }));
  });
}

void residual(const Jobs& jobs) {
  run(jobs, [&](const auto& functions, const Queue& queue, auto zero) {
    functions.residual(queue, tasks_of(jobs, keeping_of<decltype(zero)>));
  });
}

void restore(const Jobs& jobs) {
  run(jobs, [&](const auto& functions, const Queue& queue, auto zero) {
    functions.restore(queue, tasks_of(jobs, keeping_of<decltype(zero)>));
  });
}

}  // namespace cuda
}  // namespace gluon_gc
