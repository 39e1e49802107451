# A toolchain file that cross-compiles the library for aarch64. On Debian and Ubuntu the compiler is in the package
# g++-aarch64-linux-gnu.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
