// Lets the library run on systems with glibc 2.24. A new compiler links these functions to versions of them that older
// systems lack. The linker option --wrap (operators/CMakeLists.txt) redirects the calls to the functions below.
#include <new>

// The version of the symbols of the first glibc for the architecture.
#if defined(__aarch64__)
#define GLUON_GC_FIRST_GLIBC "GLIBC_2.17"
#else
#define GLUON_GC_FIRST_GLIBC "GLIBC_2.2.5"
#endif

extern "C" {

// glibc 2.29 added a new version of pow. It still has the old version.
double pow_of_every_glibc(double base, double exponent);
__asm__(".symver pow_of_every_glibc, pow@" GLUON_GC_FIRST_GLIBC);

double __wrap_pow(double base, double exponent) { return pow_of_every_glibc(base, exponent); }

// glibc 2.34 moved these functions from libdl.so.2 to libc.so.6. It still has their old versions.
void* dlopen_of_every_glibc(const char* name, int mode);
void* dlsym_of_every_glibc(void* library, const char* name);
char* dlerror_of_every_glibc();
__asm__(".symver dlopen_of_every_glibc, dlopen@" GLUON_GC_FIRST_GLIBC);
__asm__(".symver dlsym_of_every_glibc, dlsym@" GLUON_GC_FIRST_GLIBC);
__asm__(".symver dlerror_of_every_glibc, dlerror@" GLUON_GC_FIRST_GLIBC);

void* __wrap_dlopen(const char* name, int mode) { return dlopen_of_every_glibc(name, mode); }
void* __wrap_dlsym(void* library, const char* name) { return dlsym_of_every_glibc(library, name); }
char* __wrap_dlerror() { return dlerror_of_every_glibc(); }

// The headers of gcc 11 call a function of its own libstdc++ to throw this exception.
[[noreturn]] void __wrap__ZSt28__throw_bad_array_new_lengthv() { throw std::bad_array_new_length(); }

}  // extern "C"
