// Eventcounts (Reed and Kanodia, 1979) for MXNet's engine, in memory that the processes of a machine share. One
// operation advances a count; another completes once a count has reached a value. No engine thread blocks meanwhile:
// each process has one watcher thread, which waits for all its operations. gluon_gc/mxnet/engine/order.py uses it.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include <mxnet/engine.h>

#include "core/abi.h"

namespace {

using Done = mxnet::engine::CallbackOnComplete;
using Count = std::atomic<std::uint32_t>;
static_assert(Count::is_always_lock_free && sizeof(Count) == sizeof(std::uint32_t), "processes share it as a futex");

void futex(Count* word, int operation, std::uint32_t value) {
  syscall(SYS_futex, word, operation, value, nullptr, nullptr, 0);
}

// Wakes the watcher of the process that owns this bell.
void ring(Count* bell) {
  bell->fetch_add(1);
  futex(bell, FUTEX_WAKE, INT_MAX);
}

class Watcher {
 public:
  explicit Watcher(Count* bell) : bell_(bell), thread_([this] { watch(); }) {}

  ~Watcher() {
    ends_ = true;
    ring(bell_);
    thread_.join();
  }

  // Calls `done` once the count has reached the value.
  void await(const Count* count, std::uint32_t value, Done done) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!reached(*count, value)) {
        awaited_.push_back({count, value, done});
        return;  // every later advance rings the bell afterwards
      }
    }
    done();
  }

 private:
  struct Awaited {
    const Count* count;
    std::uint32_t value;
    Done done;
  };

  // Counts may wrap around.
  static bool reached(const Count& count, std::uint32_t value) {
    return static_cast<std::int32_t>(count.load() - value) >= 0;
  }

  void watch() {
    for (;;) {
      const std::uint32_t rung = bell_->load();
      if (ends_) return;
      for (const Done& done : take_reached()) done();
      futex(bell_, FUTEX_WAIT, rung);  // returns at once if the bell was rung after it was read
    }
  }

  std::vector<Done> take_reached() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Done> taken;
    std::vector<Awaited> left;
    for (const Awaited& one : awaited_) {
      if (reached(*one.count, one.value)) {
        taken.push_back(one.done);
      } else {
        left.push_back(one);
      }
    }
    awaited_.swap(left);
    return taken;
  }

  Count* const bell_;
  std::atomic<bool> ends_{false};
  std::mutex mutex_;
  std::vector<Awaited> awaited_;
  std::thread thread_;
};

// These structs have the layout that eventcounts.py declares.
struct Advance {
  Count* count;
  Count* bells;  // of the processes that may await the count
  std::uint32_t number;
};

struct Await {
  Watcher* watcher;
  const Count* count;
  std::uint32_t each, value;  // `value` grows by `each` with every await
};

}  // namespace

extern "C" {

// Starts the watcher of this process, which owns the bell. gluon_gc_watcher_end stops it.
GLUON_GC_API void* gluon_gc_watcher(std::uint32_t* bell) { return new Watcher(reinterpret_cast<Count*>(bell)); }

// No operation may still be waiting.
GLUON_GC_API void gluon_gc_watcher_end(void* watcher) { delete static_cast<Watcher*>(watcher); }

// MXNet's EngineSyncFunc. `parameter` is an Advance.
GLUON_GC_API void gluon_gc_advance(void*, void* parameter) {
  const auto& advance = *static_cast<const Advance*>(parameter);
  advance.count->fetch_add(1);
  for (std::uint32_t i = 0; i < advance.number; ++i) ring(advance.bells + i);
}

// MXNet's EngineAsyncFunc. `parameter` is an Await.
GLUON_GC_API void gluon_gc_await(void*, void* done, void* parameter) {
  auto& await = *static_cast<Await*>(parameter);
  await.value += await.each;
  await.watcher->await(await.count, await.value, *static_cast<const Done*>(done));
}

}  // extern "C"
