#include "worker/engine/cpu/onednn_twin.h"

#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"

namespace poseidon {
namespace {

class OnednnTwin final : public PlainTwin {
 public:
  OnednnTwin(std::int64_t batch, const Shape& shape, Layout layout, OnednnContext& context)
      : context_(context),
        values_(static_cast<std::size_t>(batch * element_count(shape))),
        plain_(handle(context, tensor_desc(batch, shape, Layout::kPlain))),
        tensor_(handle(context, tensor_desc(batch, shape, layout))),
        to_plain_(tensor_, plain_),
        from_plain_(plain_, tensor_) {
    plain_.set_data_handle(values_.data());
  }

  float* values() override { return values_.data(); }
  absl::Status take(const float* tensor) override {
    tensor_.set_data_handle(const_cast<float*>(tensor));
    return reorder(to_plain_, tensor_, plain_);
  }
  absl::Status give(float* tensor) override {
    tensor_.set_data_handle(tensor);
    return reorder(from_plain_, plain_, tensor_);
  }

 private:
  absl::Status reorder(const dnnl::reorder& way, dnnl::memory& from, dnnl::memory& to) {
    try {
      way.execute(context_.stream, from, to);
      context_.stream.wait();
      return absl::OkStatus();
    } catch (const dnnl::error& error) {
      return absl::InternalError(
          absl::StrCat("oneDNN failed to change a tensor's layout: ", error.what()));
    }
  }

  OnednnContext& context_;
  std::vector<float> values_;
  dnnl::memory plain_, tensor_;
  dnnl::reorder to_plain_, from_plain_;
};

}  // namespace

std::unique_ptr<PlainTwin> make_onednn_twin(std::int64_t batch, const Shape& shape, Layout layout,
                                            OnednnContext& context) {
  return std::make_unique<OnednnTwin>(batch, shape, layout, context);
}

}  // namespace poseidon
