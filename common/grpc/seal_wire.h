#pragma once

// What two ends say to agree on a sealed stream (proto/poseidon/v1/stream.proto, SealAgreement),
// and how one of them ends it. Pure.
//
// Before: messages of streams over TLS, and what common/grpc/sealed_pipe.h has opened. After:
// common/grpc/sealed_transport.h does what they say.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "common/security/seal.h"
#include "common/security/ticket_book.h"
#include "common/transport/transport.h"

namespace poseidon {

/// Of what is sealed how: common/grpc/sealed_pipe.h's records.
inline constexpr std::uint32_t kSealVersion = 3;
/// Of an end's reason: a code and a text.
inline constexpr std::size_t kMaxSealEndBytes = 4 + 4096;

/// Known to both ends of one stream, and to nobody else.
struct SealSecrets {
  SealSecret to_server;  ///< of what the caller sends
  SealSecret to_caller;  ///< and of what it gets
};
struct SealGrant {
  Ticket ticket{};
  SealSecrets secrets;
};

std::string encode_seal_request();
/// The version that is asked for; nothing when it is the first message of another kind of stream.
std::optional<std::uint32_t> read_seal_request(const Bytes& message);

/// Holds secrets: forget_secret() is for whoever gets it.
std::string encode_seal_grant(const SealGrant& grant);
/// Nothing when it is none, or a part is of another size. Forgets what it copied; gRPC and TLS have
/// copies of their own.
std::optional<SealGrant> read_seal_grant(const Bytes& message);

/// The text is cut after 4096 bytes.
std::string encode_seal_end(const absl::Status& status);
std::optional<absl::Status> decode_seal_end(std::string_view text);

}  // namespace poseidon
