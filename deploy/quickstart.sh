#!/bin/bash
# From a fresh clone on Debian 12 to a trained model: installs what is missing, builds, and trains
# LeNet on real handwritten digits with a cluster of 1 coordinator, 2 servers and 4 workers, all
# processes of this machine. Takes minutes the first time (the build), then under a minute.
set -euo pipefail
cd "$(dirname "$0")/.."

deploy/dependencies.sh

export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1
cmake --preset release
cmake --build --preset release \
  --target poseidon poseidon-coordinator poseidon-server poseidon-worker

exec build/release/bin/poseidon local deploy/jobs/digits.json --workers 4 --servers 2
