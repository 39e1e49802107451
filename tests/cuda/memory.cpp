#include "memory.h"

#include <sys/mman.h>

#include <cstring>
#include <map>
#include <mutex>

namespace emulator {

namespace {

constexpr std::size_t page = 4096;

// The protection key of GPU memory: threads need Access to use it. -1: the processor has no keys.
int key() {
  static const int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
  return key;
}

thread_local bool has_access = false;

void set_access(bool access) {
  has_access = access;
  if (key() != -1) pkey_set(key(), access ? 0 : PKEY_DISABLE_ACCESS);
}

std::mutex mutex;
std::map<void*, std::size_t>& sizes() {
  static auto& sizes = *new std::map<void*, std::size_t>;  // never destroyed, because threads may run until exit
  return sizes;
}

}  // namespace

Access::Access() : had_(has_access) { set_access(true); }
Access::~Access() { set_access(had_); }

void* allocate(std::size_t bytes) {
  const std::size_t mapped = (bytes + page - 1) / page * page + page;
  void* const memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  std::memset(memory, 0xA5, bytes);
  if (key() != -1) pkey_mprotect(memory, mapped, PROT_READ | PROT_WRITE, key());
  const std::lock_guard<std::mutex> lock(mutex);
  sizes()[memory] = mapped;
  return memory;
}

void release(void* memory) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = sizes().find(memory);
  if (found == sizes().end()) return;
  munmap(memory, found->second);
  sizes().erase(found);
}

}  // namespace emulator
