# Runs gluon_gc's demo, tests and lint in virtual environments that it creates here:
#   .venv        MXNet (and Horovod), for most tests
#   .venv-torch  PyTorch
#   .venv-core   no framework, for the tests that need none
#   .venv-cu112  MXNet for CUDA, for the GPU operators on an emulated GPU
#   .venv-release  what builds and checks the files of a release, without MXNet

VENV := .venv
PY := $(VENV)/bin/python
# MXNet 1.9.1 has wheels for Python 3.8 to 3.11. PYTHON=/path/to/python selects one.
PYTHON ?= python3.11 python3.10 python3.9 python3.8 python3
# The Python versions that each environment supports, as Python expressions.
OF_MXNET := (3, 8) <= sys.version_info < (3, 12)
OF_TORCH := (3, 10) <= sys.version_info
OF_CORE := (3, 8) <= sys.version_info
NO_MXNET := MXNet 1.9.1 supports no other versions. Install Python 3.11 (on Debian and Ubuntu: \
  python3.11 python3.11-venv), or select one with make PYTHON=/path/to/python3.11
# The first Python in PYTHON that has a supported version and can create virtual environments.
first_python = $(shell for python in $(PYTHON); do \
  $$python -c 'import sys, venv, ensurepip; sys.exit(not $(1))' 2>/dev/null && echo $$python && break; done)
SANITIZE := build/sanitize

# The wheel runs on systems with glibc 2.24 or newer.
PLATFORM := manylinux_2_24_x86_64
UNAUDITED := build/wheel
AARCH64_PLATFORM := manylinux_2_24_aarch64
AARCH64_UNAUDITED := build/wheel-aarch64
# The files of this version: wheels and sdist.
FILES = dist/gluon_gc-$(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' gluon_gc/version.py)

SITE := build/docs

# Python compiles a module when it is first imported, and most of those that are installed never are. The many processes
# of the tests would compile their modules again if the environment kept Python from saving them.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := -m pip install --quiet --disable-pip-version-check --no-compile

CORE_VENV := .venv-core
CORE_PY := $(CORE_VENV)/bin/python
CORE := build/core
GPU := build/gpu
CORE_REQUIREMENTS := requirements/build.txt requirements/test.txt
# The dependencies of gluon_gc without MXNet, in their newest versions.
DEPENDENCIES := numpy xxhash
CORE_TESTS := tests/neutral --ignore tests/neutral/installation tests/launch/test_launcher.py

# PyTorch has its own environment, without MXNet and with the newest NumPy. MXNet's examples use
# GluonCV, which cannot be imported if a current PyTorch is installed.
TORCH_VENV := .venv-torch
TORCH_PY := $(TORCH_VENV)/bin/python
TORCH_REQUIREMENTS := requirements/build.txt requirements/test.txt requirements/torch.txt
INTEGRATIONS := requirements/integrations.txt
MOTO := requirements/moto.txt
FOR_TORCH := build/torch
WITH_TORCH = PYTHONPATH="$(CURDIR)" GLUON_GC_LIBRARY="$(CURDIR)/$(FOR_TORCH)/libgluon_gc.so" $(TORCH_PY)
# PyTorch is tested with the wheel's library, which loads without MXNet. If no Python is old enough
# for MXNet, it is tested with the library built for PyTorch.
TESTED := $(if $(call first_python,$(OF_MXNET)),$(VENV),$(TORCH_VENV))

CU112_VENV := .venv-cu112
CU112_PY := $(CU112_VENV)/bin/python
CU112_REQUIREMENTS := requirements/build.txt requirements/run.txt requirements/test.txt
BED := build/cu112
BED_SOURCES := $(shell find operators $(wildcard tests/cuda tests/cu112) -name '*.h' -o -name '*.cpp' -o -name '*.cu*') \
  operators/CMakeLists.txt tests/cuda/emulator.py tests/cu112/build.py

RELEASE_VENV := .venv-release
RELEASE_PY := $(RELEASE_VENV)/bin/python
RELEASE := requirements/release.txt
OF_AARCH64 := requirements/aarch64.txt

# The inputs that the fuzzer found, which run in programs with AddressSanitizer.
CORPUS := tests/fuzz/test_corpus.py

# Seconds of fuzzing, for all harnesses together.
SECONDS ?= 60

HOROVOD := requirements/horovod.txt
TORCH := requirements/torch.txt
REQUIREMENTS := $(filter-out $(HOROVOD) $(TORCH) $(INTEGRATIONS) $(MOTO) $(RELEASE) $(OF_AARCH64), \
  $(wildcard requirements/*.txt))
SOURCES := setup.py pyproject.toml $(shell find operators -type f)

.DELETE_ON_ERROR:
.PHONY: help demo demo-torch test test-mxnet test-torch test-core test-cu112 test-gpu test-aarch64 bed lint sanitize fuzz wheel \
  wheel-aarch64 tools-aarch64 sdist release docs clean

help:
	@echo "make demo        train on real images with and without compression, and compare (minutes)"
	@echo "make demo-torch  do the same with PyTorch; needs Python 3.10 or newer"
	@echo "make test        run all tests; its parts are make test-mxnet and make test-torch"
	@echo "make test-core   run the tests that need no framework, in an environment without one"
	@echo "make test-gpu    run the kernels on this machine's GPU, and compare with the CPU"
	@echo "make test-cu112  run the tests of mxnet-cu112 (a wheel of 499 MB) on an emulated GPU"
	@echo "make test-aarch64  build the wheel for aarch64, and test it in QEMU; needs Debian's cross compiler (10 minutes)"
	@echo "make bed         build that emulated GPU; tests/cu112/bed COMMAND runs a command on it"
	@echo "make lint        check the Python files with ruff"
	@echo "make sanitize    run the kernels' tests and the fuzzer's inputs under sanitizers"
	@echo "make fuzz        fuzz decoders and messages for SECONDS=n; needs clang"
	@echo "make sdist       pack the sources in dist/"
	@echo "make wheel       build the wheel for all Python versions in dist/"
	@echo "make wheel-aarch64  cross-compile the wheel for aarch64"
	@echo "make release     build both wheels and the sdist in dist/, and check, install and train with each (30 minutes)"
	@echo "make docs        build the site of the documentation in $(SITE)"
	@echo "make clean       remove all environments and build folders"

demo: $(VENV)/.built
	$(PY) example/digits/demo.py

demo-torch: $(TORCH_VENV)/.built
	$(WITH_TORCH) example/pytorch/demo.py

# Tests run side by side, so a waiting OpenMP thread must not keep a core busy. If a worker of pytest
# crashes, the tests end: with another worker, pytest-xdist may wait for ever.
test test-mxnet test-torch: export OMP_WAIT_POLICY = passive

test: test-mxnet test-torch

test-mxnet: $(VENV)/.built $(VENV)/.horovod $(TORCH_VENV)/.installed
	@echo "== Running all tests but PyTorch's, four files at a time"
	$(PY) -m pytest -q --numprocesses 4 --max-worker-restart 0 --dist loadfile --ignore tests/torch --ignore $(CORPUS) tests

test-torch: $(TESTED)/.built $(TORCH_VENV)/.installed
	@echo "== Running PyTorch's tests, three at a time"
	$(if $(filter $(TESTED),$(TORCH_VENV)),$(WITH_TORCH),PYTHONPATH="$(CURDIR)" $(TORCH_PY)) \
	  -m pytest -q --numprocesses 3 --max-worker-restart 0 --dist loadgroup tests/torch

test-core: $(CORE_VENV)/.installed
	@echo "== Building the library without MXNet's operators"
	$(CORE_PY) -m cmake -S operators -B $(CORE)
	$(CORE_PY) -m cmake --build $(CORE) --parallel $$(nproc)
	@echo "== Running the tests that need no framework"
	GLUON_GC_LIBRARY="$(CURDIR)/$(CORE)/libgluon_gc.so" $(CORE_PY) -m pytest -q $(CORE_TESTS)

# A machine with a GPU may have no network and no make; docs/guides/gpu.md lists the files to copy there.
test-gpu: $(CORE_VENV)/.installed requirements/cuda.txt
	@echo "== Building the library with GPU code, without MXNet's operators"
	$(CORE_PY) $(INSTALL) --no-deps -r requirements/cuda.txt
	$(CORE_PY) -m cmake -S operators -B $(GPU) -DGLUON_GC_WITH_CUDA=ON -DPYTHON="$(abspath $(CORE_PY))"
	$(CORE_PY) -m cmake --build $(GPU) --parallel $$(nproc)
	PYTHON="$(abspath $(CORE_PY))" GLUON_GC_LIBRARY="$(CURDIR)/$(GPU)/libgluon_gc.so" tests/cuda/on_gpu.sh

test-cu112: bed
	@echo "== Running the tests of MXNet for CUDA on two emulated GPUs"
	tests/cu112/bed python -m pytest -q tests/cu112

bed: $(BED)/.built

lint: $(VENV)/.installed
	@echo "== Checking the Python files"
	$(PY) -m ruff check .

# Leak detection is off, because MXNet never frees some of its memory.
sanitize: $(VENV)/.built
	@echo "== Building the library with sanitizers"
	$(PY) -m cmake -S operators -B $(SANITIZE) -DGLUON_GC_SANITIZE=ON
	$(PY) -m cmake --build $(SANITIZE) --parallel $$(nproc)
	@echo "== Running the kernels' tests under sanitizers"
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so):$$(gcc -print-file-name=libubsan.so)" \
	  ASAN_OPTIONS=detect_leaks=0 GLUON_GC_LIBRARY="$(CURDIR)/$(SANITIZE)/libgluon_gc.so" \
	  $(PY) -m pytest -q tests/neutral/kernels tests/neutral/compressors
	@echo "== Building the fuzz harnesses with AddressSanitizer, and running the inputs that the fuzzer found"
	$(PY) -m pytest -q $(CORPUS)

fuzz: $(VENV)/.built
	@echo "== Fuzzing the decoders and messages for $(SECONDS) s in total"
	$(PY) -m tests.fuzz $(SECONDS)

# The wheel has no copy of libgomp: MXNet uses the system's, and a copy would be a second thread pool.
wheel: $(VENV)/.installed
	@echo "== Building the wheel"
	rm -rf $(UNAUDITED) build/lib.*
	$(PY) -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps \
	  --wheel-dir $(UNAUDITED) .
	@echo "== Checking that it runs on $(PLATFORM)"
	PATH="$(abspath $(VENV))/bin:$$PATH" $(PY) -m auditwheel repair --plat $(PLATFORM) --only-plat \
	  --exclude libgomp.so.1 --wheel-dir dist $(UNAUDITED)/*.whl

# It has no MXNet operators, because MXNet has no wheel for aarch64. auditwheel finds the oldest platform it runs on.
wheel-aarch64: tools-aarch64 $(RELEASE_VENV)/.installed
	@echo "== Cross-compiling the wheel for aarch64"
	rm -rf $(AARCH64_UNAUDITED) build/lib.linux-aarch64*
	CMAKE_TOOLCHAIN_FILE="$(CURDIR)/operators/aarch64.cmake" _PYTHON_HOST_PLATFORM=linux-aarch64 \
	  $(RELEASE_PY) -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps \
	  --wheel-dir $(AARCH64_UNAUDITED) .
	@echo "== Checking that it runs on $(AARCH64_PLATFORM)"
	PATH="$(abspath $(RELEASE_VENV))/bin:$$PATH" $(RELEASE_PY) -m auditwheel repair --only-plat \
	  --exclude libgomp.so.1 --wheel-dir dist $(AARCH64_UNAUDITED)/*.whl
	ls $(FILES)-*-$(AARCH64_PLATFORM).whl

sdist: $(RELEASE_VENV)/.installed
	@echo "== Packing the sources"
	$(RELEASE_PY) setup.py --quiet sdist --dist-dir dist

test-aarch64: wheel-aarch64 $(TESTED)/.built $(TORCH_VENV)/.installed
	@echo "== Testing the wheel for aarch64"
	$(if $(filter $(TESTED),$(TORCH_VENV)),$(WITH_TORCH),$(PY)) \
	  -m tests.aarch64 $(FILES)-*-$(AARCH64_PLATFORM).whl $(TORCH_PY)

tools-aarch64:
	@for tool in aarch64-linux-gnu-g++ qemu-aarch64-static apt-get; do command -v $$tool > /dev/null || \
	  { echo "$$tool: not found. This needs a Debian with g++-aarch64-linux-gnu and qemu-user-static" >&2; exit 1; }; done

release: tools-aarch64 wheel sdist test-aarch64
	@echo "== Checking the texts that the package index shows"
	$(RELEASE_PY) -m twine check --strict $(FILES)*
	@echo "== Installing the wheel and the sdist in fresh environments, training and testing there"
	$(TORCH_PY) tests/neutral/installation/release.py $(FILES)-*-$(PLATFORM).whl $(FILES).tar.gz
	@echo "== Ready to upload: $(FILES)*"

docs: $(VENV)/.installed
	@echo "== Building the site of the documentation"
	$(PY) -m mkdocs build --quiet --site-dir $(abspath $(SITE))
	@echo "== It begins at $(SITE)/index.html"

clean:
	rm -rf $(VENV) $(CORE_VENV) $(CU112_VENV) $(TORCH_VENV) $(RELEASE_VENV) build dist *.egg-info gluon_gc/libgluon_gc.so

# Creates an environment with the first supported Python; without one, fails with advice.
define environment
	@python="$(call first_python,$(1))"; \
	  if [ -z "$$python" ]; then echo "Found no Python $(strip $(2)) with venv among: $(PYTHON). $(strip $(3))" >&2; exit 1; fi; \
	  echo "== Creating the virtual environment $(@D) with $$($$python --version)"; \
	  $$python -m venv --clear $(@D) && touch $@
endef

$(VENV)/.made $(CU112_VENV)/.made:
	$(call environment,$(OF_MXNET),3.8 to 3.11,$(NO_MXNET))

$(VENV)/.installed: $(VENV)/.made $(REQUIREMENTS)
	@echo "== Installing the pinned requirements (MXNet is large)"
	$(PY) $(INSTALL) --no-deps $(REQUIREMENTS:%=-r %)
	@touch $@

# Without MAKEFLAGS: Horovod's own make compiles one file at a time if this one has the option --jobs.
$(VENV)/.horovod: $(VENV)/.installed $(HOROVOD)
	@echo "== Building Horovod against MXNet, without MPI and NCCL (minutes)"
	MAKEFLAGS= HOROVOD_WITH_MXNET=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 \
	  HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 \
	  HOROVOD_CMAKE="$(CURDIR)/$(VENV)/bin/cmake" CMAKE_TOOLCHAIN_FILE="$(CURDIR)/requirements/horovod.cmake" \
	  $(PY) $(INSTALL) --no-build-isolation --no-cache-dir -r $(HOROVOD)
	@touch $@

$(VENV)/.built: $(VENV)/.installed $(SOURCES)
	@echo "== Compiling the operators and installing gluon_gc into $(VENV)"
	$(PY) $(INSTALL) --no-build-isolation --no-deps -e .
	@touch $@

$(TORCH_VENV)/.made:
	$(call environment,$(OF_TORCH),3.10 or newer,PyTorch supports no older versions.)

$(TORCH_VENV)/.installed: $(TORCH_VENV)/.made $(TORCH_REQUIREMENTS) $(INTEGRATIONS) $(MOTO)
	@echo "== Installing PyTorch and the newest NumPy (very large: includes GPU packages)"
	$(TORCH_PY) $(INSTALL) $(DEPENDENCIES) scikit-learn pillow tqdm $(TORCH_REQUIREMENTS:%=-r %)
	$(TORCH_PY) $(INSTALL) --no-deps -r $(INTEGRATIONS) -r $(MOTO)
	@touch $@

$(TORCH_VENV)/.built: $(TORCH_VENV)/.installed $(SOURCES)
	@echo "== Building the library without MXNet's operators, for PyTorch"
	$(TORCH_PY) -m cmake -S operators -B $(FOR_TORCH)
	$(TORCH_PY) -m cmake --build $(FOR_TORCH) --parallel $$(nproc)
	@touch $@

$(CORE_VENV)/.made:
	$(call environment,$(OF_CORE),3.8 or newer,gluon_gc supports no older versions.)

$(CORE_VENV)/.installed: $(CORE_VENV)/.made $(CORE_REQUIREMENTS)
	@echo "== Installing $(DEPENDENCIES) and the pinned requirements of the build and the tests"
	$(CORE_PY) $(INSTALL) --no-deps $(DEPENDENCIES) $(CORE_REQUIREMENTS:%=-r %)
	@touch $@

$(RELEASE_VENV)/.made:
	$(call environment,$(OF_TORCH),3.10 or newer,auditwheel supports no older versions.)

$(RELEASE_VENV)/.installed: $(RELEASE_VENV)/.made requirements/build.txt $(RELEASE)
	@echo "== Installing what builds and checks a release"
	$(RELEASE_PY) $(INSTALL) -r requirements/build.txt -r $(RELEASE)
	@touch $@

# This environment has mxnet-cu112 instead of mxnet.
$(CU112_VENV)/.installed: $(CU112_VENV)/.made $(CU112_REQUIREMENTS)
	@echo "== Installing the pinned requirements, with MXNet for CUDA (very large)"
	sed 's/^mxnet==/mxnet-cu112==/' $(CU112_REQUIREMENTS) > $(CU112_VENV)/requirements.txt
	$(CU112_PY) $(INSTALL) --no-deps -r $(CU112_VENV)/requirements.txt
	@touch $@

$(BED)/.built: $(CU112_VENV)/.installed $(BED_SOURCES)
	@echo "== Building substitutes for NVIDIA's libraries, and gluon_gc with kernels for the emulator"
	$(CU112_PY) -m tests.cu112.build $(BED)
	@touch $@
