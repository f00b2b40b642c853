#!/bin/bash
# Puts the Debian packages that the images install into a folder; run in the first stage of the Dockerfile.
#   packages.sh build FOLDER   builds them from the sources
#   packages.sh ready FOLDER   takes those of `cmake --build --preset release --target package`
set -euo pipefail
cd "$(dirname "$0")/../.."
how=$1 folder=$2
case $how in
  build)
    deploy/dependencies.sh
    cmake --preset release
    # What is installed, without tests and benchmarks.
    cmake --build --preset release --target poseidon poseidon-coordinator poseidon-server poseidon-worker
    rm -f build/release/packages/*.deb  # an earlier version's
    cpack --config build/release/CPackConfig.cmake
    ;;
  ready)
    if ! compgen -G 'build/release/packages/*.deb' >/dev/null; then
      echo "PACKAGES=ready, but build/release/packages has none: cmake --build --preset release --target package" >&2
      exit 1
    fi
    versions=(build/release/packages/poseidon-common_*.deb)
    if [ ${#versions[@]} -gt 1 ]; then
      echo "build/release/packages has several versions (${versions[*]##*/}): remove all but one" >&2
      exit 1
    fi
    ;;
  *)
    echo "PACKAGES is '$how'; it is 'build' or 'ready'" >&2
    exit 1
    ;;
esac
mkdir -p "$folder"
cp build/release/packages/poseidon-*.deb "$folder"
