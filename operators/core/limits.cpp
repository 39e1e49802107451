#include "core/limits.h"

#include "core/correction.h"
#include "core/parallel.h"
#include "core/vec.h"

namespace gluon_gc {
namespace {

constexpr std::size_t unroll = 4;

// Calls step(i, All) for every sixteen elements, four times in each iteration, and step(i, First) for the rest.
template <typename Step>
void for_each(std::size_t n, int threads, Step step) {
  Blocks<16384>(n).run(threads, [=](std::size_t, std::size_t begin, std::size_t end) {
    sweep<unroll * lanes>(begin, end, [=](std::size_t i, auto present) {
      for (std::size_t part = 0; part < unroll; ++part) step(i + part * lanes, present.part(part));
    });
  });
}

}  // namespace

template <Isa isa>
float LimitKernels<isa>::sum(const float* a, std::size_t n, int threads) {
  const Blocks<16384> blocks(n);
  float block_sums[max_blocks];
  blocks.run(threads, [&](std::size_t block, std::size_t begin, std::size_t end) {
    Vec<float> sums[unroll];
    for (Vec<float>& sum : sums) sum = broadcast(0.0f);
    sweep<unroll * lanes>(begin, end, [&](std::size_t i, auto present) {
      for (std::size_t part = 0; part < unroll; ++part) {
        prefetch_ahead(a + i + part * lanes);
        sums[part] = sums[part] + load(a + i + part * lanes, present.part(part));
      }
    });
    float lane[lanes];
    store((sums[0] + sums[1]) + (sums[2] + sums[3]), lane, All{});
    block_sums[block] = 0;
    for (float x : lane) block_sums[block] += x;
  });
  float sum = 0;
  for (std::size_t block = 0; block < blocks.count; ++block) sum += block_sums[block];
  return sum;
}

template <Isa isa>
void LimitKernels<isa>::fill(float* a, std::size_t n, int threads) {
  for_each(n, threads, [=](std::size_t i, auto present) { store(broadcast(1.0f), a + i, present); });
}

template <Isa isa>
void LimitKernels<isa>::copy(const float* a, float* b, std::size_t n, int threads) {
  for_each(n, threads, [=](std::size_t i, auto present) { store(load(a + i, present), b + i, present); });
}

template <Isa isa>
void LimitKernels<isa>::add_constant(float* a, std::size_t n, int threads) {
  for_each(n, threads, [=](std::size_t i, auto present) {
    store(load(a + i, present) + broadcast(1.0f), a + i, present);
  });
}

template <Isa isa>
void LimitKernels<isa>::add(float* a, const float* b, std::size_t n, int threads) {
  const StateWriter<float> write_a(a, a + n);
  for_each(n, threads, [=](std::size_t i, auto present) {
    prefetch_ahead(a + i);
    prefetch_ahead(b + i);
    write_a(load(a + i, present) + load(b + i, present), i, present);
  });
}

template <Isa isa>
void LimitKernels<isa>::add_twice(float* a, float* b, const float* c, std::size_t n, int threads) {
  const StateWriter<float> write_a(a, a + n), write_b(b, b + n);
  for_each(n, threads, [=](std::size_t i, auto present) {
    const Vec<float> x = load(c + i, present);
    write_a(load(a + i, present) + x, i, present);
    write_b(load(b + i, present) + x, i, present);
  });
}

template <Isa isa>
void LimitKernels<isa>::narrow(const std::uint32_t* __restrict a, std::uint16_t* __restrict b,
                               std::size_t n, int threads) {
  Blocks<16384>(n).run(threads, [=](std::size_t, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) b[i] = static_cast<std::uint16_t>(a[i] >> 16);
  });
}

template <Isa isa>
void LimitKernels<isa>::widen(const std::uint16_t* __restrict a, std::uint32_t* __restrict b,
                              std::size_t n, int threads) {
  Blocks<16384>(n).run(threads, [=](std::size_t, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) b[i] = std::uint32_t{a[i]} << 16;
  });
}

template struct LimitKernels<this_isa>;

}  // namespace gluon_gc
