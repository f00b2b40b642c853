#pragma once

// JSON documents with a checksum, for records from which a run may resume after months. The first
// member is a checksum of all that follows, so that a bit flipped by disk or memory is detected and
// not read as another learning rate. Pure.
//
// Called by: code that writes records to files and reads them again (checkpoints,
// coordinator/records). Calls: common/files/json_fields.h.

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/files/json_fields.h"
#include "nlohmann/json.hpp"

namespace poseidon {

/// `object` as text, one member a line, with a member "checksum" before all others (zlib's CRC-32).
/// Deleting that line gives a valid document without a checksum. `object` must not be empty or have
/// such a member.
std::string checked_json(const nlohmann::ordered_json& object);

/// The document without its checksum. DATA_LOSS, naming both sums, when the content does not match.
/// A document without a checksum (from an earlier version, or edited) is accepted. Other errors as
/// parse_json.
absl::StatusOr<nlohmann::json> parse_checked_json(std::string_view text, std::string_view source,
                                                  const JsonLimits& limits = {});

}  // namespace poseidon
