// Finds the network that a job names: shipped, in a file, or inline.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/file_io.h"
#include "common/json_fields.h"
#include "common/nearest.h"
#include "common/status_macros.h"
#include "models/shipped.h"
#include "worker/engine/net.h"

namespace poseidon {
namespace {

absl::Status prefixed(const std::string& prefix, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(prefix, status.message()));
}

absl::StatusOr<NetSpec> parse_text(std::string_view text, const std::string& where) {
  POSEIDON_ASSIGN_OR_RETURN(const nlohmann::json json,
                            parse_json(text, where, {.max_bytes = kMaxNetworkFileBytes}));
  absl::StatusOr<NetSpec> net = parse_network(json);
  return net.ok() ? std::move(net) : prefixed(where + ": ", net.status());
}

absl::StatusOr<NetSpec> load_file(const std::filesystem::path& path) {
  const absl::StatusOr<std::string> text = read_file(path, kMaxNetworkFileBytes);
  if (!text.ok()) return prefixed("network file ", text.status());
  return parse_text(*text, absl::StrCat("network file ", path.string()));
}

}  // namespace

absl::StatusOr<NetSpec> resolve_network(const nlohmann::json& model,
                                        const std::filesystem::path& folder) {
  if (model.is_object()) return parse_network(model);
  if (!model.is_string()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"model\" must be the name of a shipped network, a path, or a network object, got ",
        json_excerpt(model)));
  }
  const auto name = model.get<std::string>();
  if (const auto text = shipped_model(name)) {
    return parse_text(*text, absl::StrCat("shipped network '", name, "'"));
  }
  if (absl::StrContains(name, '/') || absl::EndsWith(name, ".json")) {
    return load_file(folder / name);
  }
  const std::vector<std::string> names = shipped_model_names();
  return absl::NotFoundError(
      absl::StrCat("unknown network \"", name, "\"", did_you_mean(name, names), ": shipped are ",
                   absl::StrJoin(names, ", "), "; a path ends in .json or contains a slash"));
}

}  // namespace poseidon
