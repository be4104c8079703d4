# Makefile: every task of the repository. `make demo` and `make test` set up all they need.
#
# A stamp file in the virtual environment stands for "these packages are in"; setup.py decides
# what has to be compiled, so `build` runs every time and costs two seconds when nothing changed.

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
COMPAT ?= 2.11.0 2.15.0
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
# A test that hangs for ten minutes shows its threads and ends the run.
# A worker takes files as a whole and, at the end, tests of the other's files: each imports few libraries.
PYTEST_FLAGS ?= -n 2 --dist worksteal
PYTEST = -m pytest -o faulthandler_exit_on_timeout=true

BIN := $(VENV)/bin
PIP := $(BIN)/pip -qq --disable-pip-version-check
export MAX_JOBS := $(JOBS)
export MANAGED_WERROR ?= 1

.PHONY: help build demo test check ctest asan tsan valgrind conformance torture stress fuzz asan-python tsan-python bench docs docs-look compat ecosystem gpu lint wheel packages conda clean virtual-gpu virtual-gpu-slice virtual-gpu-build virtual-gpu-seeds mutate-waits
.PRECIOUS: .venv-compat-%/.torch .venv-compat-%/.test # made on the way, kept
.DELETE_ON_ERROR:

help:
	@echo "make demo | test | check | build | ctest | asan | tsan | valgrind | conformance | bench"
	@echo "     torture | stress | fuzz | asan-python | tsan-python | docs | docs-look | lint | wheel | packages | conda | compat | ecosystem | gpu | virtual-gpu | virtual-gpu-seeds | mutate-waits | clean"

# ---- environment

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.torch: | $(BIN)/python
	$(PIP) install --upgrade pip "setuptools>=77" wheel ninja numpy
	$(PIP) install "$(TORCH)"
	@touch $@

# Makes the package importable from the environment without building it yet.
$(VENV)/.editable: pyproject.toml $(VENV)/.torch
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

# ---- what a newcomer runs

demo: $(VENV)/.examples build
	@$(BIN)/python examples/pde_fault.py --devices 4 --out build/demo

# What a newcomer runs: every public behaviour and every error path once. pytest comes last: its closing line is the
# result. --first leaves to `make check` what a marker of pyproject.toml names.
test: $(VENV)/.test build ctest
	@$(BIN)/python $(PYTEST) --first $(PYTEST_FLAGS)

# Everything.
check: lint ctest
	@$(BIN)/python tools/circles.py
	@$(BIN)/python $(PYTEST) $(PYTEST_FLAGS)
	@$(MAKE) --no-print-directory bench BENCH_FLAGS="--quick --check"
	@$(MAKE) --no-print-directory packages
	@tools/fresh.sh

# ---- the core alone: C, no torch

ctest:
	@$(MAKE) --no-print-directory -C tests/core run
asan tsan valgrind:
	@$(MAKE) --no-print-directory -C tests/core $@

# ---- longer checks

conformance: $(VENV)/.test build
	@$(BIN)/python $(PYTEST) -m conformance tests/conformance tests/on/test_run.py $(PYTEST_FLAGS)

# The Python suite while everything that nobody uses leaves its device before each operator. The sweeps over operators
# have placements of their own for that; tests that cannot hold then are marked not_under_torture, with the reason.
TORTURE ?= all
torture: $(VENV)/.test build
	@MANAGED_TORTURE=$(TORTURE) $(BIN)/python $(PYTEST) -m "not conformance" --ignore=tests/conformance --ignore=tests/house/test_build.py $(PYTEST_FLAGS)

# Threads that train, infer and make everything leave, for as long as is asked for; tests/stress_spill.py says what fails.
SECONDS ?= 300
stress: $(VENV)/.editable build
	@$(BIN)/python tests/stress_spill.py $(SECONDS)

# Random programs on plain and on managed tensors; a failure is shortened and printed, and SEED repeats it.
SEED ?= 0
fuzz: $(VENV)/.editable build
	@$(BIN)/python tests/fuzz.py $(SECONDS) $(SEED)

# The Python suite with the extensions under AddressSanitizer; torch itself is not instrumented.
# Leaks are not asked for: the interpreter and torch keep much until the very end.
asan-python: export MANAGED_SANITIZE := address,undefined
asan-python: $(VENV)/.test build
	@status=0; PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" \
	  $(BIN)/python $(PYTEST) -m "not conformance" --ignore=tests/conformance --ignore=tests/house/test_build.py $(PYTEST_FLAGS) || status=$$?; \
	MANAGED_SANITIZE= $(BIN)/python setup.py --quiet build_ext --inplace; exit $$status

# Threads that share everything, under ThreadSanitizer; tests/tsan.supp names what is not ours. The package is built
# in a folder of its own. Some kernels lay out memory as the tool cannot use it: hence no random addresses.
TSAN_ROUNDS ?= 30
TSAN_SEEDS ?= 0 1 2
TSAN_SECONDS ?= 60
TSAN_RUN = LD_PRELOAD="$$(gcc -print-file-name=libtsan.so) $$(gcc -print-file-name=libstdc++.so)" PYTHONPATH=build/tsan \
  TSAN_OPTIONS="suppressions=tests/tsan.supp history_size=4 exitcode=66" setarch -R $(BIN)/python
tsan-python: $(VENV)/.editable
	@MANAGED_SANITIZE=thread $(BIN)/python -W ignore setup.py --quiet build --build-lib build/tsan
	@for seed in $(TSAN_SEEDS); do $(TSAN_RUN) tests/stress_threads.py $(TSAN_ROUNDS) $$seed || exit 1; done
	@$(TSAN_RUN) tests/stress_spill.py $(TSAN_SECONDS)

# Libraries that `make test` does not install, in an environment of their own: the tests that are skipped without them.
# What they ask for beside torch is named here, since some ask for much that is not used (wandb, a torch with CUDA).
ECOSYSTEM = neuraloperator tensorly tensorly-torch zencfg configmypy ruamel.yaml opt-einsum h5py \
  pytorch-lightning lightning-utilities torchmetrics \
  botorch gpytorch linear-operator jaxtyping wadler-lindig pyro-ppl pyro-api pyre-extensions typing-inspect mypy-extensions \
  multipledispatch mpmath torchdiffeq \
  diffusers importlib-metadata zipp peft optuna alembic sqlalchemy colorlog mako
ecosystem:
	@$(MAKE) --no-print-directory VENV=.venv-ecosystem .venv-ecosystem/.libraries build
	@.venv-ecosystem/bin/python $(PYTEST) tests/matrix/test_ecosystem.py tests/matrix/test_integrations.py tests/docs/test_recipes.py
	@.venv-ecosystem/bin/python $(PYTEST) tests/on/test_run.py -k libraries

.venv-ecosystem/.libraries: .venv-ecosystem/.test Makefile
	.venv-ecosystem/bin/pip install -qq --no-deps $(ECOSYSTEM)
	@touch $@

bench: $(VENV)/.test build
	@$(BIN)/python benchmarks/overhead.py $(BENCH_FLAGS)
	@$(BIN)/python benchmarks/placement.py $(BENCH_FLAGS)
	@$(BIN)/python benchmarks/dispersed.py $(BENCH_FLAGS)
	@$(BIN)/python benchmarks/memory.py $(BENCH_FLAGS)
	@$(BIN)/python benchmarks/peers.py $(BENCH_FLAGS)
	@$(BIN)/python benchmarks/ideal.py $(BENCH_FLAGS)
	@$(BIN)/python benchmarks/stream.py $(BENCH_FLAGS)
	@$(BIN)/python benchmarks/changing.py $(BENCH_FLAGS)
	@$(BIN)/python benchmarks/following.py $(filter --check,$(BENCH_FLAGS))
	@$(BIN)/python benchmarks/runtimes.py $(BENCH_FLAGS)

# Not --quiet: that keeps warnings from --strict, too.
docs: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --site-dir build/site

# Pictures of five pages in build/docs-look, and a check of every page's layout; the script says what is missing.
docs-look: $(VENV)/.look docs
	@$(BIN)/python tools/docs_look.py build/site build/docs-look

# clang-format sees only the lines that have changed since LINT_BASE, also of files that have moved: the layout of the
# rest is its authors'.
LINT_BASE ?= HEAD
lint: $(VENV)/.test $(VENV)/.lint build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/shellcheck .ci/run $(wildcard tools/*.sh)
	$(BIN)/python tools/words.py --base $(LINT_BASE)
	git diff -U0 -M --no-color $(LINT_BASE) -- '*.c' '*.cpp' '*.h' \
	  | $(BIN)/python $(BIN)/clang-format-diff.py -p1 -binary $(BIN)/clang-format

wheel: $(VENV)/.torch
	MANAGED_RELEASE=1 $(BIN)/pip wheel . -qq --no-deps --no-build-isolation --wheel-dir dist

# The sdist and a wheel of it, each installed where there is nothing, with torch from the index: two builds.
packages: $(VENV)/.test
	rm -rf build/packages
	$(BIN)/python tools/release.py --rehearse --with $(BIN)/python --out build/packages
	tools/packages.sh build/packages $(BIN)/python "$(TORCH)"

# The conda recipe, built and tested from packages made of what is here; no channel is asked.
conda: $(VENV)/.test
	rm -rf build/conda
	$(BIN)/python tools/conda_rehearsal.py build/conda

# ---- other torches

# CUDA builds, each in an environment of its own: managed._cuda is compiled and linked there
# although there may be no GPU. The installed wheel is tested, not the source tree.
compat: $(COMPAT:%=compat-%)

.venv-compat-%/.torch:
	$(PYTHON) -m venv .venv-compat-$*
	.venv-compat-$*/bin/pip install -qq --upgrade pip "setuptools>=77" wheel ninja numpy
	.venv-compat-$*/bin/pip install -qq torch==$*
	@touch $@

# CUDA's compiler headers, which the runtime's headers include, come in a package of their own.
.venv-compat-%/.test: pyproject.toml .venv-compat-%/.torch
	echo "torch==$*" > .venv-compat-$*/constraint.txt
	cuda=$$(.venv-compat-$*/bin/python -c "import torch; print(torch.version.cuda)") && \
	  .venv-compat-$*/bin/pip install -qq "nvidia-cuda-crt==$$cuda.*"
	MANAGED_ONLY=none .venv-compat-$*/bin/pip install -qq --no-build-isolation --constraint .venv-compat-$*/constraint.txt ".[test]"
	@touch $@

compat-%: .venv-compat-%/.test
	MANAGED_REQUIRE_CUDA=1 .venv-compat-$*/bin/pip install -qq --no-deps --no-build-isolation --force-reinstall .
	cd tests && ../.venv-compat-$*/bin/python $(PYTEST) -m "not conformance" --rootdir=.. -c ../pyproject.toml . $(PYTEST_FLAGS)

# ---- a GPU made of software

# The newest CUDA build of torch that the index gives, in an environment of its own. The package is built in a folder of
# its own too, so that the tree keeps what it was built for.
VIRTUAL_GPU := .venv-virtual-gpu
$(VIRTUAL_GPU)/.torch:
	$(PYTHON) -m venv $(VIRTUAL_GPU)
	$(VIRTUAL_GPU)/bin/pip install -qq --upgrade pip "setuptools>=77" wheel ninja numpy
	PIP_CONSTRAINT= $(VIRTUAL_GPU)/bin/pip install -qq torch
	$(VIRTUAL_GPU)/bin/python -c "import torch; assert torch.version.cuda, f'torch {torch.__version__} is built without CUDA'"
	@touch $@

# Numba asks the driver, which is the virtual one here. Its tests are skipped where it cannot be had.
$(VIRTUAL_GPU)/.test: pyproject.toml $(VIRTUAL_GPU)/.torch
	$(VIRTUAL_GPU)/bin/python -c "import torch; print('torch==' + torch.__version__.split('+')[0])" > $(VIRTUAL_GPU)/constraint.txt
	cuda=$$($(VIRTUAL_GPU)/bin/python -c "import torch; print(torch.version.cuda)") && $(VIRTUAL_GPU)/bin/pip install -qq "nvidia-cuda-crt==$$cuda.*"
	MANAGED_ONLY=none PIP_CONSTRAINT= $(VIRTUAL_GPU)/bin/pip install -qq --no-build-isolation --constraint $(VIRTUAL_GPU)/constraint.txt ".[test]"
	$(VIRTUAL_GPU)/bin/pip uninstall -qq --yes managed
	cuda=$$($(VIRTUAL_GPU)/bin/python -c "import torch; print(torch.version.cuda.split('.')[0])") && \
	  PIP_CONSTRAINT= $(VIRTUAL_GPU)/bin/pip install -qq --constraint $(VIRTUAL_GPU)/constraint.txt numba numba-cuda "cuda-bindings==$$cuda.*" || true
	@touch $@

virtual-gpu-build: $(VIRTUAL_GPU)/.test
	@MANAGED_REQUIRE_CUDA=1 $(VIRTUAL_GPU)/bin/python -W ignore setup.py --quiet build --build-lib build/virtual-gpu

# Everything that speaks of devices, on cuda:0 to cuda:3; the slice is a short form, which .ci/run runs.
virtual-gpu: virtual-gpu-build
	@$(VIRTUAL_GPU)/bin/python tools/circles.py cuda virtual_gpu
	@tools/virtual_gpu.sh $(VIRTUAL_GPU)/bin/python all
virtual-gpu-slice: virtual-gpu-build
	@tools/virtual_gpu.sh $(VIRTUAL_GPU)/bin/python slice

# A training under budgets, once for each seed of what runs when; a bit that differs, or an access without an order, fails.
SEEDS ?= 1000
virtual-gpu-seeds: virtual-gpu-build
	@cd tests && PYTHONPATH=../build/virtual-gpu VIRTUAL_GPU_SEEDS=$(SEEDS) ../$(VIRTUAL_GPU)/bin/python $(PYTEST) -o faulthandler_timeout=0 \
	  -q -n 2 --rootdir=.. -c ../pyproject.toml virtual_gpu/test_virtual_gpu.py -k does_not_depend_on_what_runs_when

# Which waits of the product no test misses, each left out in a copy of the tree: MUTATE_FLAGS="--only streams.cpp".
mutate-waits: $(VIRTUAL_GPU)/.test
	@$(VIRTUAL_GPU)/bin/python tools/mutate_waits.py $(MUTATE_FLAGS)

# On a machine with a GPU, with the torch and the tools that are there; nothing is downloaded.
gpu:
	@bash tools/gpu.sh $(PYTHON)

clean:
	rm -rf build dist site managed/*.so managed/_C.*.json managed.egg-info
