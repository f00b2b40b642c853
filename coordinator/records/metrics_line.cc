#include "coordinator/records/metrics_line.h"

#include <charconv>
#include <limits>

#include "absl/strings/ascii.h"
#include "nlohmann/json.hpp"

namespace poseidon {
namespace {

/// Takes a text, or a number as JSON has it, from the front.
class Front {
 public:
  explicit Front(std::string_view text) : left_(text) {}
  bool take(std::string_view wanted) {
    if (!left_.starts_with(wanted)) return false;
    left_.remove_prefix(wanted.size());
    return true;
  }
  template <typename Number>
  bool take_number(Number& value) {
    const std::size_t sign = left_.starts_with('-') ? 1 : 0;
    if (left_.size() <= sign || !absl::ascii_isdigit(static_cast<unsigned char>(left_[sign]))) {
      return false;  // infinities and NaN
    }
    const auto [end, error] = std::from_chars(left_.data(), left_.data() + left_.size(), value);
    if (error != std::errc()) return false;
    left_.remove_prefix(static_cast<std::size_t>(end - left_.data()));
    return true;
  }
  bool is_empty() const { return left_.empty(); }

 private:
  std::string_view left_;
};

/// A line just as coordinator/job/training.cc writes it: a month's run has tens of millions of
/// them, which the next process reads before it serves clients.
std::optional<MetricsLine> parse_usual_line(std::string_view text) {
  Front front(text);
  MetricsLine line;
  double loss = 0.0, ignored = 0.0;
  if (!front.take("{\"iteration\":") || !front.take_number(line.iteration)) return std::nullopt;
  if (front.take(",\"loss\":")) {
    if (!front.take_number(loss) || !front.take(",\"learning_rate\":") ||
        !front.take_number(ignored) || !front.take(",\"images_per_s\":") ||
        !front.take_number(ignored)) {
      return std::nullopt;
    }
    line.loss = loss;
  } else if (!front.take(",\"test_loss\":") || !front.take_number(line.test_loss) ||
             !front.take(",\"test_accuracy\":") || !front.take_number(line.test_accuracy)) {
    return std::nullopt;
  }
  if (!front.take("}") || !front.is_empty()) return std::nullopt;
  return line;
}

}  // namespace

std::optional<MetricsLine> parse_metrics_line(std::string_view text) {
  if (const std::optional<MetricsLine> usual = parse_usual_line(text)) return usual;
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
  if (const auto loss = json.find("loss"); loss != json.end() && loss->is_null()) {
    line.loss = std::numeric_limits<double>::quiet_NaN();
    return line;
  }
  const std::optional<double> test_loss = number("test_loss");
  if (!test_loss) return std::nullopt;
  line.test_loss = *test_loss;
  line.test_accuracy = number("test_accuracy").value_or(0.0);
  return line;
}

}  // namespace poseidon
