#pragma once

// The coordinator's Prometheus metrics. A probe: it counts, it decides nothing.

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/membership.h"
#include "coordinator/reports.h"

namespace poseidon {

/// Thread-safe. Exposes over HTTP (path /metrics) when given an address.
///   poseidon_iterations_total, poseidon_loss, poseidon_images_per_second,
///   poseidon_members{role}, poseidon_refused_messages_total{reason}
class CoordinatorMetrics {
 public:
  /// `listen`: HOST:PORT (port 0: any), or "" to count without exposing. The message of an error
  /// names the address.
  static absl::StatusOr<std::unique_ptr<CoordinatorMetrics>> create(const std::string& listen);
  virtual ~CoordinatorMetrics() = default;

  virtual void iteration(double loss, double images_per_s) = 0;
  virtual void members(NodeRole role, std::size_t count) = 0;
  virtual void refused(Refusal refusal) = 0;
  /// Where it listens in fact; "" when it does not.
  virtual std::string address() const = 0;
};

}  // namespace poseidon
