// Launches a kernel of "onebit" as the library does; test_driver.py links it with its own images.
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
