#!/bin/bash
# GPU tests to take along: a relocatable bundle of the programs and every library they need, for any x86-64 Linux with
# glibc 2.36 or later and an NVIDIA driver, CUDA and cuDNN of its own (README.md).
#
#     tests/gpu/run.sh bundle OUT [--build DIR] [--no-build]   # OUT: a folder, or a .tar.gz or .tar.xz
#     tests/gpu/run.sh here RESULTS [OPTION...]                # make one, run it on this machine, and remove it
#
# There: unpack it and `./run.sh RESULTS`. Fails when the bundle would be 60 MiB or more, needs a later glibc, lacks a
# library, or its plug-in is of another build than the programs.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
usage() { sed -n '2,9s/^# \?//p' "$0"; }
fail() { echo "tests/gpu/run.sh: $*" >&2; exit 1; }

max_bytes=$((60 << 20))
max_glibc=2.36
programs=(poseidon poseidon-coordinator poseidon-server poseidon-worker poseidon-bench-engine)
tests=(gpu_layers_test gpu_networks_test)
plugin=libposeidon_cuda.so
# What every Linux with that glibc has.
of_the_system='^(linux-vdso|ld-linux-x86-64|libc|libm|libmvec|libdl|libpthread|librt|libresolv|libutil|libnss_[a-z]+)\.so'
# What comes with the driver, CUDA and cuDNN there: hundreds of MiB.
of_nvidia='^lib(cuda|nvidia-[a-z]+|cudart|cudnn[a-z_]*|cublas|cublasLt|nvrtc[a-z.-]*|nvJitLink|nccl|nvptxcompiler)\.so'

# Whether this build has a CUDA device at all.
makes_plugin() {
  local targets
  targets=$(cmake --build "$build" --target help) || fail "$build is no build: cmake --preset release"
  grep -q '^poseidon_cuda:' <<< "$targets"
}

build_programs() {
  local targets=("${programs[@]}" "${tests[@]}")
  ! makes_plugin || targets+=(poseidon_cuda)
  (cd "$root" && CCACHE_BASEDIR="$root" CCACHE_NOHASHDIR=1 cmake --build "$build" --target "${targets[@]}") >&2
}

put_program() {
  [ -x "$1" ] || fail "$1 is not built"
  cp "$1" "$bundle/bin/"
  strip "$bundle/bin/$(basename "$1")"
}

# device_plugin_entry.h: what both sides must have in common.
interface() { grep -aoE 'poseidon device [0-9a-f]{16}' "$1" | head -1; }

put_plugin() {
  local built=$build/bin/$plugin name
  if ! makes_plugin; then
    echo "$build has no CUDA device: the bundle computes on CPUs alone" >&2
    return
  fi
  [ -e "$built" ] || fail "$built is not built"
  for name in poseidon-worker poseidon-bench-engine; do
    [ "$(interface "$built")" = "$(interface "$build/bin/$name")" ] ||
      fail "$built is of another build than $name: build poseidon_cuda again, or leave out --no-build"
  done
  cp "$built" "$bundle/lib/poseidon/$plugin"
  strip --strip-unneeded "$bundle/lib/poseidon/$plugin"
}

needed() { objdump -p "$1" | awk '$1 == "NEEDED" { print $2 }'; }

# Every library that our programs need and a bare system has not; what NVIDIA's need is theirs to find. "libx.so.1 => /..."
put_libraries() {
  local objects=("$bundle"/bin/* "$bundle"/lib/poseidon/*.so) object name arrow path rest missing=()
  for object in "${objects[@]}"; do
    [ -e "$object" ] || continue
    while read -r name arrow path rest; do
      name=$(basename "$name")
      [[ $name =~ $of_the_system || $name =~ $of_nvidia || -e $bundle/lib/$name ]] && continue
      if [ "$arrow" != "=>" ] || [ ! -e "$path" ]; then missing+=("$name"); continue; fi
      cp "$(readlink -f "$path")" "$bundle/lib/$name"
      chmod 755 "$bundle/lib/$name"
      strip --strip-unneeded "$bundle/lib/$name"
    done < <(ldd "$object")
  done
  [ ${#missing[@]} -eq 0 ] || fail "libraries not found here: ${missing[*]}"
  [ ! -e "$bundle/lib/poseidon/$plugin" ] || needed "$bundle/lib/poseidon/$plugin" | grep -E "$of_nvidia" > "$bundle/lib/poseidon/nvidia.txt" || true
}

check_glibc() {
  local highest
  highest=$(find "$bundle/bin" "$bundle/lib" -type f \( -name '*.so*' -o -perm -u+x \) -exec objdump -T {} + 2>/dev/null |
    grep -oE 'GLIBC_2\.[0-9]+' | sort -uV | tail -1)
  [ "$(printf '%s\n' "GLIBC_$max_glibc" "$highest" | sort -V | tail -1)" = "GLIBC_$max_glibc" ] ||
    fail "the bundle needs $highest, more than $max_glibc: make it on Debian 12"
}

put_data() {
  local path
  for path in tests/data/digits tests/golden/layers tests/golden/networks tests/golden/trajectory tests/gpu/jobs \
    deploy/jobs bench/common bench/engine bench/gpu bench/gpu.sh; do
    [ -e "$root/$path" ] || continue
    mkdir -p "$bundle/$(dirname "$path")"
    cp -r "$root/$path" "$bundle/$path"
  done
  find "$bundle" \( -name '__pycache__' -o -name '*.cc' -o -name '*.h' -o -name 'CMakeLists.txt' \) -prune -exec rm -rf {} +
  cp "$root"/tests/gpu/bundle/*.sh "$bundle/"
  chmod 755 "$bundle/run.sh"
  {
    echo "commit $(git -C "$root" describe --always --dirty 2>/dev/null || echo unknown)"
    echo "made $(date -u +%Y-%m-%dT%H:%M:%SZ) on $(. /etc/os-release && echo "$PRETTY_NAME")"
  } > "$bundle/about.txt"
}

pack() {  # to standard output
  case $1 in
    *.tar.xz) xz -6 -T0 ;;
    *) gzip -9 ;;
  esac
}

make_bundle() {
  local out=$1 bytes
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  bundle=$work/poseidon-gpu
  mkdir -p "$bundle/bin" "$bundle/lib/poseidon"
  local name
  for name in "${programs[@]}"; do put_program "$build/bin/$name"; done
  for name in "${tests[@]}"; do put_program "$build/tests/$name"; done
  put_plugin
  put_libraries
  check_glibc
  put_data
  case $out in
    *.tar.gz | *.tar.xz)
      tar -C "$work" --owner=0 --group=0 --sort=name -cf - poseidon-gpu | pack "$out" > "$out.part"
      bytes=$(stat -c %s "$out.part")
      mv "$out.part" "$out" ;;
    *.tar.*) fail "$out: one of .tar.gz, .tar.xz or a folder" ;;
    *)
      [ ! -e "$out" ] || [ -z "$(ls -A "$out")" ] || fail "$out is there and not empty"
      mkdir -p "$out"
      bytes=$(tar -C "$work" -cf - poseidon-gpu | gzip -6 | wc -c)
      cp -r "$bundle/." "$out/" ;;
  esac
  [ "$bytes" -lt "$max_bytes" ] || fail "packed it has $bytes bytes, more than $max_bytes"
  echo "$out: $((bytes >> 10)) KiB packed, $(find "$bundle/lib" -name '*.so*' | wc -l) libraries"
}

command=${1:-}
[ $# -ge 2 ] || { usage >&2; exit 2; }
target=$2
shift 2
build=$root/build/release make=yes rest=()
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$2; shift 2 ;;
    --no-build) make=no; shift ;;
    *) rest+=("$1"); shift ;;
  esac
done
case $command in
  bundle)
    [ ${#rest[@]} -eq 0 ] || { usage >&2; exit 2; }
    [ "$make" = no ] || build_programs
    make_bundle "$target" ;;
  here)
    [ "$make" = no ] || build_programs
    folder=$(mktemp -d)
    # In a shell of its own: make_bundle leaves by its own trap.
    (make_bundle "$folder/bundle")
    status=0
    "$folder/bundle/run.sh" "$target" "${rest[@]}" || status=$?
    rm -rf "$folder"
    exit $status ;;
  *) usage >&2; exit 2 ;;
esac
