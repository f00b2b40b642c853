#include "models/shipped.h"

#include "models/shipped_data.h"

namespace poseidon {

std::vector<std::string> shipped_model_names() {
  std::vector<std::string> names;
  for (const ShippedModel& model : shipped_models()) names.emplace_back(model.name);
  return names;
}

std::optional<std::string_view> shipped_model(std::string_view name) {
  for (const ShippedModel& model : shipped_models()) {
    if (model.name == name) return model.text;
  }
  return std::nullopt;
}

}  // namespace poseidon
