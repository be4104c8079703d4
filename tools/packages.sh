#!/usr/bin/env bash
# Installs the wheel and the sdist of a folder as their users do, each in an environment that has nothing, and runs the
# quickstart there from another folder. For the wheel pip finds the torch that it asks for; the sdist is built beside TORCH.
#
#     tools/packages.sh FOLDER PYTHON TORCH      build/packages python3.11 torch==2.13.0
set -euo pipefail

folder=$(realpath "$1") python=$(realpath "$(command -v "$2")") torch=$3
quickstart=$(realpath "$(dirname "$0")/../docs/quickstart.md")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
awk '/^```/ { inside = /python/; next } inside' "$quickstart" >quickstart.py

for package in "$folder"/*.whl "$folder"/*.tar.gz; do
  echo "== $(basename "$package")"
  rm -rf empty
  "$python" -m venv empty
  pip=(empty/bin/pip --disable-pip-version-check -qq)
  if [[ $package == *.tar.gz ]]; then
    "${pip[@]}" install "$torch" "setuptools>=77" ninja
    "${pip[@]}" install --no-index --no-build-isolation "$package"
  else
    "${pip[@]}" install "$package"
  fi
  empty/bin/pip check
  empty/bin/python -W ignore quickstart.py
  empty/bin/managed doctor
done
echo "wheel and sdist work where there was nothing"
