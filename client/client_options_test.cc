// The options of a client and the job of a program: what is refused, and in which words.

#include "client/client_options.h"

#include <gtest/gtest.h>

#include <string>

#include "client/program_job.h"
#include "common/job/job.h"

namespace poseidon::client_options_test {

std::string refusal_of(const std::string& json) {
  const auto options = parse_client_options(json);
  return options.ok() ? "" : std::string(options.status().message());
}

TEST(ClientOptionsTest, ReadsAllAndHasDefaults) {
  const auto few = parse_client_options(R"({"coordinator": "10.0.0.1:4700"})");
  ASSERT_TRUE(few.ok()) << few.status();
  EXPECT_EQ(few->rank, -1);
  EXPECT_EQ(few->log, "warning");
  EXPECT_TRUE(few->shared_memory);
  const auto all = parse_client_options(
      R"({"coordinator": "[::1]:4700", "rank": 3, "workers": 4, "servers": 2, "run_dir": "/r",
          "listen": "0.0.0.0:0", "advertise": "w3", "device": "cuda:1", "shared_memory": false,
          "log": "info", "join_timeout_s": 5, "wait_timeout_s": 6, "server_timeout_s": 7,
          "coordinator_away_s": 8, "tls": {"tls_dir": "/t", "join_token_file": "/k"}})");
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->rank, 3);
  EXPECT_EQ(all->wait_timeout, Milliseconds(6000));
  EXPECT_EQ(all->tls.join_token_file, "/k");
}

TEST(ClientOptionsTest, NamesWhatIsWrong) {
  EXPECT_NE(refusal_of("{}").find("coordinator"), std::string::npos);
  EXPECT_NE(refusal_of("[").find("options"), std::string::npos);
  EXPECT_NE(refusal_of(R"({"coordinator": "here"})").find("coordinator"), std::string::npos);
  EXPECT_NE(refusal_of(R"({"coordinator": "a:1", "ranks": 2})").find("rank"), std::string::npos);
  EXPECT_NE(refusal_of(R"({"coordinator": "a:1", "rank": -2})").find("-2"), std::string::npos);
  EXPECT_NE(refusal_of(R"({"coordinator": "a:1", "log": "loud"})").find("loud"), std::string::npos);
  EXPECT_NE(refusal_of(R"({"coordinator": "a:1", "tls": {"dir": "/x"}})").find("tls.dir"),
            std::string::npos);
}

std::string job_with(const std::string& more) {
  return R"({"name": "j", "model": {"name": "m", "declared": [
    {"name": "fc", "type": "linear", "tensors": [{"name": "weight", "shape": [1, 4]},
     {"name": "bias", "shape": [1]}]}]}, "optimizer": {"learning_rate": 0.1})" +
         more + "}";
}

TEST(ProgramJobTest, EveryLayerGoesByTheServers) {
  const auto job = parse_program_job(job_with(R"(, "sync": {"scheme": "auto"})"), 2);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->layout.layers[0].parameter_count(), 5);
  const auto again = parse_job(job->json);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->sync.scheme, "ps");
}

TEST(ProgramJobTest, RefusesWhatAProgramCannotDo) {
  const auto refusal = [](const std::string& text) {
    const auto job = parse_program_job(text, 2);
    return job.ok() ? "" : std::string(job.status().message());
  };
  EXPECT_NE(refusal(job_with(R"(, "sync": {"scheme": "sfb"})")).find("not possible for programs"),
            std::string::npos);
  EXPECT_NE(refusal(job_with(R"(, "sync": {"scheme": {"fc": "sfb"}})")).find("sync.scheme.fc"),
            std::string::npos);
  EXPECT_NE(refusal(job_with(R"(, "data": {})")).find("data"), std::string::npos);
  EXPECT_NE(refusal(R"({"name": "j", "model": "lenet", "batch_size": 8, "iterations": 5,
    "optimizer": {"learning_rate": 0.1}, "data": {"train": {"format": "synthetic",
    "samples": 64}}})"),
            "");
}

}  // namespace poseidon::client_options_test
