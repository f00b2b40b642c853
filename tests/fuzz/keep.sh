#!/bin/bash
# Puts corpora that have grown (run.sh --keep FOLDER) into tests/fuzz/grown.tar.xz, with which all later runs begin: of
# every target the fewest inputs that reach all that these and the ones before reach, and the seeds do not.
#   tests/fuzz/keep.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -eq 1 ] && [ -d "$1" ] || { echo "usage: $0 FOLDER, which run.sh --keep FOLDER has filled" >&2; exit 2; }
grown=$(realpath "$1") archive=tests/fuzz/grown.tar.xz
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work"/{all,before,grown}
[ ! -e "$archive" ] || tar -xf "$archive" -C "$work/before"

for file in tests/fuzz/*_fuzz.cc; do
  target=${file##*/} target=${target%_fuzz.cc}
  mkdir -p "$work"/{all,before,grown}/"$target" "$grown/$target"
  cp tests/fuzz/corpus/"$target"/* "$work/all/$target"
  "build/asan/fuzz/fuzz_$target" -set_cover_merge=1 -max_len=8192 -timeout=10 -rss_limit_mb=1024 -verbosity=0 \
    "$work/all/$target" "$work/before/$target" "$grown/$target" > "$work/log" 2>&1 || { tail -20 "$work/log"; exit 1; }
  # New ones have the names of their sums, the seeds their own.
  find "$work/all/$target" -type f -regextype posix-extended -regex '.*/[0-9a-f]{40}' -exec mv -t "$work/grown/$target" {} +
  echo "$target: $(find "$work/grown/$target" -type f | wc -l) inputs"
done
tar -C "$work/grown" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - . | xz -9 > "$archive"
du -h "$archive"
