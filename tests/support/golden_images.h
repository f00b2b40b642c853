#pragma once

// tests/golden/images/images.json for tests.

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "common/base/check.h"
#include "nlohmann/json.hpp"

namespace poseidon {

inline const nlohmann::json& golden_images() {
  static const nlohmann::json kGolden = [] {
    std::ifstream file("tests/golden/images/images.json");
    return nlohmann::json::parse(file);
  }();
  return kGolden;
}

inline std::vector<std::uint8_t> from_base64(const nlohmann::json& text) {
  std::string bytes;
  POSEIDON_CHECK(absl::Base64Unescape(text.get<std::string>(), &bytes), "not base 64");
  return {bytes.begin(), bytes.end()};
}

/// A file of the golden set by its name.
inline std::vector<std::uint8_t> golden_file(const std::string& name) {
  for (const nlohmann::json& image : golden_images().at("decode")) {
    if (image.at("name") == name) return from_base64(image.at("file"));
  }
  POSEIDON_CHECK(false, "no such golden image");
}

}  // namespace poseidon
