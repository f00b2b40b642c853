#include "worker/engine/cuda/cuda_twin.h"

#include <utility>

#include "common/status_macros.h"
#include "worker/engine/cuda/cuda_kernels.h"
#include "worker/engine/cuda/cuda_status.h"

namespace poseidon {
namespace {

class CudaTwin final : public PlainTwin {
 public:
  CudaTwin(const cuda::Planes& planes, DeviceMemory memory, CudaContext& context)
      : planes_(planes), context_(context), memory_(std::move(memory)) {}

  float* values() override { return static_cast<float*>(memory_.get()); }
  absl::Status take(const float* tensor) override {
    cuda::widen(context_.compute(), cuda::NarrowType::kBfloat16, planes_, /*channels_last=*/true,
                tensor, {.left = nullptr, .right = nullptr}, /*bias=*/nullptr, values());
    return launch_status("widen");
  }
  absl::Status give(float* tensor) override {
    cuda::narrow(context_.compute(), cuda::NarrowType::kBfloat16, planes_, /*channels_last=*/true,
                 values(), /*scale=*/nullptr, tensor);
    return launch_status("narrow");
  }

 private:
  const cuda::Planes planes_;
  CudaContext& context_;
  const DeviceMemory memory_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PlainTwin>> make_cuda_twin(std::int64_t batch, const Shape& shape,
                                                          CudaContext& context) {
  const std::int64_t plane = element_count(shape) / shape.front();
  POSEIDON_ASSIGN_OR_RETURN(
      DeviceMemory memory,
      context.allocate(batch * element_count(shape) * bytes_per_element(Layout::kPlain)));
  return std::make_unique<CudaTwin>(
      cuda::Planes{.samples = batch, .channels = shape.front(), .plane = plane}, std::move(memory),
      context);
}

}  // namespace poseidon
