#include "common/daemon/command_line.h"

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::command_line_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CheckWords : public ::testing::Test {
 protected:
  CheckWords() {
    app_.set_version_flag("--version", "1");
    CLI::App* status = app_.add_subcommand("status", "");
    status->add_option("--coordinator", text_)->required();
    status->add_flag("--json", flag_);
    status->add_option("-n,--number", number_);
    status->add_option("--ids", list_);
    status->add_option("file", text_);
    CLI::App* checkpoint = app_.add_subcommand("checkpoint", "");
    checkpoint->require_subcommand(1);
    checkpoint->add_subcommand("list", "");
    checkpoint->add_subcommand("restore", "")->add_option("--workers", number_);
  }
  std::string refusal(const std::vector<const char*>& words) {
    const absl::Status status = check_words(app_, words);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }

  CLI::App app_{"", "poseidon"};
  std::string text_;
  std::vector<std::string> list_;
  bool flag_ = false;
  int number_ = 0;
};

TEST_F(CheckWords, TakesWhatIsDeclared) {
  const std::vector<std::vector<const char*>> calls = {
      {},
      {"--help"},
      {"--version"},
      {"status", "--coordinator", "--odd", "--json", "a.json"},
      {"status", "--coordinator=--odd", "-n", "-3", "-n7", "-", "a"},
      {"status", "--ids", "a", "b", "--json"},
      {"status", "--", "--odd"},
      {"checkpoint", "restore", "--workers", "3"},
      {"checkpoint", "list", "-h"}};
  for (const auto& call : calls) {
    const absl::Status status = check_words(app_, call);
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST_F(CheckWords, NamesWhatNobodyKnows) {
  EXPECT_THAT(refusal({"statu", "--help"}),
              AllOf(HasSubstr("no subcommand 'statu' (did you mean \"status\"?)"),
                    HasSubstr("known to poseidon: status, checkpoint")));
  EXPECT_THAT(refusal({"checkpoint", "lst"}),
              AllOf(HasSubstr("no subcommand 'lst' (did you mean \"list\"?)"),
                    HasSubstr("known to poseidon checkpoint: list, restore")));
  EXPECT_THAT(refusal({"--hlp"}), HasSubstr("no option --hlp (did you mean \"--help\"?)"));
  EXPECT_THAT(refusal({"-x"}), HasSubstr("no option -x; 'poseidon --help'"));
  EXPECT_THAT(refusal({"status", "--coordinatr", "h:1"}),
              HasSubstr("no option --coordinatr (did you mean \"--coordinator\"?); "
                        "'poseidon status --help' lists them"));
  EXPECT_THAT(refusal({"status", "--jsn=1"}), HasSubstr("no option --jsn (did"));
  EXPECT_THAT(refusal({"status", "--json", "--odd"}), HasSubstr("no option --odd;"));
  EXPECT_THAT(refusal({"checkpoint", "--workers", "3"}), HasSubstr("no option --workers;"))
      << "restore has it, which is not said yet";
  EXPECT_THAT(refusal({"checkpoint", "list", "all"}), HasSubstr("'all' belongs to no option;"));
  EXPECT_THAT(refusal({"--\x1b[2J"}), HasSubstr("no option -- [2J;"));
}

}  // namespace
}  // namespace poseidon::command_line_test
