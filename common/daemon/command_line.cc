#include "common/daemon/command_line.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/nearest.h"
#include "common/base/printable.h"

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
    // "-" is a file's name for some, and "-1" a number.
    const bool is_option = word.size() > 1 && word[0] == '-' && !(word[1] >= '0' && word[1] <= '9');
    if (!is_option) {
      const absl::StatusOr<const CLI::App*> next = subcommand(*command, word);
      if (!next.ok()) return next.status();
      command = *next;
      continue;
    }
    const std::size_t equals = word.find('=');
    const bool is_long = word[1] == '-';
    // Of "-xVALUE" the first letter.
    const std::string name(is_long ? word.substr(0, equals) : word.substr(0, 2));
    const CLI::Option* const option = command->get_option_no_throw(name);
    if (option == nullptr) return no_option(*command, is_long ? name : word);
    const bool has_value_in_it = is_long ? equals != std::string_view::npos : word.size() > 2;
    if (!has_value_in_it) i += static_cast<std::size_t>(option->get_items_expected_min());
  }
  return absl::OkStatus();
}

}  // namespace poseidon
