// poseidon-bench-transport in its smallest form: that it works, not how fast. And the report's
// arithmetic.

#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_join.h"
#include "bench/transport/report.h"
#include "bench/transport/variant.h"
#include "cli/local/child_process.h"
#include "common/files/file_io.h"
#include "gmock/gmock.h"

namespace poseidon::bench {
namespace {

namespace fs = std::filesystem;
using ::testing::DoubleNear;
using ::testing::HasSubstr;

/// Under TSan without naive: gRPC and protobuf are not instrumented, and each word that they hand
/// to another thread is a report to suppress (cmake/sanitizers/tsan.supp): minutes for 4 MiB. What
/// it shares between threads itself, raw does too.
std::vector<std::string> variants_to_run() {
  std::vector<std::string> names;
  for (const Variant& variant : all_variants()) names.emplace_back(variant.name);
#if defined(__SANITIZE_THREAD__)
  std::erase(names, "naive");
#endif
  return names;
}

class BenchTransport : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "bench-smoke-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  /// Exit status; -1 when it did not end in time.
  int run(std::vector<std::string> arguments) {
    auto child = ChildProcess::start({.name = "benchmark",
                                      .program = POSEIDON_BENCH_TRANSPORT,
                                      .arguments = std::move(arguments),
                                      .log = folder_ / "log"});
    if (!child.ok()) return -1;
    const SystemClock clock;
    const Nanoseconds end = clock.now() + std::chrono::minutes(4);
    while (!child->poll() && clock.now() < end) std::this_thread::sleep_for(Milliseconds(20));
    const auto status = child->poll();
    return status && WIFEXITED(*status) ? WEXITSTATUS(*status) : -1;
  }
  std::string output() const { return last_lines(folder_ / "log", 40); }

  fs::path folder_;
};

TEST_F(BenchTransport, EveryVariantMovesTheRightNumbersAndHasARow) {
  const fs::path json = folder_ / "out.json";
  const std::vector<std::string> expected = variants_to_run();
  ASSERT_EQ(
      run({"--mib", "4", "--rounds", "1", "--iterations", "1", "--workers", "2", "--servers", "2",
           "--chunk-bytes", "262144", "--variants", absl::StrJoin(expected, ","), "--json", json}),
      0)
      << output();
  const auto text = read_file(json, 1 << 20);
  ASSERT_TRUE(text.ok()) << text.status();
  const auto document = nlohmann::json::parse(*text);
  std::vector<std::string> measured;
  for (const auto& row : document.at("rows")) {
    measured.push_back(row.at("variant"));
    EXPECT_GT(row.at("goodput_gb_s"), 0.0);
    EXPECT_GT(row.at("goodput_ratio_to_raw"), 0.0);
  }
  EXPECT_EQ(measured, expected);
  EXPECT_TRUE(document.at("machine").contains("cpu"));
  EXPECT_TRUE(document.contains("date"));
}

TEST_F(BenchTransport, SixteenBitsAreMovedAndChecked) {
  const fs::path json = folder_ / "out.json";
  ASSERT_EQ(run({"--mib", "4", "--rounds", "1", "--iterations", "1", "--variants",
                 "sockets,shared-memory", "--wire-dtype", "bf16", "--json", json}),
            0)
      << output();
  const auto text = read_file(json, 1 << 20);
  ASSERT_TRUE(text.ok()) << text.status();
  const auto document = nlohmann::json::parse(*text);
  ASSERT_EQ(document.at("rows").size(), 2U);
  for (const auto& row : document.at("rows")) {
    EXPECT_EQ(row.at("wire_dtype"), "bf16");
  }
}

TEST_F(BenchTransport, AWrongCallIsNamed) {
  EXPECT_EQ(run({"--variants", "carrier-pigeon"}), 2);
  EXPECT_THAT(output(), HasSubstr("carrier-pigeon"));
  EXPECT_EQ(run({"--chunk-bytes", "4098"}), 2);
  EXPECT_THAT(output(), HasSubstr("multiple of 4"));
  EXPECT_EQ(run({"--wire-dtype", "fp8"}), 2);
  EXPECT_EQ(run({"--sweep", "--workers", "2"}), 2);
  EXPECT_THAT(output(), HasSubstr("--workers"));
}

TEST(BenchWorkload, AWrongElementIsFound) {
  const auto plan = plan_for({.workers = 2, .servers = 1, .mib = 1, .chunk_bytes = 65536}, {"a"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<Workload> workers;
  for (std::uint32_t rank = 0; rank < 2; ++rank) workers.emplace_back(*plan, WorkerRank(rank));
  const auto sum_into_results = [&](Iteration iteration) {
    for (Workload& worker : workers) worker.prepare(iteration);
    for (std::size_t i = 0; i < workers[0].gradients().size(); ++i) {
      workers[0].results()[i] = workers[0].gradients()[i] + workers[1].gradients()[i];
    }
  };
  sum_into_results(0);
  EXPECT_TRUE(workers[0].check(Answer::kSum, 0).ok());
  EXPECT_FALSE(workers[0].check(Answer::kSum, 1).ok()) << "an old answer must not pass";
  EXPECT_FALSE(workers[0].check(Answer::kParameters, 0).ok());
  sum_into_results(1);
  EXPECT_TRUE(workers[0].check(Answer::kSum, 1).ok());
  workers[0].results().back() += 1.0f;
  EXPECT_FALSE(workers[0].check(Answer::kSum, 1).ok());
}

TEST(BenchReport, MediansAndRatiosOfTheSameRound) {
  const Shape shape{.workers = 1, .servers = 1, .mib = 1000, .chunk_bytes = 1 << 20};
  const std::vector<Row> rows =
      make_rows(shape, 1,
                {{.variant = "raw",
                  .rounds = {{.seconds = 1.0, .worker_cpu_s = 1.0, .server_cpu_s = 1.0},
                             {.seconds = 4.0, .worker_cpu_s = 1.0, .server_cpu_s = 3.0},
                             {.seconds = 2.0, .worker_cpu_s = 1.0, .server_cpu_s = 1.0}}},
                 {.variant = "other",
                  .rounds = {{.seconds = 2.0, .worker_cpu_s = 2.0, .server_cpu_s = 2.0},
                             {.seconds = 8.0, .worker_cpu_s = 4.0, .server_cpu_s = 4.0},
                             {.seconds = 2.0, .worker_cpu_s = 2.0, .server_cpu_s = 2.0}}}});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_THAT(rows[0].goodput_gb_s, DoubleNear(2.097152 / 2.0, 1e-9));
  EXPECT_EQ(rows[0].goodput_ratio, 1.0);
  EXPECT_EQ(rows[1].goodput_ratio, 0.5);
  EXPECT_EQ(rows[1].cpu_ratio, 2.0);
}

}  // namespace
}  // namespace poseidon::bench
