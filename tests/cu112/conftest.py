"""Tests of MXNet for CUDA. They need two GPUs, which make test-cu112 emulates."""

import mxnet as mx

if mx.context.num_gpus() < 2:
    collect_ignore_glob = ["test_*.py"]
