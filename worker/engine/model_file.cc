#include "worker/engine/model_file.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/nearest.h"
#include "common/files/json_fields.h"
#include "common/tensor/scan.h"
#include "models/net/model_tensors.h"

namespace poseidon {
namespace {

/// Of each list in a report; a name tells what kind of thing is missing, hundreds do not tell more.
constexpr std::size_t kMaxNamesInReport = 8;

std::span<float> values_of(const ModelTensor& place, Executor& executor,
                           std::span<float> statistics) {
  return (place.is_statistic ? statistics : executor.parameters(place.layer))
      .subspan(place.offset, place.elements());
}

std::vector<std::string> sorted_names(const std::set<std::string>& names) {
  return {names.begin(), names.end()};
}

using StoredByName = std::map<std::string, const StoredTensor*>;

/// The file's tensors by the names that the network has for them.
absl::StatusOr<StoredByName> renamed(const SafetensorsHeader& header, const LayerRenames& renames,
                                     const std::vector<ModelTensor>& network) {
  std::set<std::string> in_file, in_network;
  for (const StoredTensor& tensor : header.tensors) in_file.insert(layer_of_tensor(tensor.name));
  for (const ModelTensor& place : network) in_network.insert(place.layer_name);
  for (const auto& [from, to] : renames) {
    if (!in_file.contains(from)) {
      return absl::InvalidArgumentError(absl::StrCat("rename: the file has no tensors of a layer ",
                                                     json_excerpt(from),
                                                     did_you_mean(from, sorted_names(in_file))));
    }
    if (!in_network.contains(to)) {
      return absl::InvalidArgumentError(absl::StrCat("rename: the network has no layer ",
                                                     json_excerpt(to), " with tensors",
                                                     did_you_mean(to, sorted_names(in_network))));
    }
  }
  StoredByName result;
  for (const StoredTensor& tensor : header.tensors) {
    const std::string layer = layer_of_tensor(tensor.name);
    const auto rename = renames.find(layer);
    const std::string name =
        rename == renames.end() ? tensor.name : rename->second + tensor.name.substr(layer.size());
    if (!result.emplace(name, &tensor).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("rename: two tensors of the file become ", json_excerpt(name)));
    }
  }
  return result;
}

struct Match {
  WeightsReport report;
  std::vector<std::pair<const StoredTensor*, ModelTensor>> copies;
};

absl::StatusOr<Match> match(const SafetensorsHeader& header, const LayerRenames& renames,
                            const NetSpec& net) {
  Match result;
  const std::vector<ModelTensor> network = model_tensors(layout_of(net));
  POSEIDON_ASSIGN_OR_RETURN(StoredByName stored, renamed(header, renames, network));
  for (const ModelTensor& place : network) {
    const auto found = stored.find(place.name);
    if (found == stored.end()) {
      result.report.not_in_file.push_back(place.name);
      continue;
    }
    const StoredTensor& tensor = *found->second;
    if (tensor.shape != place.shape) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", place.name, " has shape ", shape_to_string(tensor.shape),
                       ", the network wants ", shape_to_string(place.shape),
                       "; remove it from the file to begin without it"));
    }
    if (!is_floating_dtype(tensor.dtype)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", place.name, " has dtype ", tensor.dtype,
                       "; F32, F64, F16 and BF16 can be loaded: convert it"));
    }
    result.report.loaded.push_back(place.name);
    result.copies.emplace_back(&tensor, place);
    stored.erase(found);
  }
  for (const auto& entry : stored) result.report.not_in_network.push_back(entry.first);
  if (!result.copies.empty()) return result;
  return absl::InvalidArgumentError(absl::StrCat(
      "none of its ", header.tensors.size(), " tensors has a name of the network: the file has ",
      header.tensors.empty() ? "none" : json_excerpt(header.tensors.front().name), ", the network ",
      network.front().name, "; init.rename maps the file's layer names to the network's"));
}

/// The same; errors start with the path.
absl::StatusOr<Match> match_file(const SafetensorsReader& reader, const std::filesystem::path& path,
                                 const LayerRenames& renames, const NetSpec& net) {
  absl::StatusOr<Match> found = match(reader.header(), renames, net);
  if (found.ok()) return found;
  return absl::InvalidArgumentError(absl::StrCat(path.string(), ": ", found.status().message()));
}

std::string some_of(const std::vector<std::string>& names) {
  const std::size_t shown = std::min(names.size(), kMaxNamesInReport);
  const std::string text =
      absl::StrJoin(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", ");
  return names.size() == shown ? text : absl::StrCat(text, " and ", names.size() - shown, " more");
}

/// Training would say so later, and not of the file.
absl::Status check_values(const std::filesystem::path& path, const ModelTensor& place,
                          std::span<const float> values) {
  const auto refuse = [&](const char* what) {
    return absl::InvalidArgumentError(
        absl::StrCat(path.string(), ": tensor ", place.name, " has ", what, "; take another file"));
  };
  if (!all_finite(values)) return refuse("values that are no finite float32 numbers");
  if (place.is_statistic && place.name.ends_with(".running_var") &&
      std::ranges::any_of(values, [](float value) { return value < 0; })) {
    return refuse("negative values, but a variance cannot be negative");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<EncodedModel> encode_model(Executor& executor) {
  const NetSpec& net = executor.net();
  std::vector<std::span<const float>> parameters;
  for (std::uint32_t l = 0; l < net.parameter_layers().size(); ++l) {
    parameters.emplace_back(executor.parameters(LayerIndex(l)));
  }
  std::vector<float> statistics(static_cast<std::size_t>(net.statistics_count()));
  POSEIDON_RETURN_IF_ERROR(executor.read_statistics(statistics));
  return EncodedModel::encode(layout_of(net), parameters, std::move(statistics));
}

std::string weights_report_to_text(const WeightsReport& report) {
  std::string text =
      absl::StrCat(report.loaded.size(), " of the network's ",
                   report.loaded.size() + report.not_in_file.size(), " tensors loaded");
  if (!report.not_in_file.empty()) {
    absl::StrAppend(&text, "; not in the file, so they begin as the network says: ",
                    some_of(report.not_in_file));
  }
  if (!report.not_in_network.empty()) {
    absl::StrAppend(&text, "; in the file, but not in the network, so ignored: ",
                    some_of(report.not_in_network));
  }
  return text;
}

absl::StatusOr<WeightsReport> check_weights(const std::filesystem::path& path,
                                            const LayerRenames& renames, const NetSpec& net) {
  POSEIDON_ASSIGN_OR_RETURN(const SafetensorsReader reader, SafetensorsReader::open(path));
  POSEIDON_ASSIGN_OR_RETURN(Match found, match_file(reader, path, renames, net));
  return std::move(found.report);
}

absl::StatusOr<WeightsReport> load_weights(const std::filesystem::path& path,
                                           const LayerRenames& renames, WeightsPart part,
                                           Executor& executor) {
  POSEIDON_ASSIGN_OR_RETURN(const SafetensorsReader reader, SafetensorsReader::open(path));
  POSEIDON_ASSIGN_OR_RETURN(Match found, match_file(reader, path, renames, executor.net()));
  std::vector<float> statistics(static_cast<std::size_t>(executor.net().statistics_count()));
  POSEIDON_RETURN_IF_ERROR(executor.read_statistics(statistics));
  for (const auto& [tensor, place] : found.copies) {
    if (part == WeightsPart::kStatistics && !place.is_statistic) continue;
    const std::span<float> values = values_of(place, executor, statistics);
    POSEIDON_RETURN_IF_ERROR(reader.read(*tensor, values));
    POSEIDON_RETURN_IF_ERROR(check_values(path, place, values));
  }
  POSEIDON_RETURN_IF_ERROR(executor.write_statistics(statistics));
  return std::move(found.report);
}

}  // namespace poseidon
