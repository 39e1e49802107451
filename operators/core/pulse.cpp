// Signs of life of a process on a socket. They come from a thread of its own, since one of Python's would be silent
// while another holds the interpreter's lock. gluon_gc/launch/pulse.py uses it.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "core/abi.h"

namespace {

class Pulse {
 public:
  Pulse(int socket, int milliseconds, const int (&pipe)[2])
      : stop_(pipe[0]), stopper_(pipe[1]), thread_([=] {
          pollfd stop = {stop_, POLLIN, 0};
          do {  // what finds no room is not waited for: the other end has not read for long
            send(socket, "\n", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
          } while (poll(&stop, 1, milliseconds) <= 0);
        }) {}

  ~Pulse() {
    while (write(stopper_, "", 1) < 0) continue;  // to close it says nothing where a forked child has it, too
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

// Sends an empty line now and every so many milliseconds, until gluon_gc_pulse_end; null if there is no descriptor.
GLUON_GC_API void* gluon_gc_pulse(int socket, int milliseconds) {
  int pipe[2];
  return pipe2(pipe, O_CLOEXEC) == 0 ? new Pulse(socket, milliseconds, pipe) : nullptr;
}

// Returns once the socket can be closed.
GLUON_GC_API void gluon_gc_pulse_end(void* pulse) { delete static_cast<Pulse*>(pulse); }

}  // extern "C"
