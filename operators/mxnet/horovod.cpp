// Works around a use after free in Horovod 0.28.1. Horovod queues a function on MXNet's engine, which frees the
// function's argument once Horovod's own thread has completed the collective. The function may still be running then:
// it reads the name of an alltoall or a broadcast from the argument, for its log. Here the argument is kept until the
// function has returned. gluon_gc/mxnet/kvstore/horovod/process_set.py uses this.
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>

#include <mxnet/c_api.h>

#include "core/abi.h"

namespace {

using Push = decltype(&MXEnginePushAsync);

Push push = nullptr;  // MXNet's own MXEnginePushAsync

struct Queued {
  const EngineAsyncFunc function;
  void* const argument;
  const EngineFuncParamDeleter deleter;
  std::atomic<int> holders{1};
};

void leave(Queued* queued) {
  if (--queued->holders > 0) return;
  queued->deleter(queued->argument);
  delete queued;
}

void run(void* context, void* done, void* argument) {
  const std::unique_ptr<Queued, decltype(&leave)> queued(static_cast<Queued*>(argument), leave);
  ++queued->holders;
  queued->function(context, done, queued->argument);
}

void release(void* argument) { leave(static_cast<Queued*>(argument)); }

// Replaces MXEnginePushAsync: the function's argument lives until the function has returned.
int push_keeping(EngineAsyncFunc function, void* argument, EngineFuncParamDeleter deleter, ContextHandle context,
                 EngineVarHandle read, int reads, EngineVarHandle written, int writes, EngineFnPropertyHandle property,
                 int priority, const char* name, bool wait) {
  auto* const queued = new Queued{function, argument, deleter};
  return push(run, queued, release, context, read, reads, written, writes, property, priority, name, wait);
}

// Searches the relocations of a library, loaded at `base`, for an imported function. Returns where the library keeps
// the function's address, or null if it does not import the function.
void** slot_of(ElfW(Addr) base, const ElfW(Dyn)* entry, const char* function) {
  const char* names = nullptr;
  const ElfW(Sym)* symbols = nullptr;
  const ElfW(Rela)* tables[2] = {};
  std::size_t bytes[2] = {};
  for (; entry->d_tag != DT_NULL; ++entry) {
    const auto address = entry->d_un.d_ptr;
    switch (entry->d_tag) {
      case DT_STRTAB: names = reinterpret_cast<const char*>(address); break;
      case DT_SYMTAB: symbols = reinterpret_cast<const ElfW(Sym)*>(address); break;
      case DT_JMPREL: tables[0] = reinterpret_cast<const ElfW(Rela)*>(address); break;
      case DT_PLTRELSZ: bytes[0] = entry->d_un.d_val; break;
      case DT_RELA: tables[1] = reinterpret_cast<const ElfW(Rela)*>(address); break;
      case DT_RELASZ: bytes[1] = entry->d_un.d_val; break;
    }
  }
  for (int i = 0; i < 2; ++i) {
    const std::size_t count = tables[i] ? bytes[i] / sizeof(ElfW(Rela)) : 0;
    for (std::size_t j = 0; j < count; ++j) {
      const ElfW(Rela)& one = tables[i][j];
      const ElfW(Sym)& symbol = symbols[ELF64_R_SYM(one.r_info)];
      if (std::strcmp(names + symbol.st_name, function) == 0) {
        return reinterpret_cast<void**>(base + one.r_offset);
      }
    }
  }
  return nullptr;
}

struct Search {
  ElfW(Addr) within;  // an address in the library
  const char* function;
  void** slot;
};

int look(dl_phdr_info* library, std::size_t, void* argument) {
  auto& search = *static_cast<Search*>(argument);
  const ElfW(Dyn)* dynamic = nullptr;
  bool found = false;
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = library->dlpi_phdr[i];
    const ElfW(Addr) begin = library->dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(begin);
    if (segment.p_type == PT_LOAD) found = found || search.within - begin < segment.p_memsz;
  }
  if (found && dynamic != nullptr) search.slot = slot_of(library->dlpi_addr, dynamic, search.function);
  return found;
}

}  // namespace

// Keeps the arguments of functions that a library queues on MXNet's engine until the functions have returned. `within`
// is any function of the library. Does nothing if the library does not import MXEnginePushAsync.
extern "C" GLUON_GC_API void gluon_gc_keep_arguments(void* within, void* mxnet_push) {
  Search search{reinterpret_cast<ElfW(Addr)>(within), "MXEnginePushAsync", nullptr};
  dl_iterate_phdr(look, &search);
  if (search.slot == nullptr) return;
  const auto page = reinterpret_cast<ElfW(Addr)>(search.slot) & -static_cast<ElfW(Addr)>(getpagesize());
  if (mprotect(reinterpret_cast<void*>(page), sizeof(void*), PROT_READ | PROT_WRITE) != 0) return;
  push = reinterpret_cast<Push>(mxnet_push);
  *search.slot = reinterpret_cast<void*>(push_keeping);
}
