// Functions that a new compiler takes from a new glibc and a new libstdc++, from what older ones have as well,
// so that the library runs on the systems of glibc 2.24. The linker is told to call these.
#include <new>

extern "C" {

// Since glibc 2.29, pow has a version that leaves errors to errno; the first one is still there.
double pow_of_every_glibc(double base, double exponent);
__asm__(".symver pow_of_every_glibc, pow@GLIBC_2.2.5");

double __wrap_pow(double base, double exponent) { return pow_of_every_glibc(base, exponent); }

// Since glibc 2.34 they are in libc.so.6, which still has those of libdl.so.2.
void* dlopen_of_every_glibc(const char* name, int mode);
void* dlsym_of_every_glibc(void* library, const char* name);
char* dlerror_of_every_glibc();
__asm__(".symver dlopen_of_every_glibc, dlopen@GLIBC_2.2.5");
__asm__(".symver dlsym_of_every_glibc, dlsym@GLIBC_2.2.5");
__asm__(".symver dlerror_of_every_glibc, dlerror@GLIBC_2.2.5");

void* __wrap_dlopen(const char* name, int mode) { return dlopen_of_every_glibc(name, mode); }
void* __wrap_dlsym(void* library, const char* name) { return dlsym_of_every_glibc(library, name); }
char* __wrap_dlerror() { return dlerror_of_every_glibc(); }

// The headers of gcc 11 throw it by a function of that libstdc++.
[[noreturn]] void __wrap__ZSt28__throw_bad_array_new_lengthv() { throw std::bad_array_new_length(); }

}  // extern "C"
