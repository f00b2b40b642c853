#!/bin/bash
# What ctest's tests of one preset came to, by their output in LOG.
#   tests/count.sh PRESET LOG
# Names what could not be tried on this machine, wholly or in part, which is in neither number. Ends with one line,
# `N passed, N failed`; the exit status says the same.
set -uo pipefail
preset=$1 log=$2

# "98% tests passed, 1 tests failed out of 50"
read -r failed total < <(sed -nE 's/^[0-9]+% tests passed, ([0-9]+) tests? failed out of ([0-9]+).*/\1 \2/p' "$log" | tail -1)
if [ -z "${total:-}" ]; then
  echo "0 passed, 1 failed"
  exit 1
fi
skipped=$(sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) .*\*\*\*Skipped.*/\1/p' "$log")
if [ -n "$skipped" ]; then
  echo "not tried, wholly or in part (ctest --preset $preset -R NAME -V says why):"
  sed 's/^/  /' <<< "$skipped"
fi
echo "$((total - failed - $(grep -c . <<< "$skipped"))) passed, $failed failed"
[ "$failed" -eq 0 ]
