// Gives back memory that NumPy lends to MXNet (gluon_gc/mxnet/lent.py).
//
// MXNet frees its arrays whenever nothing uses them any more: on a thread of its engine, or when Python has begun to
// end. No function of Python may run then, as that of MXNet's own from_numpy would.
#include <dlfcn.h>

namespace {

// As DLPack has it, up to what is used here.
struct Managed {
  unsigned char tensor[48];
  void* owner;
};

template <typename Function>
Function* of_python(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

}  // namespace

// The owner is a Python object, which has a reference for this.
extern "C" __attribute__((visibility("default"))) void gluon_gc_give_back(Managed* lent) {
  static auto* const is_there = of_python<int()>("Py_IsInitialized");
  static auto* const lock = of_python<int()>("PyGILState_Ensure");
  static auto* const unlock = of_python<void(int)>("PyGILState_Release");
  static auto* const release = of_python<void(void*)>("Py_DecRef");
  if (is_there == nullptr || is_there() == 0) return;
  const int before = lock();
  release(lent->owner);
  unlock(before);
}
