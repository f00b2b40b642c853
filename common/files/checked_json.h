#pragma once

// Records that a run is gone on with after months: JSON documents whose first line is a checksum of
// all that follows, so that one bit that a disk or a memory has turned is noticed, and not taken
// for another learning rate. Pure.
//
// Before: what is to be kept, as JSON. After: a file, and whoever reads it again.

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/files/json_fields.h"
#include "nlohmann/json.hpp"

namespace poseidon {

/// `object` as text, one member a line, with a member "checksum" before all others (CRC-32, of
/// zlib): who takes that line out has a document without one. Not empty, and has no such member.
std::string checked_json(const nlohmann::ordered_json& object);

/// The document without its checksum. DATA_LOSS, naming both sums, when it is not as it was
/// written; what has none (of an earlier version, or edited) is taken as it is. Otherwise as
/// parse_json.
absl::StatusOr<nlohmann::json> parse_checked_json(std::string_view text, std::string_view source,
                                                  const JsonLimits& limits = {});

}  // namespace poseidon
