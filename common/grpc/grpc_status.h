#pragma once

// A call's end in gRPC's type and in ours. Their codes are the same numbers.

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace poseidon {

inline grpc::Status to_grpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

inline absl::Status to_absl(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return {static_cast<absl::StatusCode>(status.error_code()), status.error_message()};
}

}  // namespace poseidon
