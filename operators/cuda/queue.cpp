#include "cuda/queue.h"

#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "core/options.h"
#include "cuda/images.h"

namespace gluon_gc {
namespace cuda {
namespace {

struct Kernel {
  Function function;
  std::size_t blocks;  // that the device can run at the same time
};

// The loaded modules and kernels, by context and name.
struct Loaded {
  std::mutex mutex;
  std::map<std::string, const void*> replaced;  // images of `replace`, by source
  std::map<std::pair<Context, std::string>, Module> modules;
  std::map<std::pair<Context, std::string>, Kernel> kernels;
};

Loaded& loaded() {
  static Loaded& loaded = *new Loaded;  // never destroyed, because threads may still use it at exit
  return loaded;
}

// Rates an image for a device; -1 if it does not run there. Machine code runs on devices of the same major capability,
// from its minor one on. PTX runs on all later devices, and is the second choice.
int suits(const Image& image, int capability) {
  if (image.capability > capability) return -1;
  if (image.ptx) return image.capability;
  return image.capability / 10 == capability / 10 ? 1000 + image.capability : -1;
}

const Image* best_image(const char* source, int capability) {
  const Image* best = nullptr;
  for (const Image* image = images; image->source != nullptr; ++image) {
    const int least = best == nullptr ? 0 : suits(*best, capability) + 1;
    if (std::strcmp(image->source, source) == 0 && suits(*image, capability) >= least) best = image;
  }
  return best;
}

const void* image_of(const char* source) {
  const auto replaced = loaded().replaced.find(source);
  if (replaced != loaded().replaced.end()) return replaced->second;
  const int major = attribute(capability_major), minor = attribute(capability_minor);
  const Image* const image = best_image(source, 10 * major + minor);
  if (image == nullptr) refuse("%s has no machine code for GPUs of compute capability %d.%d", source, major, minor);
  return image->code;
}

Module module_of(const char* source, Context context) {
  Module& module = loaded().modules[{context, source}];
  if (module == nullptr) {
    check(driver().cuModuleLoadData(&module, image_of(source)), "loading the kernels of ", source);
  }
  return module;
}

Kernel kernel_of(const char* source, const std::string& name, Context context) {
  const std::lock_guard<std::mutex> lock(loaded().mutex);
  Kernel& kernel = loaded().kernels[{context, name}];
  if (kernel.function == nullptr) {
    Function function;
    int blocks;
    check(driver().cuModuleGetFunction(&function, module_of(source, context), name.c_str()), "looking for ",
          name.c_str());
    check(driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, block_threads, 0),
          "asking for the occupancy of ", name.c_str());
    kernel = {function, static_cast<std::size_t>(blocks) * attribute(multiprocessors)};
  }
  return kernel;
}

Address address(const void* at) { return reinterpret_cast<Address>(at); }

}  // namespace

void require(const char* source) {
  const std::lock_guard<std::mutex> lock(loaded().mutex);
  if (images[0].source == nullptr && loaded().replaced.count(source) == 0) {
    refuse("gluon_gc was built without code for GPUs: build it with GLUON_GC_WITH_CUDA=1");
  }
  driver();
}

void replace(const char* source, const void* image) {
  const std::lock_guard<std::mutex> lock(loaded().mutex);
  loaded().replaced[source] = image;
  loaded().modules.clear();
  loaded().kernels.clear();
}

Queue::Queue(const char* source, Stream stream)
    : source_(source), stream_(stream), context_(current_context()) {}

void Queue::queue(const std::string& name, std::size_t blocks, std::size_t calls, void** parameters) const {
  const Kernel kernel = kernel_of(source_, name, context_);
  const auto width = static_cast<unsigned>(std::min(std::max<std::size_t>(blocks, 1), kernel.blocks));
  check(driver().cuLaunchKernel(kernel.function, width, static_cast<unsigned>(calls), 1, block_threads, 1, 1, 0,
                                stream_, parameters, nullptr),
        "launching ", name.c_str());
}

void Queue::copy(void* to, const void* from, std::size_t bytes) const {
  if (bytes != 0 && to != from) {
    check(driver().cuMemcpyDtoDAsync(address(to), address(from), bytes, stream_), "copying");
  }
}

void Queue::fill_with_zeros(void* at, std::size_t bytes) const {
  if (bytes != 0) check(driver().cuMemsetD8Async(address(at), 0, bytes, stream_), "filling with zeros");
}

}  // namespace cuda
}  // namespace gluon_gc
