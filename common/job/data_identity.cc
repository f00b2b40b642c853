#include "common/job/data_identity.h"

#include "common/base/check.h"
#include "common/base/text.h"
#include "common/files/json_fields.h"

namespace poseidon {
namespace {

std::string set_difference(const DatasetIdentity& here, const DatasetIdentity& there,
                           const char* what) {
  if (here.samples != there.samples) {
    return str_cat(here.samples, " ", what, " samples here, ", there.samples, " there");
  }
  const bool both_are_known = here.digest != 0 && there.digest != 0;
  if (!both_are_known || here.digest == there.digest) return "";
  return str_cat("other ", what, " samples (", here.samples, ", as many as there)");
}

nlohmann::json set_to_json(const DatasetIdentity& set) {
  return {{"samples", set.samples}, {"digest", set.digest}};
}

absl::StatusOr<DatasetIdentity> set_from_json(const nlohmann::json& json, std::string_view source,
                                              std::string_view path) {
  JsonFields fields(json, source, path);
  DatasetIdentity set;
  for (const char* key : {"samples", "digest"}) fields.require(key);
  fields.unsigned_integer("samples", &set.samples);
  fields.unsigned_integer("digest", &set.digest);
  POSEIDON_RETURN_IF_ERROR(fields.finish());
  return set;
}

void put(const DatasetIdentity& set, v1::DatasetIdentity& message) {
  message.set_samples(set.samples);
  message.set_digest(set.digest);
}

DatasetIdentity taken(const v1::DatasetIdentity& message) {
  return {.samples = message.samples(), .digest = message.digest()};
}

}  // namespace

std::string data_difference(const DataIdentity& here, const DataIdentity& there) {
  std::string train = set_difference(here.train, there.train, "training");
  if (!train.empty() || !here.test || !there.test) return train;
  return set_difference(*here.test, *there.test, "test");
}

DataIdentity joined(const DataIdentity& known, const DataIdentity& found) {
  DataIdentity both = known;
  if (both.train.digest == 0) both.train = found.train;
  if (!both.test || both.test->digest == 0) {
    if (found.test) both.test = found.test;
  }
  return both;
}

nlohmann::json data_identity_to_json(const DataIdentity& data) {
  nlohmann::json json = {{"train", set_to_json(data.train)}};
  if (data.test) json["test"] = set_to_json(*data.test);
  return json;
}

absl::StatusOr<DataIdentity> data_identity_from_json(const nlohmann::json& json,
                                                     std::string_view source,
                                                     std::string_view path) {
  JsonFields fields(json, source, path);
  fields.require("train");
  const nlohmann::json* const train = fields.value("train");
  const nlohmann::json* const test = fields.value("test");
  POSEIDON_RETURN_IF_ERROR(fields.finish());
  DataIdentity data;
  POSEIDON_ASSIGN_OR_RETURN(data.train, set_from_json(*train, source, str_cat(path, ".train")));
  if (test == nullptr) return data;
  POSEIDON_ASSIGN_OR_RETURN(data.test, set_from_json(*test, source, str_cat(path, ".test")));
  return data;
}

void put_data_identity(const DataIdentity& data, v1::Ready& ready) {
  put(data.train, *ready.mutable_train());
  if (data.test) put(*data.test, *ready.mutable_test());
}

std::optional<DataIdentity> data_identity_of(const v1::Ready& ready) {
  if (!ready.has_train()) return std::nullopt;
  DataIdentity data{.train = taken(ready.train()), .test = std::nullopt};
  if (ready.has_test()) data.test = taken(ready.test());
  return data;
}

}  // namespace poseidon
