#!/bin/bash
# Training speed on a GPU beside PyTorch on the same one, and what synchronisation through a local server costs there.
#
#     bench/gpu.sh [--device cuda:0] [--out FOLDER] [--programs DIR] [--budget-s 560] [OPTION of gpu/compare.py or gpu/sync.py]
#     bench/gpu.sh compare ... | sync ...     # one of the two, with a budget of its own (--help)
#
# In the tree it takes the programs of build/release/bin; in a bundle (tests/gpu/run.sh) those beside it. FOLDER (default
# bench-gpu in $OUT, else in build) gets sync.json, for which there are 170 s at most, and compare.json, as far as the
# rest of the budget goes; `compare --skip-done compare.json` goes on from there. Without a GPU: --device cpu tries it out.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
case ${1:-} in -h | --help) sed -n '2,9s/^# \?//p' "$0"; exit 0 ;; esac
if [ -f "$root/libraries.sh" ]; then  # a bundle
  bundle=$root
  . "$root/libraries.sh"
  export POSEIDON_PROGRAMS=$root/bin POSEIDON_LIBRARY_PATH=$poseidon_library_path
fi
# A number is the same GPU to CUDA and to nvidia-smi, whose description goes into the results.
export PYTHONUNBUFFERED=1 CUDA_DEVICE_ORDER=PCI_BUS_ID
case ${1:-} in
  compare | sync) part=$1; shift; exec python3 -B "$root/bench/gpu/$part.py" "$@" ;;
esac
budget_s=560 options=() status=0
while [ $# -gt 0 ]; do
  case $1 in
    --budget-s) budget_s=${2:-}; shift 2 ;;
    --budget-s=*) budget_s=${1#*=}; shift ;;
    *) options+=("$1"); shift ;;
  esac
done
[[ $budget_s =~ ^[0-9]+$ && $budget_s -ge 60 ]] || { echo "bench/gpu.sh: --budget-s $budget_s: must be 60 s or more" >&2; exit 2; }

# within SECONDS PART: ends it if it does not end by itself.
within() {
  timeout --preserve-status --kill-after=15 "$1" python3 -B "$root/bench/gpu/$2.py" --of-both "${options[@]}" --budget-s "$1" || status=1
}
within $((budget_s > 510 ? 170 : budget_s / 3)) sync
within $((budget_s > SECONDS + 30 ? budget_s - SECONDS : 30)) compare
exit $status
