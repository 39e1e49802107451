# Runs gluon_gc's demo, tests and lint in a virtual environment that it makes here, .venv.

VENV := .venv
PY := $(VENV)/bin/python
# The Pythons that MXNet 1.9.1 has a wheel for; PYTHON=/path/to/python to name one.
PYTHON ?= python3.11 python3.10 python3.9 python3.8 python3
SANITIZE := build/sanitize

HOROVOD := requirements/horovod.txt
REQUIREMENTS := $(filter-out $(HOROVOD),$(wildcard requirements/*.txt))
SOURCES := setup.py pyproject.toml $(shell find operators -type f)

.DELETE_ON_ERROR:
.PHONY: help demo test lint sanitize clean

help:
	@echo "make demo      train on real images, uncompressed and compressed, and compare (minutes)"
	@echo "make test      run all tests"
	@echo "make lint      check the Python files with ruff"
	@echo "make sanitize  run the kernels' tests under AddressSanitizer and UBSan"
	@echo "make clean     remove what these made"

demo: $(VENV)/.built
	$(PY) example/digits/demo.py

test: $(VENV)/.built $(VENV)/.horovod
	@echo "== Running the tests"
	$(PY) -m pytest -q tests

lint: $(VENV)/.installed
	@echo "== Checking the Python files"
	$(PY) -m ruff check .

# MXNet's process-wide allocations are not ours to check for leaks.
sanitize: $(VENV)/.built
	@echo "== Building the library with sanitizers"
	$(PY) -m cmake -S operators -B $(SANITIZE) -DGLUON_GC_SANITIZE=ON
	$(PY) -m cmake --build $(SANITIZE) --parallel
	@echo "== Running the kernels' tests under sanitizers"
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so):$$(gcc -print-file-name=libubsan.so)" \
	  ASAN_OPTIONS=detect_leaks=0 GLUON_GC_LIBRARY="$(CURDIR)/$(SANITIZE)/libgluon_gc.so" \
	  $(PY) -m pytest -q tests/core

clean:
	rm -rf $(VENV) build *.egg-info gluon_gc/libgluon_gc.so

$(VENV)/.made:
	@for python in $(PYTHON); do \
	  if $$python -c 'import sys, venv, ensurepip; sys.exit(not (3, 8) <= sys.version_info[:2] <= (3, 11))' \
	      2>/dev/null; then \
	    echo "== Making the virtual environment $(VENV) with $$($$python --version)"; \
	    $$python -m venv --clear $(VENV) && touch $@; exit; \
	  fi; \
	done; \
	echo "No Python 3.8 to 3.11 with venv among: $(PYTHON). MXNet 1.9.1 runs on no other:" \
	  "install Python 3.11 (on Debian and Ubuntu: python3.11 python3.11-venv)," \
	  "or name one with make PYTHON=/path/to/python3.11" >&2; exit 1

$(VENV)/.installed: $(VENV)/.made $(REQUIREMENTS)
	@echo "== Installing the pinned requirements (MXNet is large)"
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps $(REQUIREMENTS:%=-r %)
	@touch $@

$(VENV)/.horovod: $(VENV)/.installed $(HOROVOD)
	@echo "== Building Horovod against MXNet, without MPI and NCCL (minutes)"
	HOROVOD_WITH_MXNET=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 \
	  HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 \
	  HOROVOD_CMAKE="$(CURDIR)/$(VENV)/bin/cmake" \
	  $(PY) -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-cache-dir -r $(HOROVOD)
	@touch $@

$(VENV)/.built: $(VENV)/.installed $(SOURCES)
	@echo "== Compiling the operators and installing gluon_gc into $(VENV)"
	$(PY) -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $@
