#!/bin/bash
# Runs the fuzz targets of this folder (all, or those named) for so many seconds each (or for an equal part of a budget by
# the clock), as many at a time as there are cores. Each begins with tests/fuzz/corpus/TARGET, and with what earlier runs have found (grown.tar.xz, by keep.sh).
#   tests/fuzz/run.sh --seconds N | --budget N [--keep FOLDER] [TARGET...]
# --keep: corpora grow in FOLDER/TARGET and are there the next time; without it what is found new is forgotten.
# A finding is left in build/fuzz/TARGET-findings/, the end of the log says what it was. Fix it, give it a name, and put it
# into tests/fuzz/corpus/TARGET, where ctest gives it to the target for ever.
# Ends with one line, `N passed, N failed`, a target being one; the exit status says the same.
set -uo pipefail
cd "$(dirname "$0")/../.."
exec </dev/null

usage="usage: $0 --seconds N | --budget N [--keep FOLDER] [TARGET...]"
seconds="" budget="" keep="" targets=()
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=${2:-}; shift 2 || exit 2 ;;
    --budget) budget=${2:-}; shift 2 || exit 2 ;;
    --keep) keep=${2:-}; shift 2 || exit 2 ;;
    -*) echo "unknown option $1; $usage" >&2; exit 2 ;;
    *) targets+=("$1"); shift ;;
  esac
done
if [ ${#targets[@]} -eq 0 ]; then
  for file in tests/fuzz/*_fuzz.cc; do
    name=${file##*/}
    targets+=("${name%_fuzz.cc}")
  done
fi

cores=$(nproc)
if [[ $budget =~ ^[1-9][0-9]*$ && -z $seconds ]]; then
  seconds=$((budget * cores / ${#targets[@]}))
  [ "$seconds" -gt 0 ] || seconds=1
fi
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "$usage" >&2; exit 2; }

export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1
cmake --preset asan > build/fuzz-cmake.log 2>&1 || { cat build/fuzz-cmake.log; echo "0 passed, 1 failed"; exit 1; }
cmake --build --preset asan --target "${targets[@]/#/fuzz_}" || { echo "0 passed, 1 failed"; exit 1; }

grown=build/fuzz/grown
rm -rf "$grown"
mkdir -p "$grown"
tar -xf tests/fuzz/grown.tar.xz -C "$grown" || { echo "0 passed, 1 failed"; exit 1; }

# Bounds: an input that needs more memory, or this long, is a finding too.
options=(-max_len=8192 -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=512 -print_final_stats=1 -verbosity=0 "-max_total_time=$seconds")

one() {
  local target=$1 out=build/fuzz status corpus
  corpus=${keep:-$out/corpus}/$target
  [ -n "$keep" ] || rm -rf "$corpus"
  mkdir -p "$corpus" "$grown/$target" "$out/$target-findings"
  # For those that play a whole part of the system the bookkeeping of the entropic schedule takes nine tenths of the time.
  local schedule=()
  case $target in cluster | streams) schedule=(-entropic=0) ;; esac
  ASAN_OPTIONS=detect_stack_use_after_return=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
    "build/asan/fuzz/fuzz_$target" "${options[@]}" "${schedule[@]}" "-artifact_prefix=$out/$target-findings/" "$corpus" \
    "tests/fuzz/corpus/$target" "$grown/$target" > "$out/$target.log" 2>&1
  status=$?
  if [ $status -ne 0 ]; then
    tail -60 "$out/$target.log"
    echo "$target: FAILED, see $out/$target.log and $out/$target-findings/"
  else
    echo "$target: $(sed -nE 's/^stat::number_of_executed_units: *//p' "$out/$target.log") inputs, corpus of $(find "$corpus" -type f | wc -l), at most $(sed -nE 's/^stat::peak_rss_mb: *//p' "$out/$target.log") MB"
  fi
  return $status
}
passed=0 failed=0 running=()
finish_first() {
  if wait "${running[0]}"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
  running=("${running[@]:1}")
}
for target in "${targets[@]}"; do
  [ ${#running[@]} -lt "$cores" ] || finish_first
  one "$target" &
  running+=($!)
done
while [ ${#running[@]} -gt 0 ]; do finish_first; done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
