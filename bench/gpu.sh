#!/bin/bash
# Training speed on a GPU beside PyTorch on the same one, and what synchronisation through a local server costs there.
#
#     bench/gpu.sh [--device cuda:0] [--out FOLDER] [--programs DIR] [--budget-s 540] [OPTION of gpu/compare.py or "-- sync ..."]
#     bench/gpu.sh compare ... | sync ...     # one of the two (bench/gpu/compare.py, bench/gpu/sync.py; --help)
#
# In the tree it takes the programs of build/release/bin; in a bundle (tests/gpu/run.sh) those beside it. FOLDER (default
# build/bench-gpu) gets compare.json and sync.json. Without a GPU: --device cpu tries it out.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
case ${1:-} in -h | --help) sed -n '2,8s/^# \?//p' "$0"; exit 0 ;; esac
if [ -f "$root/libraries.sh" ]; then  # a bundle
  bundle=$root
  . "$root/libraries.sh"
  export POSEIDON_PROGRAMS=$root/bin POSEIDON_LIBRARY_PATH=$poseidon_library_path
fi
export PYTHONUNBUFFERED=1
case ${1:-} in
  compare | sync) part=$1; shift; exec python3 -B "$root/bench/gpu/$part.py" "$@" ;;
esac
python3 -B "$root/bench/gpu/compare.py" "$@"
python3 -B "$root/bench/gpu/sync.py" "$@"
