// What the stand-in for the driver has of the emulator.
#pragma once

#include <string>

#include "emulator.h"

namespace emulator {

// Runs a kernel to its end, in a grid of any number of blocks along x. Returns what it did wrong, or nothing.
std::string launch(const Kernel& kernel, Index blocks, unsigned threads, void** parameters);

// Begins the chances anew.
void seed(unsigned number);

}  // namespace emulator
