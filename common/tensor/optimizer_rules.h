#pragma once

// An optimizer step of one element, or of one vector of elements: the arithmetic behind
// common/tensor/optimizer.h, written once for all processors. Pure.
//
// Called by: common/tensor/kernels_body.h (which explains why everything here must be inlined) and
// the GPU's kernels. Calls: nothing. `Lanes` provides broadcast and square_root; vectors provide +
// - * /. Compilers must not contract a multiplication and an addition.

#include "common/tensor/kernels.h"

#if defined(__CUDACC__)
#define POSEIDON_RULE __host__ __device__ __forceinline__
#else
#define POSEIDON_RULE __attribute__((always_inline)) inline
#endif

namespace poseidon::rules {

template <typename Lanes, typename Vector>
POSEIDON_RULE Vector decayed_gradient(const SgdFactors& f, Vector sum, Vector w) {
  return sum * Lanes::broadcast(f.gradient_scale) + Lanes::broadcast(f.weight_decay) * w;
}

/// The new parameter.
template <typename Lanes, typename Vector>
POSEIDON_RULE Vector sgd(const SgdFactors& f, Vector sum, Vector w) {
  const Vector g = decayed_gradient<Lanes>(f, sum, w);
  return w - Lanes::broadcast(f.learning_rate) * g;
}

/// The new parameter; `velocity` becomes the new velocity.
template <typename Lanes, bool kNesterov, typename Vector>
POSEIDON_RULE Vector momentum(const SgdFactors& f, Vector sum, Vector w, Vector& velocity) {
  const Vector factor = Lanes::broadcast(f.momentum);
  const Vector g = decayed_gradient<Lanes>(f, sum, w);
  velocity = factor * velocity + g;
  Vector direction = velocity;
  if constexpr (kNesterov) direction = g + factor * velocity;
  return w - Lanes::broadcast(f.learning_rate) * direction;
}

/// The new parameter; `mean` and `square` become the new ones.
template <typename Lanes, bool kDecoupled, typename Vector>
POSEIDON_RULE Vector adam(const AdamFactors& f, Vector sum, Vector w, Vector& mean,
                          Vector& square) {
  const Vector decayed = Lanes::broadcast(f.decay) * w;
  Vector g = sum * Lanes::broadcast(f.gradient_scale);
  Vector kept = w;
  if constexpr (kDecoupled) {
    kept = w - decayed;
  } else {
    g = g + decayed;
  }
  mean = Lanes::broadcast(f.beta1) * mean + Lanes::broadcast(f.new_share1) * g;
  square = Lanes::broadcast(f.beta2) * square + Lanes::broadcast(f.new_share2) * (g * g);
  const Vector deviation = Lanes::square_root(square) / Lanes::broadcast(f.correction2_sqrt);
  return kept - Lanes::broadcast(f.rate) * (mean / (deviation + Lanes::broadcast(f.epsilon)));
}

}  // namespace poseidon::rules
