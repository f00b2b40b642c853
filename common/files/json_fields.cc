#include "common/files/json_fields.h"

#include <zlib.h>
#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/nearest.h"
#include "common/base/text.h"

namespace poseidon {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxExcerptBytes = 60;

/// Keys of hostile files reach terminals and logs: escaped as in JSON, and shortened.
std::string printable_key(const std::string& key) {
  const std::string quoted = json_excerpt(Json(key));
  const bool is_whole = quoted.size() >= 2 && quoted.back() == '"';
  return quoted.substr(1, quoted.size() - (is_whole ? 2 : 1));
}

/// Walks the text without building anything and stops at the first thing that we refuse.
class StrictnessCheck final : public nlohmann::json_sax<Json> {
 public:
  explicit StrictnessCheck(const JsonLimits& limits) : limits_(limits) {}

  const std::string& error() const { return error_; }

  bool null() override { return value(); }
  bool boolean(bool /*value*/) override { return value(); }
  bool number_integer(number_integer_t /*value*/) override { return value(); }
  bool number_unsigned(number_unsigned_t /*value*/) override { return value(); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return value(); }
  bool string(string_t& /*value*/) override { return value(); }
  bool binary(binary_t& /*value*/) override { return value(); }

  bool start_object(std::size_t /*elements*/) override { return enter(false); }
  bool end_object() override { return leave(); }
  bool start_array(std::size_t /*elements*/) override { return enter(true); }
  bool end_array() override { return leave(); }

  bool key(string_t& key) override {
    Level& level = levels_.back();
    level.key = key;
    level.is_between = false;
    if (level.keys.insert(key).second) return true;
    error_ = str_cat(path(), ": the key is there twice; keep one of them");
    return false;
  }

  bool parse_error(std::size_t /*position*/, const std::string& /*last_token*/,
                   const nlohmann::detail::exception& exception) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    error_ = exception.what();
    const std::size_t end = error_.find("] ");
    if (end != std::string::npos) error_.erase(0, end + 2);
    constexpr std::size_t kMaxErrorBytes = 300;
    if (error_.size() > kMaxErrorBytes)
      error_ = str_cat(utf8_prefix(error_, kMaxErrorBytes), "...");
    if (const std::string at = path(); !at.empty()) error_ = str_cat(at, ": ", error_);
    return false;
  }

 private:
  struct Level {
    bool is_array = false;
    std::size_t index = 0;
    std::string key;
    bool is_between = true;  ///< two keys of an object: the last one has its value
    std::set<std::string> keys;
  };

  bool value() {
    if (levels_.empty()) return true;
    ++levels_.back().index;
    levels_.back().is_between = true;
    return true;
  }
  bool enter(bool is_array) {
    if (levels_.size() >= limits_.max_depth) {
      error_ = str_cat(path(), ": more than ", limits_.max_depth,
                       " arrays and objects inside each other");
      return false;
    }
    levels_.push_back(
        Level{.is_array = is_array, .index = 0, .key = {}, .is_between = true, .keys = {}});
    return true;
  }
  bool leave() {
    levels_.pop_back();
    return value();
  }
  std::string path() const {
    std::string path;
    for (const Level& level : levels_) {
      if (level.is_array) {
        path += str_cat("[", level.index, "]");
      } else if (!level.is_between) {
        path += str_cat(path.empty() ? "" : ".", printable_key(level.key));
      }
    }
    return path;
  }

  const JsonLimits& limits_;
  std::vector<Level> levels_;
  std::string error_;
};

/// 1.0 or 1e3, which look like integers.
bool is_whole_float(const Json& json) {
  return json.is_number_float() && std::trunc(json.get<double>()) == json.get<double>();
}

std::optional<std::int64_t> integer_within(const Json& json, std::int64_t min, std::int64_t max) {
  // nlohmann calls every non-negative integer unsigned; one above 2^63 must not wrap around.
  const bool representable =
      json.is_number_unsigned()
          ? json.get<std::uint64_t>() <=
                static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())
          : json.is_number_integer();
  if (!representable) return std::nullopt;
  const auto value = json.get<std::int64_t>();
  if (value < min || value > max) return std::nullopt;
  return value;
}

std::string number_text(double value) { return str_cat(value); }

std::string range_text(const NumberRange& range) {
  const NumberRange open;
  const bool has_min = range.min > open.min;
  const bool has_max = range.max < open.max;
  if (has_min && has_max) {
    return str_cat("a number from ", number_text(range.min), " to ",
                   range.max_excluded ? "less than " : "", number_text(range.max));
  }
  if (has_min) return str_cat("a number, at least ", number_text(range.min));
  if (has_max) {
    return str_cat("a number, ", range.max_excluded ? "less than " : "at most ",
                   number_text(range.max));
  }
  return "a number";
}

}  // namespace

absl::StatusOr<Json> parse_json(std::string_view text, std::string_view source,
                                const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return absl::InvalidArgumentError(str_cat(source, ": ", text.size(), " bytes of JSON, at most ",
                                              limits.max_bytes, " are allowed"));
  }
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    return absl::InvalidArgumentError(str_cat(source, ": is empty; expected a JSON object {...}"));
  }
  // The parser takes it for the end, whatever comes behind it.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return absl::InvalidArgumentError(str_cat(source, ": has a zero byte at offset ", nul,
                                              ", which no JSON has: is the file damaged?"));
  }
  // Two passes: the first refuses with nothing built, the second then cannot fail.
  StrictnessCheck check(limits);
  if (!Json::sax_parse(text, &check)) {
    return absl::InvalidArgumentError(str_cat(source, ": ", check.error()));
  }
  Json parsed = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) {
    return absl::InvalidArgumentError(str_cat(source, ": not valid JSON"));
  }
  return parsed;
}

std::string json_excerpt(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() <= kMaxExcerptBytes) return text;
  std::size_t end = kMaxExcerptBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // whole letters
  return text.substr(0, end) + "...";
}

JsonFields::JsonFields(const Json& value, std::string_view source, std::string_view path)
    : object_(value.is_object() ? &value : nullptr), source_(source), path_(path) {
  if (object_ == nullptr) expected(path_, "an object {...}", value);
}

std::string JsonFields::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : str_cat(path_, ".", key);
}

bool JsonFields::has(std::string_view key) const {
  return object_ != nullptr && object_->find(std::string(key)) != object_->end();
}

void JsonFields::require(std::string_view key) {
  if (object_ == nullptr || has(key)) return;
  std::string written;
  for (const auto& [name, value] : object_->items()) {
    if (written.empty() && is_likely_misspelling(name, key)) written = printable_key(name);
  }
  refuse(key, str_cat("is missing; it has no default",
                      written.empty() ? "" : str_cat(" (is \"", written, "\" a misspelt one?)")));
}

const Json* JsonFields::find(std::string_view key) {
  if (std::find(known_.begin(), known_.end(), key) == known_.end()) known_.emplace_back(key);
  if (object_ == nullptr) return nullptr;
  const auto found = object_->find(std::string(key));
  return found == object_->end() ? nullptr : &*found;
}

const Json* JsonFields::value(std::string_view key) { return find(key); }

void JsonFields::refuse(std::string_view key, std::string_view message) {
  add(absl::InvalidArgumentError(str_cat(source_, ": ", path_of(key), ": ", message)));
}

void JsonFields::refuse_foreign(const std::vector<std::string>& keys, std::string_view belongs_to,
                                std::string_view chosen) {
  for (const std::string& key : keys) {
    if (value(key) != nullptr) {
      refuse(key, str_cat("belongs to ", belongs_to, ", not to \"", chosen, "\"; remove it"));
    }
  }
}

void JsonFields::refuse(std::string_view message) {
  add(absl::InvalidArgumentError(
      str_cat(source_, ": ", path_, path_.empty() ? "" : ": ", message)));
}

void JsonFields::add(const absl::Status& status) { first_error_.Update(status); }

void JsonFields::expected(std::string_view where, std::string_view what, const Json& got) {
  add(absl::InvalidArgumentError(str_cat(source_, ": ", where, where.empty() ? "" : ": ",
                                         "expected ", what, ", got ", json_excerpt(got))));
}

bool JsonFields::read_number(const Json& json, std::string_view where, const NumberRange& range,
                             double* out) {
  const double value = json.is_number() ? json.get<double>() : 0.0;
  const bool fits = json.is_number() && std::isfinite(value) && value >= range.min &&
                    (range.max_excluded ? value < range.max : value <= range.max);
  if (!fits) {
    expected(where, range_text(range), json);
    return false;
  }
  *out = value;
  return true;
}

bool JsonFields::read_integer(const Json& json, std::string_view where, std::int64_t min,
                              std::int64_t max, std::int64_t* out) {
  const std::optional<std::int64_t> value = integer_within(json, min, max);
  if (!value) {
    expected(where,
             min == max ? str_cat("the integer ", min, ", the only one in this version")
                        : str_cat("an integer from ", min, " to ", max,
                                  is_whole_float(json) ? ", without point or exponent" : ""),
             json);
    return false;
  }
  *out = *value;
  return true;
}

bool JsonFields::read_string(const Json& json, std::string_view where, std::string* out) {
  const std::string* text = json.get_ptr<const std::string*>();
  if (text == nullptr || text->empty() || text->size() > kMaxStringBytes ||
      text->find('\0') != std::string::npos) {
    expected(where, str_cat("a text of 1 to ", kMaxStringBytes, " bytes"), json);
    return false;
  }
  *out = *text;
  return true;
}

const Json* JsonFields::array(std::string_view key, std::string_view of_what, std::size_t min_size,
                              std::size_t max_size) {
  const Json* array = find(key);
  if (array == nullptr) return nullptr;
  if (array->is_array() && array->size() >= min_size && array->size() <= max_size) return array;
  const std::string count =
      min_size == max_size ? str_cat(min_size) : str_cat(min_size, " to ", max_size);
  const std::string what = str_cat("an array of ", count, " ", of_what);
  constexpr std::size_t kCountedByEye = 9;  // more do not fit into an excerpt
  if (array->is_array() && array->size() > kCountedByEye) {
    refuse(key, str_cat("expected ", what, ", got ", array->size()));
  } else {
    expected(path_of(key), what, *array);
  }
  return nullptr;
}

void JsonFields::boolean(std::string_view key, bool* out) {
  const Json* json = find(key);
  if (json == nullptr) return;
  if (!json->is_boolean()) return expected(path_of(key), "true or false", *json);
  *out = json->get<bool>();
}

void JsonFields::number(std::string_view key, double* out, const NumberRange& range) {
  if (const Json* json = find(key)) read_number(*json, path_of(key), range, out);
}

void JsonFields::integer(std::string_view key, std::int64_t* out, std::int64_t min,
                         std::int64_t max) {
  if (const Json* json = find(key)) read_integer(*json, path_of(key), min, max, out);
}

void JsonFields::unsigned_integer(std::string_view key, std::uint64_t* out) {
  const Json* json = find(key);
  if (json == nullptr) return;
  if (!json->is_number_unsigned()) {
    return expected(path_of(key), "an integer from 0 to 18446744073709551615", *json);
  }
  *out = json->get<std::uint64_t>();
}

void JsonFields::height_width(std::string_view key, std::int64_t* height, std::int64_t* width,
                              std::int64_t min, std::int64_t max) {
  const Json* json = find(key);
  if (json == nullptr) return;
  const bool is_pair = json->is_array() && json->size() == 2;
  const auto first = integer_within(is_pair ? (*json)[0] : *json, min, max);
  const auto second = integer_within(is_pair ? (*json)[1] : *json, min, max);
  if (!first || !second) {
    return expected(path_of(key),
                    str_cat("an integer from ", min, " to ", max, ", or [height, width] of such"),
                    *json);
  }
  *height = *first;
  *width = *second;
}

void JsonFields::string(std::string_view key, std::string* out) {
  if (const Json* json = find(key)) read_string(*json, path_of(key), out);
}

void JsonFields::integers(std::string_view key, std::vector<std::int64_t>* out, std::int64_t min,
                          std::int64_t max, std::size_t min_size, std::size_t max_size) {
  const Json* items = array(key, "integers", min_size, max_size);
  if (items == nullptr) return;
  std::vector<std::int64_t> values(items->size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!read_integer((*items)[i], str_cat(path_of(key), "[", i, "]"), min, max, &values[i])) {
      return;
    }
  }
  *out = std::move(values);
}

void JsonFields::numbers(std::string_view key, std::vector<double>* out, const NumberRange& range,
                         std::size_t min_size, std::size_t max_size) {
  const Json* items = array(key, "numbers", min_size, max_size);
  if (items == nullptr) return;
  std::vector<double> values(items->size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!read_number((*items)[i], str_cat(path_of(key), "[", i, "]"), range, &values[i])) {
      return;
    }
  }
  *out = std::move(values);
}

void JsonFields::strings(std::string_view key, std::vector<std::string>* out, std::size_t min_size,
                         std::size_t max_size) {
  const Json* items = array(key, "texts", min_size, max_size);
  if (items == nullptr) return;
  std::vector<std::string> values(items->size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!read_string((*items)[i], str_cat(path_of(key), "[", i, "]"), &values[i])) return;
  }
  *out = std::move(values);
}

void JsonFields::one_of(std::string_view key, std::string* out,
                        const std::vector<std::string>& names) {
  const Json* json = find(key);
  if (json == nullptr) return;
  const std::string* text = json->get_ptr<const std::string*>();
  if (text != nullptr && std::find(names.begin(), names.end(), *text) != names.end()) {
    *out = *text;
    return;
  }
  const std::string choices = absl::StrJoin(
      names, ", ",
      [](std::string* to, const std::string& name) { *to += str_cat("\"", name, "\""); });
  const std::string near = text == nullptr ? "" : nearest_name(*text, names);
  refuse(key, str_cat("expected ", names.size() > 1 ? "one of " : "", choices, ", got ",
                      json_excerpt(*json),
                      near.empty() ? "" : str_cat("; did you mean \"", near, "\"?")));
}

absl::Status JsonFields::finish() const {
  if (object_ == nullptr) return first_error_;
  for (const auto& [key, value] : object_->items()) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    const std::string near = nearest_name(key, known_);
    std::string remedy = str_cat("did you mean \"", near, "\"?");
    if (near.empty()) remedy = str_cat("known here: ", absl::StrJoin(known_, ", "));
    if (known_.empty()) remedy = "none is known here";
    return absl::InvalidArgumentError(
        str_cat(source_, ": ", path_of(printable_key(key)), ": unknown key; ", remedy));
  }
  return first_error_;
}

namespace {

constexpr const char* kKey = "checksum";
constexpr int kIndent = 1;

std::string checksum(std::string_view text) {
  return absl::StrFormat(
      "%08x", crc32_z(0, reinterpret_cast<const unsigned char*>(text.data()), text.size()));
}

constexpr std::size_t kSumBytes = 8;
/// Of the first line, behind the sum.
constexpr std::size_t kTailBytes = 3;

/// The document up to the part with the checksum.
std::string head(std::string_view sum) { return str_cat("{\n \"", kKey, "\": \"", sum, "\",\n"); }

}  // namespace

std::string checked_json(const nlohmann::ordered_json& object) {
  POSEIDON_CHECK(object.is_object() && !object.empty() && !object.contains(kKey),
                 "members, and a place for the checksum");
  std::string text = object.dump(kIndent, ' ', /*ensure_ascii=*/false,
                                 nlohmann::ordered_json::error_handler_t::replace);
  text.erase(0, 2);  // "{\n"
  text += '\n';
  return absl::StrCat(head(checksum(text)), text);
}

absl::StatusOr<nlohmann::json> parse_checked_json(std::string_view text, std::string_view source,
                                                  const JsonLimits& limits) {
  const std::string begin = head("");
  const std::string_view opening = std::string_view(begin).substr(0, begin.size() - kTailBytes);
  const std::size_t head_bytes = begin.size() + kSumBytes;
  std::string_view sum;
  if (text.starts_with(opening) && text.size() > head_bytes) {
    sum = text.substr(opening.size(), kSumBytes);
    const std::string is = checksum(text.substr(head_bytes));
    if (sum != is || !text.starts_with(head(sum))) {
      return absl::DataLossError(str_cat(
          source, ": its checksum is ", printable(sum), ", and that of what follows it ", is,
          ": the file has changed since it was written (a faulty disk or memory?); use an intact "
          "copy. If you changed it on purpose, remove the line with the checksum"));
    }
  }
  POSEIDON_ASSIGN_OR_RETURN(nlohmann::json json, parse_json(text, source, limits));
  // Anywhere else it is an unknown member.
  if (!sum.empty()) json.erase(kKey);
  return json;
}

}  // namespace poseidon
