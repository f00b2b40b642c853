#include "models/shipped.h"

#include "models/shipped_data.h"

namespace poseidon {
namespace {

std::string_view name_of(const EmbeddedFile& file) {
  return file.name.substr(0, file.name.size() - std::string_view(".json").size());
}

}  // namespace

std::vector<std::string> shipped_model_names() {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : shipped_models()) names.emplace_back(name_of(file));
  return names;
}

std::optional<std::string_view> shipped_model(std::string_view name) {
  for (const EmbeddedFile& file : shipped_models()) {
    if (name_of(file) == name) return file.text;
  }
  return std::nullopt;
}

}  // namespace poseidon
