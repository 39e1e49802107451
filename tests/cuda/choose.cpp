// The launch of any kernel of "onebit", as the library does it: test_driver.py links it with images of its own.
#include <exception>
#include <string>

#include "cuda/queue.h"

extern "C" const char* launch() {
  static std::string message;
  try {
    gluon_gc::cuda::Queue("onebit", nullptr).launch<float>("onebit_compress", 1, 0);
    message = "launched";
  } catch (const std::exception& error) {
    message = error.what();
  }
  return message.c_str();
}
