#!/bin/bash
# Every benchmark in full form: builds the programs, runs them, writes JSON and charts.
#
#     bench/run.sh [FOLDER]        # default: build/bench
#
# Takes about half an hour on a quiet machine. Figures of a busy one mean nothing.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
usage() { sed -n '2,6s/^# \?//p' "$0"; }
case ${1:-} in
  -h | --help) usage; exit 0 ;;
  -*) usage >&2; exit 2 ;;
esac
mkdir -p "${1:-$root/build/bench}"
out=$(cd "${1:-$root/build/bench}" && pwd)
cd "$root"

export CCACHE_BASEDIR="$root" CCACHE_NOHASHDIR=1
cmake --preset release > /dev/null
cmake --build --preset release --target poseidon-bench-transport poseidon-bench-aggregate
bin=build/release/bin

echo "== loops over memory"
"$bin/poseidon-bench-aggregate" --rounds 25 --json "$out/aggregate.json"

echo "== transport, one worker and one server"
"$bin/poseidon-bench-transport" --rounds 9 --json "$out/transport.json"
python3 -B bench/plot.py "$out/transport.json" "$out/transport.svg"

echo "== transport, numbers of processes and sizes of chunks"
"$bin/poseidon-bench-transport" --sweep --rounds 5 --json "$out/sweep.json"
python3 -B bench/plot.py "$out/sweep.json" "$out/sweep.svg"

echo "== beside PyTorch DDP, Gloo and Open MPI"
if [ "$(id -u)" = 0 ]; then
  cmake --build --preset release --target poseidon-bench-node
  bench/peers/run.sh --json "$out/peers.json"
else
  echo "skipped: bench/peers/run.sh needs root for its network namespaces"
fi

echo "written to $out: aggregate.json, transport.json, transport.svg, sweep.json, sweep.svg, peers.json"
