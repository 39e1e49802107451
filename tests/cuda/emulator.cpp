// Runs kernels as fibers: each thread of a block has a stack, and runs until it waits for others.
//
// Behaviour that a GPU leaves open is random here: the next thread to run, the order of blocks, and the number of
// blocks alive at a time. So are the grid's size along x (kernels accept any size) and the initial shared memory.
//
// Behaviour that a GPU does not allow is an error: threads that wait at different barriers or not all at one, lanes
// that meet in different operations, and data that is published without a fence. Memory is host memory, where each
// write is visible at once. So a missing fence shows only as such an error, and an invalid address as a page fault.
#include "emulator.h"

#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "run.h"

extern "C" void emulator_switch(void** from, void* to);
asm(R"(
.text
.type emulator_switch, @function
emulator_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size emulator_switch, .-emulator_switch
.section .note.GNU-stack, "", @progbits
.text
)");

namespace emulator {

Index thread, block, blocks;

namespace {

constexpr unsigned block_threads = 256, warp_lanes = 32, warps = block_threads / warp_lanes;
constexpr std::size_t stack_bytes = 64 << 10;
constexpr unsigned most_alive = 4;

struct Fiber {
  void* stack_pointer;
  bool fenced;
};

struct Warp {
  const char* operation;
  unsigned arrived, turn;
  std::uint64_t given[2][warp_lanes];  // alternating, so that the next operation can start while this one is read
};

struct Block {
  Block() {
    void* const room = mmap(nullptr, block_threads * stack_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    stacks = static_cast<char*>(room);
  }
  ~Block() { munmap(stacks, block_threads * stack_bytes); }

  char* stacks;
  Index index;
  unsigned done, arrived;  // numbers of threads that have left, and that wait at `barrier`
  Place barrier;
  Fiber fibers[block_threads];
  Warp warp[warps];
  std::vector<unsigned> ready;
  std::vector<char> shared;
};

// A launch in progress
struct Run {
  const Kernel* kernel;
  void** parameters;
  std::vector<Block*> alive;
  Block* current;
  char* shared;  // the address at which threads see their block's shared memory
  std::size_t shared_bytes;
  void* launcher;  // the launcher's stack pointer
  std::string error;
};

Run run;
std::mt19937 chance;
std::vector<std::unique_ptr<Block>> rooms;  // blocks for reuse

unsigned any(unsigned below) { return static_cast<unsigned>(chance() % below); }

// Finds the shared memory of the kernel's module, which is its thread-local storage.
void find_shared() {
  const char* const within = run.kernel->shared();
  dl_iterate_phdr(
      [](dl_phdr_info* module, std::size_t, void* within) {
        for (int i = 0; i < module->dlpi_phnum; ++i) {
          char* const begin = static_cast<char*>(module->dlpi_tls_data);
          const std::size_t bytes = module->dlpi_phdr[i].p_memsz;
          if (module->dlpi_phdr[i].p_type != PT_TLS || within < begin || within >= begin + bytes) continue;
          run.shared = begin;
          run.shared_bytes = bytes;
        }
        return 0;
      },
      const_cast<char*>(within));
}

// Copies a block's shared memory to the address at which threads see it.
void show(Block* next) {
  if (next == run.current) return;
  if (run.current != nullptr) std::memcpy(run.current->shared.data(), run.shared, run.shared_bytes);
  if (next != nullptr) std::memcpy(run.shared, next->shared.data(), run.shared_bytes);
  run.current = next;
}

[[noreturn]] void to_launcher() {
  void* nowhere;
  emulator_switch(&nowhere, run.launcher);
  __builtin_unreachable();
}

[[noreturn]] void fail(std::string error) {
  run.error = std::move(error);
  to_launcher();
}

[[noreturn]] void enter() {
  run.kernel->run(run.parameters);
  ++run.current->done;
  to_launcher();
}

Fiber& self() { return run.current->fibers[thread.x]; }

// Chooses the next thread to run; returns null if all wait.
Fiber* next() {
  if (run.current == nullptr || run.current->ready.empty() || any(64) == 0) {
    const unsigned first = any(static_cast<unsigned>(run.alive.size()));
    unsigned i = 0;
    while (i < run.alive.size() && run.alive[(first + i) % run.alive.size()]->ready.empty()) ++i;
    if (i == run.alive.size()) return nullptr;
    show(run.alive[(first + i) % run.alive.size()]);
  }
  std::vector<unsigned>& ready = run.current->ready;
  std::swap(ready[any(static_cast<unsigned>(ready.size()))], ready.back());
  thread.x = ready.back();
  block = run.current->index;
  ready.pop_back();
  return &self();
}

// Runs other threads until this one is ready and chosen.
void wait() {
  Fiber& waiting = self();
  Fiber* const chosen = next();
  if (chosen == &waiting) return;
  emulator_switch(&waiting.stack_pointer, chosen != nullptr ? chosen->stack_pointer : run.launcher);
}

std::string text(Place place) { return std::string(place.file) + ":" + std::to_string(place.line); }

void start(Block* block, Index index) {
  block->index = index;
  block->done = block->arrived = 0;
  block->ready.clear();
  block->shared.resize(run.shared_bytes);
  for (char& byte : block->shared) byte = static_cast<char>(any(255) + 1);
  for (Warp& warp : block->warp) warp = {};
  for (unsigned i = 0; i < block_threads; ++i) {
    void** top = reinterpret_cast<void**>(block->stacks + (i + 1) * stack_bytes);
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(enter);
    block->fibers[i] = {top - 6, false};
    block->ready.push_back(i);
  }
  run.alive.push_back(block);
}

// Returns why no thread can run.
std::string stuck() {
  for (const Block* waiting : run.alive) {
    if (waiting->arrived != 0) return "not all threads of a block come to " + text(waiting->barrier);
    for (const Warp& warp : waiting->warp) {
      if (warp.arrived != 0) return "not all lanes of a warp come to a " + std::string(warp.operation);
    }
  }
  return "nothing is left to run";
}

}  // namespace

void block_barrier(Place place) {
  Block& here = *run.current;
  if (here.arrived != 0 && (place.line != here.barrier.line || std::strcmp(place.file, here.barrier.file) != 0)) {
    fail("threads of a block wait at " + text(place) + " and at " + text(here.barrier));
  }
  here.barrier = place;
  if (++here.arrived == block_threads) {
    here.arrived = 0;
    for (unsigned i = 0; i < block_threads; ++i) here.ready.push_back(i);
  }
  wait();
}

const std::uint64_t* exchange(const char* operation, unsigned lanes, std::uint64_t given) {
  if (lanes != 0xffffffff) fail("a warp's operation is not one of all lanes");
  Warp& warp = run.current->warp[thread.x / warp_lanes];
  if (warp.arrived != 0 && std::strcmp(warp.operation, operation) != 0) {
    fail(std::string("lanes of a warp meet in a ") + operation + " and a " + warp.operation);
  }
  warp.operation = operation;
  std::uint64_t* const all = warp.given[warp.turn];
  all[thread.x % warp_lanes] = given;
  if (++warp.arrived == warp_lanes) {
    warp.arrived = 0;
    warp.turn ^= 1;
    const unsigned first = thread.x / warp_lanes * warp_lanes;
    for (unsigned i = first; i < first + warp_lanes; ++i) {
      if (i != thread.x) run.current->ready.push_back(i);
    }
    return all;
  }
  wait();
  return all;
}

void fence() { self().fenced = true; }

void publishing() {
  for (Fiber& fiber : run.current->fibers) {
    if (!fiber.fenced) fail("an atomic operation tells others of what was written without a fence");
    fiber.fenced = false;
  }
}

void seed(unsigned number) { chance.seed(number); }

std::string launch(const Kernel& kernel, Index wanted, unsigned threads, void** parameters) {
  if (threads != block_threads) return "blocks must have 256 threads, not " + std::to_string(threads);
  if (wanted.x == 0 || wanted.y == 0) return "a grid must have blocks";
  const unsigned grids[] = {1, 2, 3, 5, wanted.x < 8 ? wanted.x : 8};
  blocks = {grids[any(5)], wanted.y};
  run = {&kernel, parameters, {}, nullptr, nullptr, 0, nullptr, {}};
  find_shared();
  const unsigned together = 1 + any(most_alive);
  std::vector<Block*> free;
  while (rooms.size() < most_alive) rooms.push_back(std::make_unique<Block>());
  for (const auto& room : rooms) free.push_back(room.get());

  std::vector<Index> waiting;
  for (unsigned i = 0; i < blocks.x * blocks.y; ++i) waiting.push_back({i % blocks.x, i / blocks.x});
  std::shuffle(waiting.begin(), waiting.end(), chance);

  while (run.error.empty()) {
    while (!waiting.empty() && run.alive.size() < together) {
      start(free.back(), waiting.back());
      free.pop_back();
      waiting.pop_back();
    }
    if (run.alive.empty()) break;
    Fiber* const chosen = next();
    if (chosen == nullptr) return stuck();
    emulator_switch(&run.launcher, chosen->stack_pointer);
    for (std::size_t i = run.alive.size(); i-- > 0;) {
      if (run.alive[i]->done < block_threads) continue;
      if (run.current == run.alive[i]) run.current = nullptr;
      free.push_back(run.alive[i]);
      run.alive.erase(run.alive.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  return run.error;
}

}  // namespace emulator
