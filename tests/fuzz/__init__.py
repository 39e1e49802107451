"""Fuzzing of what comes from a network or a disk: harnesses for libFuzzer, and what they found."""
