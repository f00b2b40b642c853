#include "worker/engine/cuda/cuda_twin.h"

#include "common/base/check.h"
#include "worker/engine/cuda/cuda_status.h"
#include "worker/engine/cuda/kernels/cuda_kernels.h"

namespace poseidon {
namespace {

constexpr std::size_t kTwinAlignmentBytes = 256;

class CudaTwin final : public PlainTwin {
 public:
  CudaTwin(const cuda::Planes& planes, cuda::NarrowType type, std::size_t begin,
           CudaContext& context)
      : planes_(planes), type_(type), begin_(begin), context_(context) {}

  float* values() override { return reinterpret_cast<float*>(context_.twins() + begin_); }
  absl::Status take(const float* tensor) override {
    cuda::widen(context_.compute(), type_, planes_, /*channels_last=*/true, tensor,
                {.left = nullptr, .right = nullptr}, /*epilogue=*/{}, values());
    return launch_status("widen");
  }
  absl::Status give(float* tensor) override {
    cuda::narrow(context_.compute(), type_, planes_, /*channels_last=*/true, values(),
                 /*scale=*/nullptr, tensor);
    return launch_status("narrow");
  }

 private:
  const cuda::Planes planes_;
  const cuda::NarrowType type_;
  const std::size_t begin_;
  CudaContext& context_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PlainTwin>> make_cuda_twin(std::int64_t batch, const Shape& shape,
                                                          Layout layout, std::size_t& taken,
                                                          CudaContext& context) {
  const std::size_t begin = taken;
  const auto bytes =
      static_cast<std::size_t>(batch * element_count(shape) * bytes_per_element(Layout::kPlain));
  taken += (bytes + kTwinAlignmentBytes - 1) / kTwinAlignmentBytes * kTwinAlignmentBytes;
  POSEIDON_RETURN_IF_ERROR(context.reserve_twins(taken));
  const cuda::Planes planes = {
      .samples = batch, .channels = shape.front(), .plane = element_count(shape) / shape.front()};
  const auto type =
      layout == Layout::kBfloat16 ? cuda::NarrowType::kBfloat16 : cuda::NarrowType::kFloat32;
  return std::make_unique<CudaTwin>(planes, type, begin, context);
}

}  // namespace poseidon
