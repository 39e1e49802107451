"""Fuzzes input from networks and disks: harnesses for libFuzzer, and the inputs found so far."""
