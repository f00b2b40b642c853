#include "worker/engine/cpu/onednn_operator.h"

#include <cstddef>

namespace poseidon {

dnnl::memory::desc plain_desc(const dnnl::memory::dims& dims) {
  dnnl::memory::dims strides(dims.size());
  std::int64_t stride = 1;
  for (std::size_t i = dims.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= dims[i];
  }
  return {dims, dnnl::memory::data_type::f32, strides};
}

dnnl::memory::desc any_desc(const dnnl::memory::dims& dims) {
  return {dims, dnnl::memory::data_type::f32, dnnl::memory::format_tag::any};
}

dnnl::memory::dims batch_dims(std::int64_t batch, const Shape& shape) {
  dnnl::memory::dims dims{batch};
  dims.insert(dims.end(), shape.begin(), shape.end());
  return dims;
}

dnnl::memory handle(const OnednnContext& context, const dnnl::memory::desc& desc) {
  return {desc, context.engine, DNNL_MEMORY_NONE};
}

Inlet::Inlet(const OnednnContext& context, const dnnl::memory::desc& plain,
             const dnnl::memory::desc& wanted)
    : reorders_(plain != wanted), plain_(handle(context, plain)) {
  if (!reorders_) return;
  wanted_ = dnnl::memory(wanted, context.engine);
  reorder_ = dnnl::reorder(plain_, wanted_);
}

void Inlet::load(OnednnContext& context, const float* data) {
  // oneDNN takes a pointer to non-const for inputs too; it does not write there.
  plain_.set_data_handle(const_cast<float*>(data));
  if (reorders_) reorder_.execute(context.stream, plain_, wanted_);
}

Outlet::Outlet(const OnednnContext& context, const dnnl::memory::desc& plain,
               const dnnl::memory::desc& given)
    : reorders_(plain != given), plain_(handle(context, plain)) {
  if (!reorders_) return;
  given_ = dnnl::memory(given, context.engine);
  reorder_ = dnnl::reorder(given_, plain_);
}

void Outlet::aim(float* data) { plain_.set_data_handle(data); }

void Outlet::deliver(OnednnContext& context) {
  if (reorders_) reorder_.execute(context.stream, given_, plain_);
}

}  // namespace poseidon
