#!/bin/bash
# From a fresh clone on Debian 12 to a small GPT that two PyTorch workers have trained, with a plot of its loss.
#   deploy/quickstart-torch.sh [RUN_DIR]      default: runs/gpt
# PYTHON=/path/to/python uses a Python that has torch 2.4 or newer and matplotlib; otherwise a virtual environment is
# made in build/torch and both are installed there from PyPI (some gigabytes the first time).
set -euo pipefail
cd "$(dirname "$0")/.."
run=${1:-runs/gpt}

deploy/dependencies.sh --torch

export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1
cmake --preset release
cmake --build --preset release --target poseidon poseidon-coordinator poseidon-server poseidon_client

python=${PYTHON:-build/torch/bin/python}
if [ -z "${PYTHON:-}" ] && ! "$python" -c 'import torch, matplotlib' 2>/dev/null; then
  python3 -m venv build/torch
  build/torch/bin/pip install --quiet torch numpy matplotlib
fi

mkdir -p "$(dirname "$run")"
build/release/bin/poseidon run --workers 2 --servers 1 --run-dir "$run" -- "$python" examples/torch/gpt.py
"$python" examples/torch/plot_loss.py "$run" "$run/loss.png"
