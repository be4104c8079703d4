#!/usr/bin/env bash
# make gpu: everything that needs a real GPU, with the Python and the torch that are there.
#
# Downloads nothing and makes no environment: `gpu.sh PYTHON` builds in place with that interpreter
# (torch, setuptools, ninja and pytest must be importable), runs tests/gpu and the GPU parts of the
# benchmarks, and leaves one report in gpu_report.txt (GPU_REPORT names another place). Every step
# runs, whatever became of the one before; the exit status is 0 when all succeeded.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
python=${1:-python3}
report=${GPU_REPORT:-gpu_report.txt}
bench_flags=${GPU_BENCH_FLAGS:---only operators,steps}
failed=()

step() { # step NAME COMMAND...: runs it, shows it and keeps its output
  local name=$1
  shift
  printf '\n== %s: %s\n' "$name" "$*"
  "$@" 2>&1 || failed+=("$name")
}

if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "make gpu needs a CUDA device and a torch built for it in $python; PYTHON=... names another" >&2
  exit 1
fi

run() {
  date -u '+%Y-%m-%d %H:%M UTC'
  git log -1 --format='commit %h' 2>/dev/null
  "$python" -m torch.utils.collect_env 2>/dev/null |
    grep -E '^(PyTorch|CUDA used|OS|GCC|Python|GPU models|GPU [0-9]|Nvidia driver|\[pip3\] (numpy|torch|triton))'
  export PYTHONPATH="$PWD" MANAGED_WERROR=0 MANAGED_REQUIRE_CUDA=1
  step build "$python" setup.py --quiet build_ext --inplace
  MANAGED_TEST_DEVICES=cuda step tests "$python" -m pytest -p no:cacheprovider -v -rs -m gpu tests/gpu
  MANAGED_TORTURE=all MANAGED_TEST_DEVICES=cuda step torture "$python" -m pytest -p no:cacheprovider -q -m gpu tests/gpu/test_alignment.py
  step plain "$python" -m pytest -p no:cacheprovider -q --first -m "not gpu" \
    tests --ignore tests/conformance --ignore tests/house/test_build.py --ignore tests/docs/test_docs.py
  # shellcheck disable=SC2086 # the flags are words
  step bench "$python" benchmarks/overhead.py $bench_flags
  step card "$python" benchmarks/on_card.py
  printf '\n== %s\n' "${failed[*]:+failed: ${failed[*]}}${failed[*]:-all steps succeeded}"
  [ "${#failed[@]}" = 0 ]
}

run 2>&1 | tee "$report"
