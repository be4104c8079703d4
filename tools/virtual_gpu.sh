#!/usr/bin/env bash
# The suites on four virtual GPUs: tools/virtual_gpu.sh PYTHON all|slice. The package is in build/virtual-gpu.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "$1")
what=$2

# Tests that speak of devices by tests/support/devices.py. What is not here is about the simulator or about no device at all.
suites=(
  align/test_align_choice align/test_align_composites align/test_align_backward align/test_align_outside
  align/test_align_rules align/test_align_stay align/test_align_writes entry/test_gradients entry/test_functional
  entry/test_functorch entry/test_graph_walk align/test_least_copies align/test_counted views/test_explain
  placement/test_settling placement/test_placed placement/test_spread modules/test_module modules/test_module_devices
  modules/test_module_utils torch_patches/test_optim align/test_random python/test_tensor align/test_written_into
  parallel/test_pipeline parallel/test_data_parallel parallel/test_data_parallel_modules entry/test_moved_leaves
  modules/test_sync_batch_norm views/test_snapshot residency/test_numba
)
# These count bytes, so they have processes of their own: a backward pass drops its last tensors late.
memory=(
  residency/test_spill residency/test_spill_access align/test_exposure torch_patches/test_dlpack residency/test_leaks
  residency/test_out_of_memory residency/test_no_spill python/test_manager parallel/test_pipeline_pressure
  parallel/test_data_parallel_pressure torch_patches/test_reducer residency/test_holders
  residency/test_holders_known residency/test_file_maps residency/test_on_host residency/test_arena
  residency/test_pieces residency/test_host_memory
)
# These take minutes.
long=(python/test_threads residency/test_budget residency/test_faults residency/test_torture)

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
      virtual_gpu/test_virtual_copies.py virtual_gpu/test_virtual_crossing.py virtual_gpu/test_virtual_runtime.py
  )
}

paths() { printf '%s.py\n' "$@"; }

if [ "$what" = slice ]; then
  run "operators, models, modules" --first conformance/test_models.py conformance/test_operators.py -k "not tortured"
  mapfile -t chosen < <(paths "${suites[@]}" virtual_gpu/test_virtual_gpu)
  run "suites" --first "${chosen[@]}"
  mapfile -t chosen < <(paths "${memory[@]}")
  run "suites that count bytes" --first "${chosen[@]}"
else
  mapfile -t chosen < <(paths "${suites[@]}" virtual_gpu/test_virtual_gpu)
  run "suites" "${chosen[@]}"
  mapfile -t chosen < <(paths "${memory[@]}" "${long[@]}")
  run "suites that count bytes" "${chosen[@]}"
  run_programs
  run "sweeps, short" -m "not conformance" conformance
  run "sweeps, whole" -m conformance conformance
fi
