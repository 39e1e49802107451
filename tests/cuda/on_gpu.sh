#!/bin/sh
# Compares the kernels on this machine's GPU with the CPU, and again under compute-sanitizer if it is installed.
# $PYTHON must have NumPy, pytest and hypothesis. GLUON_GC_LIBRARY must be a library built with GLUON_GC_WITH_CUDA.
set -e
cd "$(dirname "$0")/../.."
tests="${PYTHON:-python3} -m pytest -q --gpu tests/cuda/test_device.py"
echo "== Comparing the GPU's bytes with the CPU's"
$tests
if ${PYTHON:-python3} -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2> /dev/null; then
  echo "== Comparing PyTorch's workers on the GPU with workers on the CPU"
  workers="${PYTHON:-python3} -m torch.distributed.run --standalone --nproc-per-node 2 tests/cuda/torch_on_gpu.py"
  $workers
  if ${PYTHON:-python3} -c 'import sys, torch; sys.exit(torch.cuda.device_count() < 2)'; then
    echo "== The same over NCCL"
    GLUON_GC_PAYLOADS=nccl $workers
  else
    echo "== There is one GPU: nothing ran over NCCL"
  fi
fi
if command -v compute-sanitizer > /dev/null; then
  for tool in memcheck racecheck synccheck; do
    echo "== The same under compute-sanitizer's $tool"
    compute-sanitizer --tool "$tool" --error-exitcode 1 $tests -k of_the_cpu
  done
else
  echo "== compute-sanitizer is not here: nothing ran under it"
fi
