#pragma once

// Convolutions in plain loops, with sums in double, for the emulated cuDNN's engines.

#include <cudnn.h>

#include <cstddef>

namespace poseidon::emulated {

/// Sizes of n images, of their convolution, and how all tensors lie.
struct Convolution {
  cudnnDataType_t type;
  bool has_channels_last;
  int n;
  struct {
    int c, h, w;
  } x, y;
  struct {
    int k, c, h, w;
  } w;
  int pad_h, pad_w, stride_h, stride_w;

  int groups() const { return w.c > 0 ? x.c / w.c : 0; }
  bool fits() const;
  std::size_t products() const;
  std::size_t x_elements() const;
  std::size_t y_elements() const;
  std::size_t w_elements() const;
  std::size_t bytes(std::size_t elements) const {
    return elements * (type == CUDNN_DATA_FLOAT ? 4 : 2);
  }
};

enum class Pass { kForward, kOfWeight, kOfInput };

/// Behind the sums of kForward, before they are rounded.
struct Behind {
  const void* bias = nullptr;  ///< y.c of them, as the tensors are; null: nothing
  bool relu = false;
  bool keeps_nans = true;  ///< or makes 0 of them, as the ReLU of some engines does
};

/// What a pass does not write it reads. `rounds`: float factors to TF32.
void compute(Pass pass, const Convolution& sizes, bool rounds, const Behind& behind, void* x,
             void* w, void* y);
/// What an engine leaves that must not be taken.
void leave_nans(Pass pass, const Convolution& sizes, void* x, void* w, void* y);

}  // namespace poseidon::emulated
