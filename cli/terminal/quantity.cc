#include "cli/terminal/quantity.h"

#include <cmath>
#include <span>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "common/base/text.h"

namespace poseidon {
namespace {

struct Unit {
  std::string_view name;  ///< lower case
  double factor;
};

constexpr Unit kBandwidths[] = {{"bit", 1 / 8.0},    {"kbit", 1e3 / 8},    {"mbit", 1e6 / 8},
                                {"gbit", 1e9 / 8},   {"tbit", 1e12 / 8},   {"byte", 1.0},
                                {"kbyte", 1e3},      {"mbyte", 1e6},       {"gbyte", 1e9},
                                {"bit/s", 1 / 8.0},  {"kbit/s", 1e3 / 8},  {"mbit/s", 1e6 / 8},
                                {"gbit/s", 1e9 / 8}, {"tbit/s", 1e12 / 8}, {"byte/s", 1.0},
                                {"kbyte/s", 1e3},    {"mbyte/s", 1e6},     {"gbyte/s", 1e9}};
constexpr Unit kLatencies[] = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1.0}};
constexpr Unit kOperations[] = {{"", 1.0},  {"k", 1e3},  {"m", 1e6},
                                {"g", 1e9}, {"t", 1e12}, {"p", 1e15}};

struct Range {
  double min, max;
};

absl::StatusOr<double> parse(std::string_view flag, std::string_view text,
                             std::span<const Unit> units, const Range& range,
                             std::string_view example) {
  const auto refuse = [&] {
    return absl::InvalidArgumentError(
        str_cat(flag, " \"", text, "\" must be a number with a unit from ", range.min, " to ",
                range.max, " in basic units, like ", example));
  };
  // Takes the longest number: "5e9bit" is 5e9 bit.
  for (std::size_t length = text.size(); length > 0; --length) {
    double number = 0.0;
    const std::string_view digits = text.substr(0, length);
    const char last = digits.back();
    // SimpleAtod also accepts "inf", "nan", "0x10" and surrounding spaces.
    if (!absl::ascii_isdigit(static_cast<unsigned char>(last)) && last != '.') continue;
    if (digits.find_first_not_of("0123456789.eE+-") != digits.npos) continue;
    if (!absl::SimpleAtod(to_absl(digits), &number) || !std::isfinite(number)) continue;
    std::string unit(text.substr(length));
    absl::StripAsciiWhitespace(&unit);
    absl::AsciiStrToLower(&unit);
    for (const Unit& known : units) {
      if (unit != known.name) continue;
      const double value = number * known.factor;
      if (value < range.min || value > range.max) return refuse();
      return value;
    }
    return refuse();
  }
  return refuse();
}

}  // namespace

absl::StatusOr<double> parse_bandwidth(std::string_view flag, std::string_view text) {
  return parse(flag, text, kBandwidths, {.min = 1e3, .max = 1e13},
               "10gbit, 200mbit or 1.25gbyte (per second)");
}

absl::StatusOr<double> parse_latency(std::string_view flag, std::string_view text) {
  return parse(flag, text, kLatencies, {.min = 0.0, .max = 60.0}, "50us or 1.5ms");
}

absl::StatusOr<double> parse_operations(std::string_view flag, std::string_view text) {
  std::string plain(text);
  absl::AsciiStrToLower(&plain);
  for (const std::string_view ending : {"flop/s", "flops"}) {
    if (plain.ends_with(ending)) {
      plain.resize(plain.size() - ending.size());
      break;
    }
  }
  return parse(flag, plain, kOperations, {.min = 1.0, .max = 1e20},
               "6e12, 6T or 312TFLOPS (per second)");
}

}  // namespace poseidon
