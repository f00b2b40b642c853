#include "coordinator/metrics_line.h"

#include "nlohmann/json.hpp"

namespace poseidon {

std::optional<MetricsLine> parse_metrics_line(std::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  const auto iteration = json.find("iteration");
  if (iteration == json.end() || !iteration->is_number_integer()) return std::nullopt;
  const auto number = [&json](const char* key) -> std::optional<double> {
    const auto it = json.find(key);
    return it != json.end() && it->is_number() ? std::optional(it->get<double>()) : std::nullopt;
  };
  MetricsLine line{.iteration = iteration->get<Iteration>(), .loss = number("loss")};
  if (line.loss) return line;
  const std::optional<double> test_loss = number("test_loss");
  if (!test_loss) return std::nullopt;
  line.test_loss = *test_loss;
  line.test_accuracy = number("test_accuracy").value_or(0.0);
  return line;
}

}  // namespace poseidon
