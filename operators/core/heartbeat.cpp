// The heartbeats of a process on a socket. They come from a thread of their own, because a thread of Python would be
// silent while another one holds the interpreter's lock. gluon_gc/launch/heartbeat.py uses it.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "core/abi.h"

namespace {

class Heartbeat {
 public:
  Heartbeat(int socket, int milliseconds, const int (&pipe)[2])
      : stop_(pipe[0]), stopper_(pipe[1]), thread_([=] {
          pollfd stop = {stop_, POLLIN, 0};
          do {  // does not wait for room in the buffer: the other end has not read for long
            send(socket, "\n", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
          } while (poll(&stop, 1, milliseconds) <= 0);
        }) {}

  ~Heartbeat() {
    while (write(stopper_, "", 1) < 0) continue;  // closing it would not wake the thread if a forked child has it, too
    thread_.join();
    close(stopper_);
    close(stop_);
  }

 private:
  int stop_, stopper_;
  std::thread thread_;
};

}  // namespace

extern "C" {

// Sends an empty line now and in each interval until gluon_gc_heartbeat_end. Null if there is no free descriptor.
GLUON_GC_API void* gluon_gc_heartbeat(int socket, int milliseconds) {
  int pipe[2];
  return pipe2(pipe, O_CLOEXEC) == 0 ? new Heartbeat(socket, milliseconds, pipe) : nullptr;
}

// Returns once the socket can be closed.
GLUON_GC_API void gluon_gc_heartbeat_end(void* heartbeat) { delete static_cast<Heartbeat*>(heartbeat); }

}  // extern "C"
