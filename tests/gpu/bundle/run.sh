#!/bin/bash
# Every GPU test of this bundle, on this machine, in ten minutes at most.
#
#     ./run.sh RESULTS [--device cuda:0|cpu] [--short] [--only PART,PART] [--budget-s 570]
#
# RESULTS, a folder, gets summary.json, junit.xml, report.txt and logs.tar.gz. Ends with `N passed, N failed`; the exit
# status says the same. Goes on after failures. Where there is no GPU its tests are skipped, with a word, and nothing
# fails; where there is one, a device that cannot be opened is a failure. What the time does not suffice for is skipped,
# too: `--only memcheck,racecheck` gives the slow ones a call of their own. Needs bash and the usual small tools.
#
# Parts: environment layers networks repeated trajectory digits_ps digits_sfb digits_bf16 memcheck racecheck
set -uo pipefail
bundle=$(cd "$(dirname "$0")" && pwd)
usage() { sed -n '2,11s/^# \?//p' "$0"; }

results="" device=cuda:0 short=no only="" budget_s=570
while [ $# -gt 0 ]; do
  case $1 in
    --device) device=${2:-}; shift 2 ;;
    --short) short=yes; shift ;;
    --only) only=${2:-}; shift 2 ;;
    --budget-s) budget_s=${2:-}; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    -*) usage >&2; exit 2 ;;
    *) [ -z "$results" ] || { usage >&2; exit 2; }; results=$1; shift ;;
  esac
done
[[ -n $results && $budget_s =~ ^[0-9]+$ && $device =~ ^(cpu|cuda:[0-9]+)$ ]] || { usage >&2; exit 2; }
mkdir -p "$results" || exit 1
results=$(cd "$results" && pwd)
work=$(mktemp -d) || exit 1
logs=$work/logs
mkdir "$logs"
trap 'rm -rf "$work"' EXIT

# A number is the same GPU to CUDA and to nvidia-smi.
export CUDA_DEVICE_ORDER=PCI_BUS_ID
# Tests name their data by paths from the tree's root, which the bundle's folders repeat.
cd "$bundle" || exit 1
. "$bundle/libraries.sh"

passed=0 failed=0 skipped=0 begin_s=$SECONDS
parts_json="" cases_xml="" suites_xml=$work/suites.xml
: > "$suites_xml"
say() { echo "$*" | tee -a "$results/report.txt"; }
: > "$results/report.txt"

escape_xml() { sed -e 's/&/\&amp;/g' -e 's/</\&lt;/g' -e 's/>/\&gt;/g' -e 's/"/\&quot;/g' | tr -d '\000-\010\013\014\016-\037'; }
escape_json() { tr -d '\000-\037' | sed -e 's/\\/\\\\/g' -e 's/"/\\"/g'; }

# Programs of the bundle, with its libraries.
ours() { env LD_LIBRARY_PATH="$poseidon_library_path" "$@"; }

# record NAME PASSED FAILED SKIPPED SECONDS WORD
record() {
  passed=$((passed + $2)) failed=$((failed + $3)) skipped=$((skipped + $4))
  parts_json+="${parts_json:+, }{\"name\": \"$1\", \"passed\": $2, \"failed\": $3, \"skipped\": $4, \"seconds\": $5, \"word\": \"$(escape_json <<< "$6")\"}"
  local inner=""
  [ "$3" -eq 0 ] || inner="<failure message=\"$(escape_xml <<< "$6")\">$(tail -40 "$logs/$1.log" | escape_xml)</failure>"
  [ "$2$3" != 00 ] || inner="<skipped message=\"$(escape_xml <<< "$6")\"/>"
  cases_xml+="<testcase classname=\"bundle\" name=\"$1\" time=\"$5\">$inner</testcase>"$'\n'
  say "$(printf '%-12s %4d passed %3d failed %3d skipped %5d s  %s' "$1" "$2" "$3" "$4" "$5" "$6")"
}

# What has been found wrong, in the log of a part that could not end.
failures='^\[  FAILED  \]|^FAILED|^CRASHED|^=========.*(Invalid|Misaligned|reported between)|ERROR SUMMARY: [1-9]'

# counted WORD: over all summaries of GoogleTest in the part's log.
counted() { sed -nE "s/^\[  $1 +\] ([0-9]+) tests?[.,].*/\1/p" "$logs/$name.log" | awk '{n += $1} END {print n + 0}'; }

# part NAME LIMIT_S FUNCTION: runs the function in a process group of its own, which ends at the limit or with the budget.
# Its last line `SKIP word` skips it, and so does the end of the budget as long as nothing has failed; GoogleTest's counts
# decide where there are any, and lines `CRASHED what` count with its failures.
part() {
  local name=$1 limit=$2 left begin=$SECONDS status word="" good bad skips
  [[ -z $only || ,$only, == *,$name,* ]] || return 0
  left=$((budget_s - (SECONDS - begin_s)))
  if [ "$left" -lt 10 ]; then
    echo "no time left of $budget_s s" > "$logs/$name.log"
    record "$name" 0 0 1 0 "no time left of $budget_s s: try --only $name"
    return 0
  fi
  local cut=no
  if [ "$left" -lt "$limit" ]; then limit=$left cut=yes; fi
  say "---- $name (at most $limit s)"
  export -f "${shared[@]}" "$3"
  env "${exported[@]}" part_limit_s="$limit" timeout --kill-after=5 "$limit" bash -c "$3" > "$logs/$name.log" 2>&1 < /dev/null
  status=$?
  [ $status -ne 124 ] && [ $status -ne 137 ] || word="stopped after $limit s"
  local last
  last=$(tail -1 "$logs/$name.log")
  local xml
  for xml in "$work/$name".*.xml; do
    [ ! -s "$xml" ] || sed -e '/^<?xml/d' -e 's/<testsuites[^>]*>//' -e 's/<\/testsuites>//' "$xml" >> "$suites_xml"
  done
  if [[ -n $word && $cut = yes ]] && ! grep -qE "$failures" "$logs/$name.log"; then
    record "$name" 0 0 1 $((SECONDS - begin)) "no time left of $budget_s s, stopped after $limit s: try --only $name"
    return 0
  fi
  good=$(counted PASSED) skips=$(counted SKIPPED)
  bad=$(($(counted FAILED) + $(grep -c '^CRASHED ' "$logs/$name.log")))
  if [[ $status -eq 0 && $last == SKIP\ * ]]; then
    record "$name" 0 0 1 $((SECONDS - begin)) "${last#SKIP }"
    return 0
  fi
  if [ $((good + bad + skips)) -eq 0 ]; then
    if [ $status -eq 0 ]; then good=1; else bad=1; fi
  elif [ $status -ne 0 ] && [ "$bad" -eq 0 ]; then
    bad=1
  fi
  if [ -z "$word" ] && [ "$bad" -gt 0 ]; then
    word=$(grep -E '^(FAILED|CRASHED|ERROR|========= ERROR SUMMARY)|: Failure|not |cannot ' "$logs/$name.log" | head -1)
    word="exit status $status: ${word:-${last:-it said nothing}}"
  elif [ -z "$word" ]; then
    word=$(grep -m1 -oE 'no device [a-z]+:[0-9]+ here.*' "$logs/$name.log" || true)
    word=${word:-$(sed -n 's/^RESULT //p' "$logs/$name.log" | tail -1)}
  fi
  record "$name" "$good" "$bad" "$skips" $((SECONDS - begin)) "$word"
  [ "$bad" -eq 0 ] || tail -25 "$logs/$name.log" | sed 's/^/    /' | tee -a "$results/report.txt"
}

# ---- the parts; each runs in a shell of its own

environment() {
  echo "device asked for: $device"
  uname -srm
  . /etc/os-release 2> /dev/null && echo "$PRETTY_NAME"
  ldd --version 2> /dev/null | head -1
  grep -m1 'model name' /proc/cpuinfo
  echo "cores $(nproc), $(awk '/MemTotal/ {printf "%d MiB of memory", $2 / 1024}' /proc/meminfo)"
  cat "$bundle/about.txt"
  ls /dev/nvidia* 2> /dev/null
  cat /proc/driver/nvidia/version 2> /dev/null
  command -v nvidia-smi > /dev/null && nvidia-smi
  echo "NVIDIA's libraries for the plug-in:"
  sed 's/^/  /' <<< "${nvidia_libraries:-none: the bundle has no plug-in}"
  command -v nvcc > /dev/null && nvcc --version | tail -2
  sanitizer > /dev/null && "$(sanitizer)" --version 2> /dev/null | tail -2
  # It may be gigabytes that have never been read before.
  timeout --foreground 20 python3 -c 'import sys; print("Python", sys.version.split()[0], flush=True)
try:
    import torch
    print("PyTorch", torch.__version__, "CUDA", torch.version.cuda, "cuDNN", torch.backends.cudnn.version())
except ImportError:
    print("no PyTorch")' 2> /dev/null || echo "no Python, or no answer of PyTorch within 20 s"
  local program missing
  for program in "$bundle"/bin/*; do
    missing=$(ours ldd "$program" | grep 'not found')
    [ -z "$missing" ] || { echo "FAILED: $(basename "$program") lacks:$missing"; return 1; }
  done
  for program in poseidon poseidon-coordinator poseidon-server poseidon-worker poseidon-bench-engine; do
    ours "$bundle/bin/$program" --help > /dev/null || { echo "FAILED: $program does not start"; return 1; }
  done
  if [ -e "$bundle/lib/poseidon/libposeidon_cuda.so" ]; then
    missing=$(ours ldd "$bundle/lib/poseidon/libposeidon_cuda.so" | grep 'not found')
    echo "the plug-in lacks:${missing:- nothing}"
    [ -z "$missing" ] || [ "$has_gpu" = no ] || return 1
  fi
  echo "RESULT $(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader -i "${device#cuda:}" 2> /dev/null | head -1)"
}

# by_precision PART LIMIT_S LIMIT_OF_BF16_S: its program once for each precision, a process each: after some errors a GPU
# does nothing more for the process that met them.
by_precision() {
  local precision precisions=(fp32 tf32 bf16 fp16) options=(--device="$device") failed=0 status limit_s
  [ "$device" != cpu ] || precisions=(fp32)
  if [ "$has_gpu" = yes ] || [ "$device" = cpu ]; then options+=(--require); fi
  for precision in "${precisions[@]}"; do
    limit_s=$2
    [ "$precision" != bf16 ] || limit_s=$3
    ours timeout --foreground --kill-after=5 "$limit_s" "bin/gpu_$1_test" "${options[@]}" --precision="$precision" \
      --gtest_filter="*/$precision" --gtest_output="xml:$work/$1.$precision.xml"
    status=$?
    [ $status -eq 0 ] || failed=1
    case $status in
      0 | 1) ;;  # GoogleTest has counted
      124 | 137) echo "CRASHED $precision: no end within $limit_s s" ;;
      *) echo "CRASHED $precision: exit status $status" ;;
    esac
  done
  return $failed
}
# In bf16 cuDNN compiles engines for many of the grid's sizes: 90 s on an H200.
layers() { by_precision layers 65 140; }
networks() { by_precision networks 65 65; }

needs_device() {
  if [ "$device" != cpu ] && [ "$has_gpu" = no ]; then
    echo "SKIP no device $device here"
    exit 0
  fi
}

# train JOB FOLDER DEVICE WORKERS
train() {
  mkdir -p "$2"
  ours bin/poseidon local "tests/gpu/jobs/$1.json" --workers "$4" --servers 1 --device "$3" --run-dir "$2" || {
    tail -n 20 "$2"/logs/*.log
    return 1
  }
}

# Two workers on one device: they find the digits.
digits() {
  needs_device
  train "$1" "$work/$1" "$device" 2 || return 1
  local accuracy speed
  accuracy=$(sed -nE 's/.*"test_accuracy": ?([0-9.e+-]+).*/\1/p' "$work/$1/metrics.jsonl" | tail -1)
  speed=$(sed -nE 's/.*"images_per_s": ?([0-9.e+-]+).*/\1/p' "$work/$1/metrics.jsonl" | tail -1)
  [ -s "$work/$1/model.safetensors" ] || { echo "FAILED: no model"; return 1; }
  awk -v a="${accuracy:-0}" 'BEGIN { exit !(a >= 0.97) }' || { echo "FAILED: accuracy ${accuracy:-none}, below 0.97"; return 1; }
  echo "RESULT accuracy $accuracy, $speed images/s at the end"
}
digits_ps() { digits digits_ps; }
digits_sfb() { digits digits_sfb; }
digits_bf16() {
  [ "$device" != cpu ] || { echo "SKIP the CPU device computes in fp32 alone"; return 0; }
  digits digits_bf16
}

# The same job twice: the same bytes.
repeated() {
  needs_device
  train digits_short "$work/first" "$device" 2 && train digits_short "$work/second" "$device" 2 || return 1
  cmp "$work/first/model.safetensors" "$work/second/model.safetensors" || { echo "FAILED: two runs, two models"; return 1; }
  echo "RESULT two runs, the same bytes"
}

losses() { sed -nE 's/.*"iteration": ?([0-9]+).*"loss": ?([0-9.e+-]+).*|.*"loss": ?([0-9.e+-]+).*/\2\3/p' "$1/metrics.jsonl"; }
# 50 iterations of LeNet through a server, on the device and on the CPU.
trajectory() {
  needs_device
  train trajectory "$work/cpu" cpu 1 && train trajectory "$work/device" "$device" 1 || return 1
  losses "$work/cpu" > "$work/cpu.txt"
  losses "$work/device" > "$work/device.txt"
  paste "$work/cpu.txt" "$work/device.txt" | awk '
    { d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > worst) { worst = d; at = NR - 1 } }
    END {
      if (NR != 50) { print "FAILED: " NR " losses in place of 50"; exit 1 }
      if (!(worst <= 0.001)) { print "FAILED: the losses are " worst " apart in iteration " at; exit 1 }
      print "RESULT losses at most " worst + 0 " of themselves apart (iteration " at + 0 ")"
    }'
}

sanitizer() {
  local found
  for found in compute-sanitizer /usr/local/cuda/bin/compute-sanitizer /usr/local/cuda*/bin/compute-sanitizer \
    /opt/nvidia/*/compute-sanitizer /usr/local/cuda*/compute-sanitizer/compute-sanitizer; do
    command -v "$found" && return 0
  done
  return 1
}
# check TOOL OPTION...: of the layers' tests, on a coarser grid, since all is much slower; its own exit code stands apart
# from theirs. Calls that fail are the tests' to judge: asking for an event that is not there yet is one. A process for each
# precision that has kernels of ours for itself, with a third of the time each: fp16 has them in convolutions alone, and
# tf32 none. One that is stopped has found nothing in the tests that had ended, which are counted.
check() {
  needs_device
  [ "$device" != cpu ] || { echo "SKIP the sanitizer looks at GPUs"; return 0; }
  local tool precision filter tests status word="" ended=0 failed=0 each_s=$(((part_limit_s - 25) / 3))  # and five more until one is killed
  tool=$(sanitizer) || { echo "SKIP no compute-sanitizer here"; return 0; }
  for precision in bf16 fp16 fp32; do
    filter="*/$precision"
    [ $precision != fp16 ] || filter="*Convolution*/fp16:*ReluBehind*/fp16"
    # Not in the foreground: the program is a child of the sanitizer's.
    ours timeout --kill-after=5 $((each_s > 0 ? each_s : 1)) \
      "$tool" --tool "$1" --error-exitcode 99 --print-limit 20 --report-api-errors no "${@:2}" \
      bin/gpu_layers_test --device="$device" --require --precision="$precision" --every=21 \
      --gtest_filter="$filter:-*TheSameBitsTwice*:*MatchPyTorch*" < /dev/null | tee "$work/$1.$precision.txt"
    status=${PIPESTATUS[0]}
    if grep -q 'Device not supported' "$work/$1.$precision.txt"; then echo "SKIP compute-sanitizer: device not supported"; return 0; fi
    tests=$(grep -c '^\[       OK \]' "$work/$1.$precision.txt")
    ended=$((ended + tests))
    case $status in
      0) word+="${word:+, }$precision $tests tests" ;;
      124 | 137)
        word+="${word:+, }$precision stopped after $each_s s with $tests tests"
        ! grep -qE "$failures" "$work/$1.$precision.txt" || failed=1 ;;
      *) echo "FAILED $precision: exit status $status"; failed=1 ;;
    esac
  done
  [ $failed -eq 0 ] || return 1
  [ $ended -gt 0 ] || { echo "SKIP no test ended: $word"; return 0; }
  echo "RESULT $word"
}
memcheck() { check memcheck; }
# Our kernels alone: races are within one, and those of NVIDIA's are not ours to find.
racecheck() {
  local tool help="" ours_alone=()
  if tool=$(sanitizer); then help=$("$tool" --help 2> /dev/null); fi
  if [[ $help == *--kernel-regex* ]]; then ours_alone=(--kernel-regex kns=poseidon); fi
  check racecheck "${ours_alone[@]}"
}

# A driver that speaks is one that tests must use.
has_gpu=no
if [ "$device" != cpu ] && { nvidia-smi -L 2> /dev/null | grep -q '^GPU' || ls /dev/nvidia[0-9]* > /dev/null 2>&1; }; then has_gpu=yes; fi

shared=(ours by_precision needs_device train digits losses sanitizer check)
exported=(device="$device" has_gpu="$has_gpu" work="$work" bundle="$bundle" poseidon_library_path="$poseidon_library_path"
  nvidia_libraries="$nvidia_libraries" failures="$failures")

# All but the last two have their time within the budget, whatever the others take.
part environment 45 environment
part layers 220 layers
part networks 80 networks
part repeated 35 repeated
part trajectory 35 trajectory
if [ "$short" = no ]; then
  part digits_ps 50 digits_ps
  part digits_sfb 50 digits_sfb
  part digits_bf16 50 digits_bf16
  part memcheck 280 memcheck
  part racecheck 280 racecheck
fi

cp "$logs/environment.log" "$results/" 2> /dev/null && cat "$results/environment.log" >> "$results/report.txt"
for folder in "$work"/*/logs; do
  [ -d "$folder" ] && cp -r "$folder" "$logs/$(basename "$(dirname "$folder")")"
done
for metrics in "$work"/*/metrics.jsonl; do
  [ -f "$metrics" ] && cp "$metrics" "$logs/$(basename "$(dirname "$metrics")").metrics.jsonl"
done
tar -C "$work" -czf "$results/logs.tar.gz" logs
seconds=$((SECONDS - begin_s))
printf '{"device": "%s", "has_gpu": "%s", "passed": %d, "failed": %d, "skipped": %d, "seconds": %d, "parts": [%s]}\n' \
  "$device" "$has_gpu" "$passed" "$failed" "$skipped" "$seconds" "$parts_json" > "$results/summary.json"
{
  echo '<?xml version="1.0" encoding="UTF-8"?>'
  echo "<testsuites name=\"gpu bundle\">"
  cat "$suites_xml"
  printf '<testsuite name="bundle" time="%d">\n%s</testsuite>\n</testsuites>\n' "$seconds" "$cases_xml"
} > "$results/junit.xml"

say "$skipped skipped, $seconds s"
say "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
