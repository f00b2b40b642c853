#!/bin/bash
# Installs the Debian 12 packages that Poseidon needs, those that are missing only.
#   deploy/dependencies.sh          to build and run
#   deploy/dependencies.sh --tests  to run .ci/run as well (Clang and its tools)
#   deploy/dependencies.sh --torch  to build, and to make a virtual environment for PyTorch
#   deploy/dependencies.sh --bench  to compare with other systems, and on hosts with slow cards (bench/peers, bench/shaped)
# As root or with passwordless sudo it installs; otherwise it prints the line to run and exits 1.
set -euo pipefail

build_packages=(
  # compiler and tools
  g++ cmake ninja-build ccache pkg-config git
  # gRPC, Protocol Buffers, Abseil
  libgrpc++-dev protobuf-compiler-grpc libprotobuf-dev protobuf-compiler libabsl-dev
  # oneDNN (CPU engine), RocksDB (chunk store)
  libdnnl-dev librocksdb-dev
  # data: gzip, JPEG, PNG, CRC-32C
  zlib1g-dev libjpeg62-turbo-dev libpng-dev libisal-dev
  # JSON, logging, command line, metrics, HTTP
  nlohmann-json3-dev libspdlog-dev libcli11-dev prometheus-cpp-dev libmicrohttpd-dev libgnutls28-dev
  # certificates, and the encryption of tensors
  libssl-dev
  # readiness and watchdog of services
  libsystemd-dev
  # Debian packages that know what they need
  dpkg-dev file
  # unit tests are part of every build
  libgtest-dev libgmock-dev
)
test_packages=(
  clang clang-format clang-tidy libclang-rt-14-dev lld
  python3 python3-venv python3-pil python3-numpy curl ca-certificates xz-utils
  # a machine to install Debian packages on; hosts with slow links
  mmdebstrap systemd-container iproute2 openssh-client
  # containers, by an engine that the test starts itself
  docker.io docker-compose iptables
  # the metrics, dashboards and alerts are tried on a real one, the status page in a browser
  prometheus chromium
)
# What Poseidon is compared with, and network namespaces as hosts.
bench_packages=(
  python3 python3-torch python3-pil python3-numpy
  openmpi-bin libopenmpi-dev
  iproute2 util-linux hostname
)

packages=("${build_packages[@]}")
if [ "${1:-}" = "--torch" ]; then
  packages+=(python3 python3-venv)
elif [ "${1:-}" = "--tests" ]; then
  packages+=("${test_packages[@]}")
elif [ "${1:-}" = "--bench" ]; then
  packages+=("${bench_packages[@]}")
elif [ $# -gt 0 ]; then
  echo "usage: $0 [--tests|--torch|--bench]" >&2
  exit 2
fi

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "$0: this machine has no apt-get; Poseidon is built on Debian 12." >&2
  echo "Elsewhere install the equivalents of these packages yourself and build with" >&2
  echo "  cmake --preset release && cmake --build --preset release" >&2
  printf '  %s\n' "${packages[@]}" >&2
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  exit 0
fi

. /etc/os-release 2>/dev/null || true
if [ "${ID:-}" != debian ] || [ "${VERSION_ID:-0}" -lt 12 ]; then
  echo "$0: this is ${PRETTY_NAME:-an unknown system}; Poseidon is built and tested on Debian 12." >&2
  echo "These packages, or what corresponds to them here, are missing: ${missing[*]}" >&2
  exit 1
fi

# The lock timeout waits for another apt instead of failing at once.
apt=(apt-get -o DPkg::Lock::Timeout=300)
install=("${apt[@]}" install -y --no-install-recommends "${missing[@]}")
if [ "$(id -u)" -eq 0 ]; then
  as_root=(env DEBIAN_FRONTEND=noninteractive)
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
  as_root=(sudo -n env DEBIAN_FRONTEND=noninteractive)
else
  echo "Packages are missing and this user may not install them. Run this, then try again:" >&2
  echo "  sudo apt-get update && sudo ${install[*]}" >&2
  exit 1
fi
echo "installing: ${missing[*]}"
"${as_root[@]}" "${apt[@]}" update -q </dev/null
"${as_root[@]}" "${install[@]}" </dev/null
