#include "common/daemon/command_line.h"

#include <algorithm>
#include <istream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/nearest.h"
#include "common/base/text.h"
#include "common/files/json_fields.h"
#include "nlohmann/json.hpp"

namespace poseidon {
namespace {

/// With its commands, as they are typed.
std::string name_of(const CLI::App& app) {
  const CLI::App* const parent = app.get_parent();
  return parent == nullptr ? app.get_name() : absl::StrCat(name_of(*parent), " ", app.get_name());
}

std::vector<std::string> long_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(absl::StrCat("--", name));
  }
  return names;
}

absl::Status no_option(const CLI::App& app, std::string_view word) {
  const std::string name = printable(word);
  return absl::InvalidArgumentError(absl::StrCat("there is no option ", name,
                                                 did_you_mean(name, long_names(app)), "; '",
                                                 name_of(app), " --help' lists them"));
}

bool takes_words(const CLI::App& app) {
  const std::vector<const CLI::Option*> options = app.get_options();
  return std::any_of(options.begin(), options.end(), [](const CLI::Option* option) {
    return option->get_positional() || option->get_items_expected_max() > 1;
  });
}

/// The subcommand of this name; an error where none has it and a word has no other meaning.
absl::StatusOr<const CLI::App*> subcommand(const CLI::App& app, std::string_view word) {
  std::vector<std::string> known;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    if (command->get_name() == word) return command;
    known.push_back(command->get_name());
  }
  const std::string name = printable(word);
  if (known.empty()) {
    if (takes_words(app)) return &app;
    return absl::InvalidArgumentError(
        absl::StrCat("'", name, "' belongs to no option; '", name_of(app), " --help' lists them"));
  }
  return absl::InvalidArgumentError(absl::StrCat("there is no subcommand '", name, "'",
                                                 did_you_mean(name, known), "; known to ",
                                                 name_of(app), ": ", absl::StrJoin(known, ", ")));
}

}  // namespace

absl::Status check_words(const CLI::App& app, std::span<const char* const> words) {
  const CLI::App* command = &app;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i];
    if (word == "--") return absl::OkStatus();
    // "-" may be a file name, and "-1" a number.
    const bool is_option = word.size() > 1 && word[0] == '-' && !(word[1] >= '0' && word[1] <= '9');
    if (!is_option) {
      const absl::StatusOr<const CLI::App*> next = subcommand(*command, word);
      if (!next.ok()) return next.status();
      command = *next;
      continue;
    }
    const std::size_t equals = word.find('=');
    const bool is_long = word[1] == '-';
    // The option "-x" of "-xVALUE".
    const std::string name(is_long ? word.substr(0, equals) : word.substr(0, 2));
    const CLI::Option* const option = command->get_option_no_throw(name);
    if (option == nullptr) return no_option(*command, is_long ? name : word);
    const bool has_value_in_it = is_long ? equals != std::string_view::npos : word.size() > 2;
    if (!has_value_in_it) i += static_cast<std::size_t>(option->get_items_expected_min());
  }
  return absl::OkStatus();
}

namespace {

using Json = nlohmann::json;

constexpr char kOption[] = "--config";
constexpr JsonLimits kLimits{.max_bytes = 1 << 20, .max_depth = 4};

/// CLI11 passes the files one by one, the last one first.
class JsonConfig final : public CLI::Config {
 public:
  explicit JsonConfig(const CLI::App* app) : app_(app) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    const std::string file = next_file();
    // Not by reading from the stream: that throws exceptions that CLI11 does not expect.
    std::string text;
    for (std::istreambuf_iterator<char> at(input), end;
         at != end && text.size() <= kLimits.max_bytes; ++at) {
      text += *at;
    }
    const absl::StatusOr<Json> json = parse_json(text, file, kLimits);
    if (!json.ok() || !json->is_object()) {
      throw CLI::ConfigError(absl::StrCat(
          json.ok() ? absl::StrCat(file, ": is no JSON object") : json.status().message(),
          R"(; write {"OPTION": VALUE, ...} with options as in --help)"));
    }
    std::vector<CLI::ConfigItem> found;
    for (const auto& [key, value] : json->items()) {
      check_key(file, key);
      if (app_->get_option("--" + key)->count() == 0) sources_.emplace(key, file);
      CLI::ConfigItem item;
      item.name = key;
      if (value.is_array()) {
        for (const Json& element : value) item.inputs.push_back(text_of(file, key, element));
      } else {
        item.inputs.push_back(text_of(file, key, value));
      }
      found.push_back(std::move(item));
    }
    return found;
  }

  /// The options in force do not need a file.
  std::string to_config(const CLI::App* /*app*/, bool /*defaults*/, bool /*descriptions*/,
                        std::string /*prefix*/) const override {
    return "";
  }

  /// The files whose values count, by key.
  const std::map<std::string, std::string>& sources() const { return sources_; }

 private:
  std::string next_file() const {
    const auto files = app_->get_option(kOption)->as<std::vector<std::string>>();
    return files.empty() ? kOption : files[files.size() - 1 - read_++ % files.size()];
  }

  void check_key(const std::string& file, const std::string& key) const {
    std::vector<std::string> known;
    for (const CLI::Option* option : app_->get_options()) {
      if (!option->get_configurable()) continue;
      for (const std::string& name : option->get_lnames()) known.push_back(name);
      for (const std::string& name : option->get_fnames()) known.push_back(name);
    }
    if (std::find(known.begin(), known.end(), key) != known.end()) return;
    throw CLI::ConfigError(absl::StrCat(file, ": \"", key, "\" is no option of ", app_->get_name(),
                                        did_you_mean(key, known), "; see --help"));
  }

  static std::string text_of(const std::string& file, const std::string& key, const Json& value) {
    if (value.is_string()) return value.get<std::string>();
    if (value.is_boolean() || value.is_number()) return value.dump();
    throw CLI::ConfigError(absl::StrCat(file, ": \"", key, "\" is ", value.type_name(),
                                        "; an option takes a string, a number, true or false"));
  }

  const CLI::App* const app_;
  // CLI11 reads through a const function.
  mutable std::size_t read_ = 0;  ///< files so far
  mutable std::map<std::string, std::string> sources_;
};

/// "--lease-ms" is not named by "--lease-ms-most".
bool names_option(std::string_view message, const std::string& key) {
  const std::string option = "--" + key;
  for (auto at = message.find(option); at != message.npos; at = message.find(option, at + 1)) {
    const std::size_t end = at + option.size();
    if (end == message.size() || (message[end] != '-' && !absl::ascii_isalnum(message[end]))) {
      return true;
    }
  }
  return false;
}

}  // namespace

void add_config_option(CLI::App& app) {
  for (const char* const never : {"--help", "--version"}) {
    if (CLI::Option* const option = app.get_option_no_throw(never)) option->configurable(false);
  }
  app.config_formatter(std::make_shared<JsonConfig>(&app));
  app.set_config(kOption, "",
                 "JSON file with options that the command line does not give; may be repeated, the "
                 "last one counts")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->expected(1);
}

std::string config_note(const CLI::App& app, std::string_view message) {
  const auto config = std::dynamic_pointer_cast<const JsonConfig>(app.get_config_formatter());
  if (config == nullptr) return "";
  for (const auto& [key, file] : config->sources()) {
    if (names_option(message, key)) return absl::StrCat(" (of ", file, ")");
  }
  return "";
}

}  // namespace poseidon
