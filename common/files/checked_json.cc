#include "common/files/checked_json.h"

#include <zlib.h>

#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/printable.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"

namespace poseidon {
namespace {

constexpr const char* kKey = "checksum";
constexpr int kIndent = 1;

std::string checksum(std::string_view text) {
  return absl::StrFormat(
      "%08x", crc32_z(0, reinterpret_cast<const unsigned char*>(text.data()), text.size()));
}

constexpr std::size_t kSumBytes = 8;
/// Of the first line, behind the sum.
constexpr std::size_t kTailBytes = 3;

/// The document up to what is summed up.
std::string head(std::string_view sum) { return str_cat("{\n \"", kKey, "\": \"", sum, "\",\n"); }

}  // namespace

std::string checked_json(const nlohmann::ordered_json& object) {
  POSEIDON_CHECK(object.is_object() && !object.empty() && !object.contains(kKey),
                 "members, and a place for the checksum");
  std::string text = object.dump(kIndent, ' ', /*ensure_ascii=*/false,
                                 nlohmann::ordered_json::error_handler_t::replace);
  text.erase(0, 2);  // "{\n"
  text += '\n';
  return absl::StrCat(head(checksum(text)), text);
}

absl::StatusOr<nlohmann::json> parse_checked_json(std::string_view text, std::string_view source,
                                                  const JsonLimits& limits) {
  const std::string begin = head("");
  const std::string_view opening = std::string_view(begin).substr(0, begin.size() - kTailBytes);
  const std::size_t head_bytes = begin.size() + kSumBytes;
  std::string_view sum;
  if (text.starts_with(opening) && text.size() > head_bytes) {
    sum = text.substr(opening.size(), kSumBytes);
    const std::string is = checksum(text.substr(head_bytes));
    if (sum != is || !text.starts_with(head(sum))) {
      return absl::DataLossError(str_cat(
          source, ": its checksum is ", printable(sum), ", and that of what follows it ", is,
          ": a disk or a memory has changed the file since it was written; take a copy that "
          "is whole. Whoever has changed it on purpose takes the line of the checksum out"));
    }
  }
  POSEIDON_ASSIGN_OR_RETURN(nlohmann::json json, parse_json(text, source, limits));
  // Anywhere else it is a member that nobody knows.
  if (!sum.empty()) json.erase(kKey);
  return json;
}

}  // namespace poseidon
