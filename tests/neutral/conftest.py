"""Gives hypothesis more time, because the kernels may run under sanitizers."""

from hypothesis import settings

settings.register_profile("kernels", deadline=None, max_examples=30)
settings.load_profile("kernels")
