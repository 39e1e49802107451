// The machine code of the kernels, which compile.py makes; none in a build without GPU code.
#pragma once

namespace gluon_gc {
namespace cuda {

// A source's kernels for a compute capability, 75 for 7.5; PTX, for all later ones, is marked.
struct Image {
  const char* source;  // a compressor, or "convert"
  int capability;
  bool ptx;
  const unsigned char* code;
};

// Ended by one without a name.
extern const Image images[];

}  // namespace cuda
}  // namespace gluon_gc
