// The launch of any kernel of "onebit", as the library does it: test_driver.py links it with images of its own.
#include <exception>
#include <string>

#include "cuda/queue.h"

using namespace gluon_gc::cuda;

extern "C" const char* launch() {
  static std::string message;
  try {
    const Queue queue("onebit", nullptr);
    queue.launch<float>("onebit_residual", std::vector<Keeping<float>>(1));
    message = "launched";
  } catch (const std::exception& error) {
    message = error.what();
  }
  return message.c_str();
}
