# Makefile: every task of the repository. `make demo` and `make test` set up all they need.
#
# A stamp file in the virtual environment stands for "these packages are in"; setup.py decides
# what has to be compiled, so `build` runs every time and costs two seconds when nothing changed.

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
COMPAT ?= 2.11.0 2.15.0
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
PYTEST_FLAGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/pip --quiet --disable-pip-version-check
export MAX_JOBS := $(JOBS)
export MANAGED_WERROR ?= 1

.PHONY: help build demo test ctest asan tsan valgrind conformance bench docs compat gpu lint wheel clean
.DELETE_ON_ERROR:

help:
	@echo "make demo | test | build | ctest | asan | tsan | valgrind | conformance | bench"
	@echo "     docs | lint | wheel | compat | gpu | clean"

# ---- environment

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.torch: | $(BIN)/python
	$(PIP) install --upgrade pip "setuptools>=77" wheel ninja numpy
	$(PIP) install "$(TORCH)"
	@touch $@

# Makes the package importable from the environment without building it yet.
$(VENV)/.editable: pyproject.toml setup.py $(VENV)/.torch
	MANAGED_ONLY=none $(PIP) install --no-build-isolation --no-deps --config-settings editable_mode=compat --editable .
	@touch $@

# An extra of pyproject.toml (.test, .docs, ...). The constraint keeps a dependency from
# replacing the torch that the extensions are built for.
$(VENV)/.%: pyproject.toml $(VENV)/.editable
	echo "$(TORCH)" > $(VENV)/constraint.txt
	MANAGED_ONLY=none $(PIP) install --no-build-isolation --config-settings editable_mode=compat --editable ".[$*]" --constraint $(VENV)/constraint.txt
	@touch $@

build: $(VENV)/.editable
	@$(BIN)/python setup.py --quiet build_ext --inplace
