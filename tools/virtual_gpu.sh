#!/usr/bin/env bash
# The suites on four virtual GPUs: tools/virtual_gpu.sh PYTHON all|slice. The package is in build/virtual-gpu.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "$1")
what=$2

# Tests that speak of devices by tests/devices.py. What is not here is about the simulator or about no device at all.
suites=(
  test_align_choice test_align_composites test_align_backward test_align_outside test_align_rules test_align_stay test_align_writes
  test_gradients test_functional test_functorch test_graph_walk test_least_copies test_counted test_explain test_settling test_placed
  test_spread test_module test_module_devices test_module_utils test_optim test_random test_tensor test_written_into
)
# These count bytes, so they have processes of their own: a backward pass drops its last tensors late.
memory=(test_spill test_spill_access test_exposure test_dlpack test_leaks test_out_of_memory test_manager)
# These take minutes.
long=(test_threads test_budget test_faults test_torture)

# A context takes 64 MiB: what is left is as much as simulated devices have in the tests.
run() { # a name, and what pytest is told
  echo "== $1"
  (
    cd tests
    export PYTHONPATH="$PWD/../build/virtual-gpu" MANAGED_TEST_DEVICES=cuda
    "$python" -m managed.virtual_gpu --devices 4x320MiB -m pytest -o faulthandler_exit_on_timeout=true --rootdir=.. -c ../pyproject.toml -q -n 2 --dist worksteal "${@:2}"
  )
}

# Programs that find virtual GPUs of their own.
run_programs() {
  echo "== programs on virtual GPUs"
  (
    cd tests
    PYTHONPATH="$PWD/../build/virtual-gpu" "$python" -m pytest -o faulthandler_exit_on_timeout=true --rootdir=.. -c ../pyproject.toml -q -n 2 --dist worksteal \
      test_virtual_copies.py test_virtual_crossing.py test_virtual_runtime.py
  )
}

paths() { printf '%s.py\n' "$@"; }

if [ "$what" = slice ]; then
  run "operators, models, modules" --first conformance/test_models.py conformance/test_operators.py -k "not tortured"
  mapfile -t chosen < <(paths "${suites[@]}" test_virtual_gpu)
  run "suites" --first "${chosen[@]}"
  mapfile -t chosen < <(paths "${memory[@]}")
  run "suites that count bytes" --first "${chosen[@]}"
else
  mapfile -t chosen < <(paths "${suites[@]}" test_virtual_gpu)
  run "suites" "${chosen[@]}"
  mapfile -t chosen < <(paths "${memory[@]}" "${long[@]}")
  run "suites that count bytes" "${chosen[@]}"
  run_programs
  run "sweeps, short" -m "not conformance" conformance
  run "sweeps, whole" -m conformance conformance
fi
