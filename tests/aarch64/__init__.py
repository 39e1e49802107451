"""Runs the library for aarch64 in an emulator, and compares its bits with those of x86-64."""
