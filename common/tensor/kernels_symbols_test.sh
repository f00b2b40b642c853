#!/bin/bash
# kernels_symbols_test.sh NM LIBRARY: the files compiled for newer processors must not define a function that the
# linker could pick for the whole program (see kernels_body.h). Such a symbol is weak (W). What a sanitizer adds to
# every file is no code of ours.
set -euo pipefail
symbols=$("$1" -A -C "$2")
grep -qE '(kernels|loops)_baseline' <<< "$symbols" || { echo "$2 has no kernels"; exit 1; }
! grep -E '(kernels|loops)_avx' <<< "$symbols" | grep ' W ' | grep -v ' [at]san\.'
