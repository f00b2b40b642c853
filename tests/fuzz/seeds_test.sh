#!/bin/bash
# The seeds in tests/fuzz/corpus are those that fuzz_seeds writes, byte by byte; what it does not write is a regression
# and stays. Of certificates only the names are compared: their keys and signatures are others each time.
#   seeds_test.sh FUZZ_SEEDS     in the source folder
set -uo pipefail
program=$1 corpus=tests/fuzz/corpus failed=0
fresh=$(mktemp -d) || exit 1
trap 'rm -rf "$fresh"' EXIT
"$program" "$fresh" || exit 1

count=0
while read -r seed; do
  count=$((count + 1))
  case $seed in
    certificates/*) [ -s "$corpus/$seed" ] ;;
    *) cmp "$fresh/$seed" "$corpus/$seed" ;;
  esac || { echo "$corpus/$seed is not what fuzz_seeds writes: run build/P/fuzz/fuzz_seeds $corpus"; failed=1; }
done < <(cd "$fresh" && find . -type f -printf '%P\n' | sort)
[ "$count" -gt 80 ] || { echo "only $count seeds"; failed=1; }
[ "$failed" -eq 0 ] && echo "$count seeds are as they were"
exit "$failed"
