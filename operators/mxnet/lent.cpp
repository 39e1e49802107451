// Releases memory that NumPy lends to MXNet (gluon_gc/mxnet/engine/memory.py).
//
// MXNet frees an array once nothing uses it, maybe on an engine thread, maybe while Python is shutting down. No Python
// function may run then, but MXNet's own from_numpy would call one.
#include <dlfcn.h>

namespace {

// The first fields of DLPack's DLManagedTensor. `owner` is its manager_ctx.
struct Managed {
  unsigned char tensor[48];
  void* owner;
};

template <typename Function>
Function* of_python(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

}  // namespace

// Drops the reference that MXNet's array holds to the owner, a Python object.
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
