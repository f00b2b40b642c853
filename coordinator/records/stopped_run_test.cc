#include "coordinator/records/stopped_run.h"

#include "common/files/file_io.h"
#include "common/wire/snapshot.h"
#include "coordinator/records/earlier_run.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace poseidon::stopped_run_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(StoppedRun, ItsFileNamesTheCheckpoint) {
  const StoppedRun run{.snapshot = snapshot_id(Epoch(3), 45),
                       .job_id = "digits-3",
                       .job_json = "{}",
                       .iterations = 100};
  EXPECT_EQ(
      nlohmann::json::parse(stopped_run_to_json(run)),
      nlohmann::json(
          {{"job", "digits-3"}, {"checkpoint", "3-45"}, {"iteration", 45}, {"iterations", 100}}));
}

// The file beside it says that an older model is not this checkpoint's: it is never there without.
TEST(StoppedRun, WithoutItsServersTheCheckpointIsNamedAllTheSame) {
  const fs::path folder = fs::path(::testing::TempDir()) / "stopped_run";
  fs::create_directories(folder);
  const StoppedRun run{.snapshot = snapshot_id(Epoch(3), 45),
                       .job_id = "digits-3",
                       .job_json = "{}",
                       .iterations = 100,
                       .source = absl::UnavailableError("server s:1 is not connected")};
  const absl::Status left = leave_stopped_run(run, folder, Security::none());
  EXPECT_TRUE(absl::IsUnavailable(left));
  EXPECT_THAT(std::string(left.message()),
              AllOf(HasSubstr("model.safetensors is not written: server s:1 is not connected"),
                    HasSubstr("`poseidon checkpoint export --checkpoint 3-45` makes it")));
  EXPECT_TRUE(fs::exists(folder / kStoppedFile));
  EXPECT_FALSE(fs::exists(folder / kModelFile));
  fs::remove_all(folder);
}

}  // namespace
}  // namespace poseidon::stopped_run_test
