// Two functions that a new compiler takes from a new glibc and a new libstdc++, from what older ones have
// as well, so that the library runs on the systems of glibc 2.24. The linker is told to call these.
#include <new>

extern "C" {

// Since glibc 2.29, pow has a version that leaves errors to errno; the first one is still there.
double pow_of_every_glibc(double base, double exponent);
__asm__(".symver pow_of_every_glibc, pow@GLIBC_2.2.5");

double __wrap_pow(double base, double exponent) { return pow_of_every_glibc(base, exponent); }

// The headers of gcc 11 throw it by a function of that libstdc++.
[[noreturn]] void __wrap__ZSt28__throw_bad_array_new_lengthv() { throw std::bad_array_new_length(); }

}  // extern "C"
