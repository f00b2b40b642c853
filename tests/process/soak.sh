#!/bin/bash
# Random faults for a while: tests/process/soak.py tells what it does and prints.
set -euo pipefail
cd "$(dirname "$0")"
exec python3 soak.py "$@"
