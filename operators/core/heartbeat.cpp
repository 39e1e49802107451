// Sends the heartbeats of a process to a socket. A C++ thread sends them, because a Python thread would be silent while
// another thread holds the interpreter's lock. gluon_gc/launch/heartbeat.py uses this file.
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
          do {  // never blocks: if the buffer is full, the other end has not read for a long time
            send(socket, "\n", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
          } while (poll(&stop, 1, milliseconds) <= 0);
        }) {}

  ~Heartbeat() {
    while (write(stopper_, "", 1) < 0) continue;  // closing it would not wake the thread if a forked child has it open
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

// Sends an empty line now and every `milliseconds` until gluon_gc_heartbeat_end. Returns null if no file descriptor is
// free.
GLUON_GC_API void* gluon_gc_heartbeat(int socket, int milliseconds) {
  int pipe[2];
  return pipe2(pipe, O_CLOEXEC) == 0 ? new Heartbeat(socket, milliseconds, pipe) : nullptr;
}

// Stops the heartbeats. When it returns, the caller may close the socket.
GLUON_GC_API void gluon_gc_heartbeat_end(void* heartbeat) { delete static_cast<Heartbeat*>(heartbeat); }

}  // extern "C"
