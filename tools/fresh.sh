#!/usr/bin/env bash
# The two commands of the README as a newcomer runs them: a clone of the commit in a folder of its own, an empty HOME and
# no compiler cache. Prints how long each took; fails when one fails. FRESH_KEEP=1 keeps the folder.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
[ -n "${FRESH_KEEP:-}" ] || trap 'rm -rf "$folder"' EXIT
mkdir "$folder/home"
git clone --quiet "$root" "$folder/managed"
cd "$folder/managed"

for target in demo test; do
  begun=$SECONDS
  if ! HOME=$folder/home XDG_CACHE_HOME=$folder/home/.cache CCACHE_DISABLE=1 make "$target" >"$folder/$target.log" 2>&1; then
    grep -v "^SKIPPED" "$folder/$target.log" | tail -n 200
    echo "make $target failed after $((SECONDS - begun)) s"
    exit 1
  fi
  tail -n 1 "$folder/$target.log"
  echo "make $target: $((SECONDS - begun)) s"
done
