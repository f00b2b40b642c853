#include "cli/terminal/top_format.h"

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::top_format_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

v1::GetStatusResponse cluster(int workers, int layers) {
  v1::GetStatusResponse status;
  status.set_job("digits");
  status.set_job_id("digits-1");
  status.set_state("running");
  status.set_iteration(250);
  status.set_iterations(500);
  status.set_loss(0.5);
  status.set_images_per_s(2000);
  status.set_test_accuracy(kUnknown);
  status.set_training_seconds(12);
  status.set_iterated_seconds(12);
  for (int i = 0; i < workers; ++i) {
    v1::NodeStatus& worker = *status.add_workers();
    worker.set_rank(i);
    worker.set_state("running");
    worker.set_address(absl::StrCat("10.0.0.", i, ":4702"));
    worker.set_compute_share(i == 7 ? 0.9 : 0.5);
    worker.set_stall_share(i == 7 ? 0.0 : 0.4);
    worker.set_data_stall_share(0.01);
    worker.set_images_per_s(1000);
  }
  v1::NodeStatus& server = *status.add_servers();
  server.set_state("running");
  for (int i = 0; i < layers; ++i) {
    v1::LayerStatus& layer = *status.add_layers();
    layer.set_name(absl::StrCat("conv", i));
    layer.set_scheme("ps");
    layer.set_sent_bytes_per_s(1e6 * (i + 1));
    layer.set_received_bytes_per_s(1e6);
    layer.set_stall_share(i == 3 ? 0.25 : 0.0);
  }
  return status;
}

TEST(TopFormat, ASmallClusterIsShownWhole) {
  const std::string text =
      absl::StrJoin(top_lines(cluster(2, 3), {.columns = 100, .rows = 40}), "\n");
  EXPECT_THAT(text,
              HasSubstr("digits-1  running  iteration 250/500  0:12 left  [##########          ]"));
  EXPECT_THAT(text, HasSubstr("loss 0.5000  2000 images/s  training 0:12"));
  EXPECT_THAT(text, HasSubstr("1 of 1 servers here"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "0       running  1000      [#####     ]  50%  [####      ]  40%    1%  10.0.0.0:4702"));
  EXPECT_THAT(text, HasSubstr("conv2  ps      3 MB/s  1 MB/s    [          ]   0%"));
  EXPECT_THAT(text, Not(HasSubstr("more")));
}

TEST(TopFormat, OfALargeOneTheInterestingPartFitsTheScreen) {
  const TopSize size{.columns = 80, .rows = 24};
  const auto lines = top_lines(cluster(64, 500), size);
  EXPECT_EQ(lines.size(), size.rows);
  for (const std::string& line : lines) EXPECT_LE(line.size(), size.columns);
  const auto begins = [&lines](const std::string& start) {
    return std::find_if(lines.begin(), lines.end(),
                        [&](const std::string& line) { return line.rfind(start, 0) == 0; });
  };
  ASSERT_NE(begins("WORKER"), lines.end());
  EXPECT_THAT(*(begins("WORKER") + 1), HasSubstr("10.0.0.7")) << "the one that the others wait for";
  ASSERT_NE(begins("LAYER"), lines.end());
  EXPECT_THAT(*(begins("LAYER") + 1), HasSubstr("conv3 ")) << "the one that computing waits for";
  EXPECT_THAT(*(begins("LAYER") + 2), HasSubstr("conv499")) << "then the one that moves most";
  EXPECT_THAT(lines.back(), HasSubstr("more: "));
  EXPECT_NE(begins("... and 5"), lines.end()) << "workers that did not fit";
}

TEST(TopFormat, TellsWhatThereIsToSayOfAFewNodes) {
  v1::GetStatusResponse status = cluster(64, 10);
  status.mutable_servers(0)->set_note("the coordinator cannot connect to it");
  for (int i = 0; i < 10; ++i) status.mutable_workers(i)->set_note("waits for worker 9");
  const std::string text = absl::StrJoin(top_lines(status, {.columns = 80, .rows = 24}), "\n");
  EXPECT_THAT(text, HasSubstr("\nserver 0: the coordinator cannot connect to it\nworker 0: waits"));
  EXPECT_THAT(text, HasSubstr("worker 1: waits"));
  EXPECT_THAT(text, Not(HasSubstr("worker 2: waits"))) << "the rest is in the status";
}

TEST(TopFormat, WhoIsNotWellComesFirst) {
  v1::GetStatusResponse status = cluster(64, 10);
  status.mutable_workers(40)->set_state("lost");
  status.mutable_workers(40)->set_compute_share(kUnknown);
  status.mutable_servers(0)->set_state("away");
  status.set_message("waits for a worker");
  const std::string text = absl::StrJoin(top_lines(status, {.columns = 80, .rows = 24}), "\n");
  EXPECT_THAT(text, HasSubstr("40      lost     1000      [          ]    -"));
  EXPECT_THAT(text, HasSubstr("0 of 1 servers here; server 0 () is away"));
  EXPECT_THAT(text, HasSubstr("waits for a worker"));
}

TEST(TopFormat, LongNamesDoNotPushFiguresOffTheScreen) {
  v1::GetStatusResponse status = cluster(2, 2);
  status.set_job_id("a_job_whose_name_leaves_no_bar-17");
  status.mutable_layers(0)->set_name("stage_" + std::string(100, 'x') + "_conv7");
  // Two bytes a letter: the cut falls between letters.
  std::string umlauts;
  for (int i = 0; i < 60; ++i) umlauts += "\u00e4";
  status.mutable_layers(1)->set_name(umlauts);
  const auto lines = top_lines(status, {.columns = 80, .rows = 24});
  const std::string text = absl::StrJoin(lines, "\n");
  EXPECT_THAT(text, HasSubstr("stage_xxxxxx..xxxxxx_conv7  ps      1 MB/s  1 MB/s    [ "));
  EXPECT_THAT(text, HasSubstr("\u00e4..\u00e4"));
  EXPECT_THAT(lines[0], ::testing::EndsWith("250/500  0:12 left"));
  for (std::size_t columns = 0; columns < 80; ++columns) {
    for (const std::string& line : top_lines(status, {.columns = columns, .rows = 24})) {
      EXPECT_EQ(utf8_prefix(line + "\u00e4", line.size()).size(), line.size()) << line;
    }
  }
}

TEST(TopFormat, AnyScreenIsEnough) {
  for (const std::size_t rows : {0, 1, 2, 5, 8, 11}) {
    for (const std::size_t columns : {0, 1, 20}) {
      const auto lines = top_lines(cluster(64, 500), {.columns = columns, .rows = rows});
      EXPECT_LE(lines.size(), rows);
      for (const std::string& line : lines) EXPECT_LE(line.size(), columns);
    }
  }
  EXPECT_EQ(top_lines({}, {.columns = 80, .rows = 24}).front(), "no job yet");
  v1::GetStatusResponse given_up;
  given_up.set_message("no job is in progress");
  EXPECT_EQ(top_lines(given_up, {.columns = 80, .rows = 24}).front(), "no job is in progress");
}

}  // namespace
}  // namespace poseidon::top_format_test
