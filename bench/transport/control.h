#pragma once

// The parent's line to each of its processes: small JSON messages over a socket pair.
//
//   parent -> child                          child -> parent
//   {variant, index, shape}  (once)          server: {address}, worker: {}
//   {"do": "serve" | "connect", servers}     {}
//   {"do": "run", first, iterations}         {}            (workers)
//   {"do": "check", iteration}               {}            (workers)
//   {"do": "usage"}                          {cpu_s}
//   end of file                              the child ends

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/descriptor.h"
#include "nlohmann/json.hpp"

namespace poseidon::bench {

class ControlLine {
 public:
  ControlLine() = default;
  explicit ControlLine(Descriptor socket) : socket_(std::move(socket)) {}

  /// Ours, closed on exec, and the child's, which is inherited.
  static absl::StatusOr<std::pair<ControlLine, Descriptor>> make_pair();

  absl::Status send(const nlohmann::json& message) const;
  /// DEADLINE_EXCEEDED after `patience`; UNAVAILABLE when the other side has closed or ended.
  absl::StatusOr<nlohmann::json> receive(Nanoseconds patience) const;
  void close() { socket_.close(); }

 private:
  Descriptor socket_;
};

}  // namespace poseidon::bench
