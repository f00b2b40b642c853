#!/bin/bash
# Builds everything and runs every test of one preset (default: release), real processes included.
#   tests/run.sh [PRESET]
# Names what could not be tried on this machine, wholly or in part, which is in neither number. Ends with one line,
# `N passed, N failed`; the exit status says the same.
set -uo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}

deploy/dependencies.sh --tests || exit 1

# Clones in different folders share what ccache has.
export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1
cmake --preset "$preset" && cmake --build --preset "$preset" || { echo "0 passed, 1 failed"; exit 1; }

# Of others, for single tests: the public safetensors package, and Grafana's schema (of the version in
# deploy/docker/compose.yaml). Without a network those tests say that they are skipped.
venv=build/venv
packages=(numpy safetensors 'grafana-foundation-sdk==1769699590!11.3.0')
if [ "$preset" = release ] && ! "$venv/bin/python" -c 'import numpy, safetensors, grafana_foundation_sdk' 2>/dev/null; then
  rm -rf "$venv"
  if ! { python3 -m venv "$venv" && "$venv/bin/pip" install --quiet --disable-pip-version-check "${packages[@]}"; } </dev/null; then
    echo "cannot install Python's ${packages[*]} (no network?): the tests with them are skipped"
    rm -rf "$venv"
  fi
fi

log=build/$preset/test.log
jobs=$(nproc)
ctest --preset "$preset" -j "$jobs" --no-tests=error </dev/null 2>&1 | tee "$log"

tests/count.sh "$preset" "$log"
