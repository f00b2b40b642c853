// Finds the network that a job names: shipped, in a file, or inline.

#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/nearest.h"
#include "models/shipped.h"
#include "worker/engine/net.h"
#include "worker/engine/net_json.h"

namespace poseidon {
namespace {

absl::StatusOr<NetSpec> parse_text(std::string_view text, const std::string& where) {
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": not valid JSON: ", error.what()));
  }
  absl::StatusOr<NetSpec> net = parse_network(json);
  if (!net.ok()) {
    return absl::Status(net.status().code(), absl::StrCat(where, ": ", net.status().message()));
  }
  return net;
}

absl::StatusOr<NetSpec> load_file(const std::filesystem::path& path) {
  const std::string where = path.string();
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::NotFoundError(absl::StrCat("network file ", where, ": no such file"));
  }
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error || bytes > static_cast<std::uintmax_t>(kMaxNetworkFileBytes)) {
    return absl::InvalidArgumentError(absl::StrCat("network file ", where, ": larger than ",
                                                   kMaxNetworkFileBytes, " bytes or unreadable"));
  }
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file)
    return absl::UnavailableError(absl::StrCat("network file ", where, ": cannot be read"));
  return parse_text(text, absl::StrCat("network file ", where));
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
