#!/bin/bash
# Compares Poseidon's synchronisation with PyTorch DDP, Gloo and Open MPI on hosts made of network namespaces.
#   bench/peers/run.sh          resnet50 and vgg19 on 2 and 4 hosts; as root, after the release build
#   bench/peers/run.sh --tiny   do all variants run here?
#   bench/peers/run.sh --help   the rest; bench/peers/README.md says what the numbers mean
set -euo pipefail
exec python3 -B "$(dirname "$0")/compare.py" "$@"
