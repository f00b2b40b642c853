#include "worker/engine/cpu/onednn_operator.h"

#include <cstdlib>
#include <new>

#include "common/base/check.h"

namespace poseidon {
namespace {

constexpr std::size_t kAlignmentBytes = 64;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

}  // namespace

// Grows while operators are made, and is empty then: there is nothing to move.
void Scratch::reserve(std::size_t bytes) {
  if (bytes <= bytes_) return;
  memory_.reset();
  bytes_ = 0;
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kAlignmentBytes, aligned(bytes)));
  if (memory == nullptr) throw std::bad_alloc();
  memory_ = {memory, [](void* p) { std::free(p); }};
  bytes_ = bytes;
}

std::size_t ScratchSlices::take(std::size_t bytes) {
  const std::size_t offset = used_;
  used_ += aligned(bytes);
  context_.scratch.reserve(used_);
  return offset;
}

std::int64_t channel_block() {
  const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
  const auto has = [isa](dnnl::cpu_isa wanted) {
    return (static_cast<unsigned>(isa) & static_cast<unsigned>(wanted)) ==
           static_cast<unsigned>(wanted);
  };
  if (has(dnnl::cpu_isa::avx512_core)) return 16;
  return has(dnnl::cpu_isa::avx2) ? 8 : 1;
}

dnnl::memory::desc tensor_desc(std::int64_t batch, const Shape& shape, Layout layout) {
  const dnnl::memory::dims dims = batch_dims(batch, shape);
  if (layout == Layout::kPlain) return plain_desc(dims);
  POSEIDON_CHECK(shape.size() == 3 && shape[0] % channel_block() == 0, "a blocked image");
  const auto tag =
      channel_block() == 16 ? dnnl::memory::format_tag::nChw16c : dnnl::memory::format_tag::nChw8c;
  return {dims, dnnl::memory::data_type::f32, tag};
}

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

Inlet::Inlet(ScratchSlices& slices, const dnnl::memory::desc& given,
             const dnnl::memory::desc& wanted)
    : reorders_(given != wanted), given_(handle(slices.context(), given)) {
  if (!reorders_) return;
  wanted_ = handle(slices.context(), wanted);
  scratch_offset_ = slices.take(wanted.get_size());
  reorder_ = dnnl::reorder(given_, wanted_);
}

void Inlet::load(OnednnContext& context, const float* data) {
  // oneDNN takes a pointer to non-const for inputs too; it does not write there.
  given_.set_data_handle(const_cast<float*>(data));
  if (!reorders_) return;
  wanted_.set_data_handle(context.scratch.at(scratch_offset_));
  reorder_.execute(context.stream, given_, wanted_);
}

Outlet::Outlet(ScratchSlices& slices, const dnnl::memory::desc& wanted,
               const dnnl::memory::desc& given)
    : reorders_(wanted != given), wanted_(handle(slices.context(), wanted)) {
  if (!reorders_) return;
  given_ = handle(slices.context(), given);
  scratch_offset_ = slices.take(given.get_size());
  reorder_ = dnnl::reorder(given_, wanted_);
}

void Outlet::aim(OnednnContext& context, float* data) {
  wanted_.set_data_handle(data);
  if (reorders_) given_.set_data_handle(context.scratch.at(scratch_offset_));
}

void Outlet::deliver(OnednnContext& context) {
  if (reorders_) reorder_.execute(context.stream, given_, wanted_);
}

}  // namespace poseidon
