#!/usr/bin/env bash
# What a reader would look for in every change to the CUDA device: nothing waits for the whole device or uses the
# default stream, every launch names its stream, only what sets up allocates, and CUDA is included in
# worker/engine/cuda alone, and in the emulated GPU, which stands in for it in tests. That warm iterations set nothing up is tests/gpu/loop_test.cc's to show.
# Usage: cuda_rules_test.sh SOURCE_FOLDER
set -euo pipefail
cd "$1"
failed=0

# refuse WHY PATTERN FILE...: no line of the files may match, comments aside.
refuse() {
  local why=$1 pattern=$2
  shift 2
  local found
  found=$(grep -nE "$pattern" "$@" | grep -vE '^[^:]+:[0-9]+: *//' || true)
  if [[ -n $found ]]; then
    printf '%s:\n%s\n' "$why" "$found"
    failed=1
  fi
}

mapfile -t ours < <(find worker/engine/cuda -type f -name '*.[ch]*' -print)
[[ ${#ours[@]} -ge 10 ]] || { echo "where is worker/engine/cuda?"; exit 1; }
# but FILE...: all of ours but these.
but() { printf '%s\n' "${ours[@]}" | grep -vFx "$(printf 'worker/engine/cuda/%s\n' "$@")"; }

refuse "waits for the whole device" 'cudaDeviceSynchronize|cudaThreadSynchronize|cudaDeviceReset|cuCtxSynchronize' "${ours[@]}"
refuse "waits without a deadline; see CudaContext::wait" 'cudaStreamSynchronize|cudaEventSynchronize' "${ours[@]}"
refuse "blocks until the copy is done, on the default stream" \
  'cuda(Memcpy|Memset)(2D|3D|Peer|ToSymbol|FromSymbol|ToArray|FromArray|Default)?\(' "${ours[@]}"
refuse "uses the default stream" 'cudaStreamLegacy|cudaStreamPerThread|cudaStreamCreate\(|cudaStreamDefault' "${ours[@]}"
refuse "uses the default stream" '(Async|Record)\(.*, *(0|nullptr|NULL)\)' "${ours[@]}"

# All of these may wait for the device. They are where memory, streams and events are made and given back: an operator's
# and a device's creation and end.
mapfile -t askers < <(but cuda_context.cc)
refuse "allocates past CudaContext::allocate" 'cudaMalloc|cudaFree' "${askers[@]}"
refuse "makes a stream past CudaContext" 'cudaStreamCreate|cudaStreamDestroy' "${askers[@]}"
refuse "asks past CudaContext::is_done, and leaves an error behind for the next launch" \
  'cudaEventQuery|cudaStreamQuery' "${askers[@]}"
mapfile -t pinners < <(but pinned_memory.cc)
refuse "pins past allocate_pinned" 'cudaHost(Register|Unregister|Alloc)|cudaMallocHost|cudaFreeHost' "${pinners[@]}"
mapfile -t makers < <(but cuda_context.cc cuda_device.cc)
refuse "makes an event past CudaContext, make_ticket and make_mark" 'cudaEventCreate|cudaEventDestroy' "${makers[@]}"
refuse "tries algorithms out on the device, by itself and with memory of its own" 'cudnnFind' "${ours[@]}"
refuse "adds floats atomically: other bits each time" 'atomicAdd|atomicExch' "${ours[@]}"

# launch.cuh has the one launch, whose first argument is the stream.
refuse "launches past launch.cuh" '<<<|cudaLaunchKernel|cudaLaunchCooperative' "${ours[@]/worker\/engine\/cuda\/kernels\/launch.cuh/\/dev\/null}"
launches=$(cat worker/engine/cuda/kernels/*.cu | tr '\n' ' ' | grep -oE '\blaunch\([^,]*,' || true)
[[ -n $launches ]] || { echo "no launches found"; exit 1; }
if grep -vFx 'launch(stream,' <<<"$launches"; then
  echo "launches without their stream"
  failed=1
fi

mapfile -t others < <(git ls-files 2>/dev/null '*.cc' '*.h' '*.cu' || true)
[[ ${#others[@]} -gt 0 ]] || mapfile -t others < <(find common models sync coordinator server worker cli bench tests -name '*.cc' -o -name '*.h')
outside=()
for file in "${others[@]}"; do [[ $file == worker/engine/cuda/* || $file == tests/twins/emulated_gpu/* || ! -f $file ]] || outside+=("$file"); done
refuse "includes CUDA outside worker/engine/cuda" '^ *#include *[<"](cuda|cudnn|cublas|nccl)[A-Za-z_0-9]*\.h[>"]' "${outside[@]}"
exit $failed
