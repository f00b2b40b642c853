#include "cli/terminal/progress.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::progress_test {
namespace {

using std::chrono::seconds;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

v1::GetStatusResponse running(std::uint64_t iteration) {
  v1::GetStatusResponse status;
  status.set_job("digits");
  status.set_state("running");
  status.set_iteration(iteration);
  status.set_iterations(500);
  status.set_loss(iteration == 0 ? kNaN : 0.25);
  status.set_images_per_s(iteration == 0 ? 0 : 12345.4);
  status.set_test_accuracy(kNaN);
  status.set_test_loss(kNaN);
  status.set_training_seconds(static_cast<double>(iteration) * 0.1);
  status.set_iterated_seconds(static_cast<double>(iteration) * 0.1);
  return status;
}

void add_layer(v1::GetStatusResponse& status, const char* scheme, double sent, double received) {
  v1::LayerStatus& layer = *status.add_layers();
  layer.set_scheme(scheme);
  layer.set_sent_bytes_per_s(sent);
  layer.set_received_bytes_per_s(received);
}

TEST(FormatTest, Durations) {
  EXPECT_EQ(format_duration(0), "0:00");
  EXPECT_EQ(format_duration(59.6), "1:00");
  EXPECT_EQ(format_duration(723), "12:03");
  EXPECT_EQ(format_duration(7509), "2:05:09");
  EXPECT_EQ(format_duration(-1), "?");
  EXPECT_EQ(format_duration(kNaN), "?");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "?");
}

TEST(FormatTest, BytesPerSecond) {
  EXPECT_EQ(format_bytes_per_s(0), "0 B/s");
  EXPECT_EQ(format_bytes_per_s(999.4), "999 B/s");
  EXPECT_EQ(format_bytes_per_s(999.6), "1 kB/s");
  EXPECT_EQ(format_bytes_per_s(34.12e6), "34.1 MB/s");
  EXPECT_EQ(format_bytes_per_s(1.25e9), "1.25 GB/s");
}

TEST(FormatTest, Counts) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(9999), "9999");
  EXPECT_EQ(format_count(431080), "431,080");
  EXPECT_EQ(format_count(-1234567), "-1,234,567");
  EXPECT_EQ(format_count(229052817), "229,052,817");
}

TEST(FormatTest, BandwidthIsSummedPerScheme) {
  v1::GetStatusResponse status = running(1);
  EXPECT_EQ(format_bandwidth(status), "");
  add_layer(status, "ps", 1e6, 2e6);
  add_layer(status, "ps", 3e6, 2e6);
  add_layer(status, "sfb", 5e3, 6e3);
  EXPECT_EQ(format_bandwidth(status), "ps 4 MB/s up, 4 MB/s down, sfb 5 kB/s up, 6 kB/s down");
}

TEST(FormatTest, TimeLeftIsAtTheMeanSpeed) {
  EXPECT_EQ(seconds_left(running(0)), std::nullopt);
  EXPECT_DOUBLE_EQ(*seconds_left(running(100)), 40.0);
  EXPECT_DOUBLE_EQ(*seconds_left(running(500)), 0.0);

  v1::GetStatusResponse restored = running(100);
  restored.set_training_from(90);
  restored.set_iterated_seconds(5);
  restored.set_training_seconds(65);  // it tests since
  EXPECT_DOUBLE_EQ(*seconds_left(restored), 200.0) << "10 iterations took 5 s";
  restored.set_training_from(100);
  EXPECT_EQ(seconds_left(restored), std::nullopt);
}

TEST(ProgressTest, TerminalRewritesOneLine) {
  Progress progress({.terminal = true, .columns = 200});
  EXPECT_THAT(progress.update(running(0), seconds(0)), StartsWith("digits running\n"));
  v1::GetStatusResponse status = running(100);
  add_layer(status, "ps", 34.1e6, 33.9e6);
  const std::string text = progress.update(status, seconds(1));
  EXPECT_EQ(text,
            "\r\x1b[K"
            "digits 100/500 20% | loss 0.2500 | 12,345 images/s | 0:40 left | "
            "ps 34.1 MB/s up, 33.9 MB/s down");
  EXPECT_EQ(progress.finish(), "\n");
  EXPECT_EQ(progress.finish(), "");
}

TEST(ProgressTest, TerminalLineIsCutToTheColumns) {
  Progress progress({.terminal = true, .columns = 40});
  progress.update(running(0), seconds(0));
  const std::string text = progress.update(running(100), seconds(1));
  EXPECT_EQ(text.size(), std::string("\r\x1b[K").size() + 39);
}

TEST(ProgressTest, TerminalPutsTestResultsAboveTheLiveLine) {
  Progress progress({.terminal = true, .columns = 200});
  progress.update(running(0), seconds(0));
  progress.update(running(99), seconds(1));
  v1::GetStatusResponse status = running(101);
  status.set_test_accuracy(0.975);
  status.set_test_loss(0.08);
  status.set_tested_iteration(100);
  EXPECT_THAT(progress.update(status, seconds(2)),
              StartsWith("\r\x1b[Ktest after 100 iterations  loss 0.0800  accuracy 0.9750\n\r"));
  EXPECT_THAT(progress.update(status, seconds(3)), Not(HasSubstr("test after")));
}

TEST(ProgressTest, PlainLinesKeepTheirDistance) {
  Progress progress({.terminal = false, .plain_interval = seconds(3)});
  EXPECT_EQ(progress.update(running(0), seconds(0)), "digits running\n");
  EXPECT_EQ(progress.update(running(5), seconds(1)),
            "iteration 5/500  loss 0.2500  12,345 images/s  0:50 left\n");
  EXPECT_EQ(progress.update(running(6), seconds(2)), "");
  EXPECT_EQ(progress.update(running(6), seconds(3)), "");
  EXPECT_THAT(progress.update(running(9), seconds(4)), StartsWith("iteration 9/500"));
  // No line twice for the same iteration.
  EXPECT_EQ(progress.update(running(9), seconds(9)), "");
}

TEST(ProgressTest, PlainLinesTellTheEndAfterTheLastIteration) {
  Progress progress({.terminal = false});
  progress.update(running(0), seconds(0));
  progress.update(running(400), seconds(1));
  v1::GetStatusResponse status = running(500);
  status.set_state("done");
  status.set_test_accuracy(0.98);
  status.set_test_loss(0.07);
  status.set_tested_iteration(500);
  const std::string text = progress.update(status, seconds(2));
  EXPECT_THAT(text, StartsWith("iteration 500/500  loss 0.2500  0:00 left"));
  EXPECT_THAT(text, Not(HasSubstr("images/s"))) << "rates end with the job";
  EXPECT_THAT(text, HasSubstr("test after 500 iterations  loss 0.0700  accuracy 0.9800\n"));
  EXPECT_THAT(text, EndsWith("digits done\n"));
}

TEST(ProgressTest, WaitingIsToldOncePerReason) {
  Progress progress({.terminal = false});
  v1::GetStatusResponse status = running(0);
  status.set_state("waiting");
  status.set_message("1 of 4 workers");
  EXPECT_EQ(progress.update(status, seconds(0)), "digits waiting: 1 of 4 workers\n");
  EXPECT_EQ(progress.update(status, seconds(1)), "");
  status.set_message("2 of 4 workers");
  EXPECT_EQ(progress.update(status, seconds(2)), "digits waiting: 2 of 4 workers\n");
}

TEST(ProgressTest, AHintSaysWhatToDoWhileItWaits) {
  Progress progress({.terminal = false, .waiting_hint = "; start the missing ones"});
  v1::GetStatusResponse status = running(0);
  status.set_state("waiting");
  status.set_message("1 of 4 workers");
  EXPECT_EQ(progress.update(status, seconds(0)),
            "digits waiting: 1 of 4 workers; start the missing ones\n");
  status.set_state("preparing");
  EXPECT_EQ(progress.update(status, seconds(1)), "digits preparing: 1 of 4 workers\n");
}

TEST(ProgressTest, SilenceAndItsEndAreToldOnce) {
  Progress plain({});
  EXPECT_THAT(plain.update(running(5), seconds(1)), HasSubstr("iteration 5/500"));
  EXPECT_EQ(plain.unheard("nobody answers"), "nobody answers\n");
  EXPECT_EQ(plain.unheard("nobody answers"), "");
  EXPECT_THAT(plain.update(running(6), seconds(9)), StartsWith("the coordinator answers again\n"));
  EXPECT_THAT(plain.update(running(7), seconds(19)), Not(HasSubstr("again")));
  EXPECT_EQ(plain.unheard("nobody answers"), "nobody answers\n");

  Progress live({.terminal = true});
  EXPECT_THAT(live.update(running(5), seconds(1)), HasSubstr("digits 5/500"));
  EXPECT_EQ(live.unheard("nobody answers"), "\r\x1b[Knobody answers\n");
  EXPECT_EQ(live.finish(), "") << "there is no live line any more";
  EXPECT_THAT(live.update(running(6), seconds(9)), StartsWith("the coordinator answers again\n"));
}

TEST(ProgressTest, ARemarkIsToldWhenItStays) {
  Progress progress({.terminal = false});
  v1::GetStatusResponse status = running(5);
  progress.update(status, seconds(0));
  status.set_message("the last files are being written");
  EXPECT_EQ(progress.update(status, seconds(1)), "");
  status.set_message("the model cannot be stored: No space left on device");
  EXPECT_EQ(progress.update(status, seconds(2)), "");
  EXPECT_EQ(progress.update(status, seconds(4)), "");
  EXPECT_EQ(progress.update(status, seconds(5)),
            "digits running: the model cannot be stored: No space left on device\n");
  EXPECT_EQ(progress.update(status, seconds(60)), "");
  status.clear_message();
  EXPECT_EQ(progress.update(status, seconds(61)), "digits running\n");
}

TEST(ProgressTest, ResultsOfAnEarlierJobAreNotTold) {
  Progress progress({.terminal = false});
  v1::GetStatusResponse status = running(0);
  status.set_state("preparing");
  status.set_test_accuracy(0.5);
  status.set_tested_iteration(500);
  EXPECT_EQ(progress.update(status, seconds(0)), "digits preparing\n");
}

}  // namespace
}  // namespace poseidon::progress_test
