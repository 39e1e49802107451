"""Gives hypothesis more time, because the kernels may run under sanitizers."""

from hypothesis import settings

# It inherits from the profile of tests/conftest.py.
settings.register_profile("kernels", settings.default, max_examples=30)
settings.load_profile("kernels")
