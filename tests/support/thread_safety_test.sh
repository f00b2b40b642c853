#!/bin/bash
# Clang refuses every mistake of thread_safety_bad.cc, and nothing but the mistakes.
# Usage: thread_safety_test.sh CLANG INCLUDE_FOLDER...
set -euo pipefail
clang=$1
shift
folders=()
for folder in "$@"; do
  [ "$folder" = /usr/include ] || folders+=(-isystem "$folder")  # named again, it would come before the library's own
done
source=tests/support/thread_safety_bad.cc
# Without its own headers as system headers: Clang says nothing of what is wrong in those.
check() { "$clang" -std=c++20 -fsyntax-only -Wthread-safety -Werror "${folders[@]}" -I. "-DMISTAKE=$1" "$source" 2>&1; }

check 0 || { echo "without a mistake it does not compile"; exit 1; }
mistakes=$(grep -cE '^#if MISTAKE ' "$source")
for ((mistake = 1; mistake <= mistakes; ++mistake)); do
  if said=$(check "$mistake"); then
    echo "mistake $mistake compiles"
    exit 1
  fi
  [[ $said == *-Wthread-safety-* ]] || { echo "mistake $mistake is refused for another reason:"; echo "$said"; exit 1; }
done
echo "$mistakes mistakes refused"
