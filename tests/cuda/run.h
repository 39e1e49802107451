// The emulator's interface for the emulated driver.
#pragma once

#include <string>

#include "emulator.h"

namespace emulator {

// Runs a kernel to its end, in a grid with a random number of blocks along x. Returns an error, or an empty string.
std::string launch(const Kernel& kernel, Index blocks, unsigned threads, void** parameters);

// Seeds the emulator's random choices.
void seed(unsigned number);

}  // namespace emulator
