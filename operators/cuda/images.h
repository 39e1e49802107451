// The machine code of the kernels, which compile.py makes. Empty in a build without GPU code.
#pragma once

namespace gluon_gc {
namespace cuda {

// The kernels of a source for a compute capability (75 is 7.5), or as PTX for this one and all later ones.
struct Image {
  const char* source;  // a compressor, "convert" or "clip"
  int capability;
  bool ptx;
  const unsigned char* code;
};

// The last entry has no source.
extern const Image images[];

}  // namespace cuda
}  // namespace gluon_gc
