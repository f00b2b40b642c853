// Finds the network that a job names: shipped, in a file, or inline; by itself or from another one.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/nearest.h"
#include "common/files/file_io.h"
#include "common/files/json_fields.h"
#include "common/job/declared_model.h"
#include "models/net/net.h"
#include "models/net/net_derive.h"
#include "models/net/net_names.h"
#include "models/shipped.h"

namespace poseidon {
namespace {

absl::Status prefixed(const std::string& prefix, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(prefix, status.message()));
}

/// A network file's JSON, and the folder that its relative paths are relative to.
struct Source {
  nlohmann::json json;
  std::filesystem::path folder;
  std::string where;  // for messages; empty for an inline network
};

absl::StatusOr<Source> read_source(const std::string& name, const std::filesystem::path& folder) {
  Source source{
      .json = {}, .folder = folder, .where = absl::StrCat("shipped network '", name, "'")};
  const JsonLimits limits{.max_bytes = kMaxNetworkFileBytes};
  if (const auto text = shipped_model(name)) {
    POSEIDON_ASSIGN_OR_RETURN(source.json, parse_json(*text, source.where, limits));
    return source;
  }
  if (!absl::StrContains(name, '/') && !absl::EndsWith(name, ".json")) {
    const std::vector<std::string> names = shipped_model_names();
    return absl::NotFoundError(absl::StrCat(
        "unknown network ", json_excerpt(name), did_you_mean(name, names), ": shipped are ",
        absl::StrJoin(names, ", "), "; a path ends in .json or contains a slash"));
  }
  const std::filesystem::path path = folder / name;
  const absl::StatusOr<std::string> text = read_file(path, kMaxNetworkFileBytes);
  if (!text.ok()) return prefixed("network file ", text.status());
  source.where = absl::StrCat("network file ", path.string());
  source.folder = path.parent_path();
  POSEIDON_ASSIGN_OR_RETURN(source.json, parse_json(*text, source.where, limits));
  return source;
}

absl::Status refuse_model(const nlohmann::json& model) {
  return absl::InvalidArgumentError(absl::StrCat(
      "\"model\" must be the name of a shipped network, a path, or a network object, got ",
      json_excerpt(model)));
}

/// A self-contained file, whatever it derives from.
absl::StatusOr<Source> load(const nlohmann::json& model, const std::filesystem::path& folder,
                            int derivations) {
  if (!model.is_object() && !model.is_string()) return refuse_model(model);
  if (is_declared_model(model)) {
    return absl::InvalidArgumentError(absl::StrCat(
        place_of(model, "model", "the model"),
        " is declared by a program, which trains it: there is no network here to compute"));
  }
  Source source{.json = model, .folder = folder, .where = ""};
  if (model.is_string()) {
    POSEIDON_ASSIGN_OR_RETURN(source, read_source(model.get<std::string>(), folder));
  }
  if (!is_derived_network(source.json)) return source;
  const std::string prefix = source.where.empty() ? "" : source.where + ": ";
  const nlohmann::json& base = source.json["network"];
  if (derivations >= kMaxDerivations || !base.is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat(prefix, "network: expected the name of a shipped network or a path, at most ",
                     kMaxDerivations, " of them one from the other, got ", json_excerpt(base)));
  }
  absl::StatusOr<Source> loaded = load(base, source.folder, derivations + 1);
  if (!loaded.ok()) return prefixed(prefix, loaded.status());
  auto derived = derive_network(loaded->json, source.json);
  if (!derived.ok()) return prefixed(prefix, derived.status());
  source.json = *std::move(derived);
  return source;
}

}  // namespace

absl::StatusOr<NetSpec> resolve_network(const nlohmann::json& model,
                                        const std::filesystem::path& folder) {
  POSEIDON_ASSIGN_OR_RETURN(const Source source, load(model, folder, 0));
  absl::StatusOr<NetSpec> net = parse_network(source.json);
  if (net.ok() || source.where.empty()) return net;
  return prefixed(source.where + ": ", net.status());
}

}  // namespace poseidon
