#include "cli/doctor/doctor_health.h"

#include <functional>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::doctor_health_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = Finding::Kind;
using Role = DoctorFacts::Daemon::Role;

constexpr double kDayS = 86400.0;

/// A coordinator, two servers and two workers that hardly wait, with nothing to say of them.
DoctorFacts healthy_cluster() {
  DoctorFacts facts;
  facts.iteration_s = 0.1;
  facts.daemons.push_back({.role = Role::kCoordinator,
                           .name = "coordinator",
                           .certificate_left_s = 300 * kDayS,
                           .checkpoint_every = 100,
                           .iterations_since_checkpoint = 99});
  for (const std::string name : {"server 0", "server 1"}) {
    facts.servers.push_back({.node = {.name = name, .machine = 1}});
    facts.daemons.push_back({.role = Role::kServer,
                             .name = name,
                             .socket_bytes = 1e6,
                             .streams = 2,
                             .disk_free_bytes = 50e9,
                             .disk_bytes = 100e9,
                             .snapshot_bytes = 2e9});
  }
  for (const std::string name : {"worker 0", "worker 1"}) {
    facts.workers.push_back({.node = {.name = name, .machine = 2}, .stall_s = 0.001});
    facts.daemons.push_back({.role = Role::kWorker, .name = name, .socket_bytes = 2e6});
  }
  facts.machines = {{.id = 1, .processes = {"server 0", "server 1"}},
                    {.id = 2, .processes = {"worker 0", "worker 1"}}};
  return facts;
}

DoctorFacts::Daemon& daemon(DoctorFacts& facts, const std::string& name) {
  for (auto& daemon : facts.daemons) {
    if (daemon.name == name) return daemon;
  }
  throw std::logic_error(name);
}

struct HealthCase {
  std::string name;
  std::function<void(DoctorFacts&)> change;
  Kind kind;
  std::string guilty, what;
};
std::ostream& operator<<(std::ostream& out, const HealthCase& c) { return out << c.name; }

const std::vector<HealthCase> kHealthCases = {
    {"errors_of_a_store", [](DoctorFacts& f) { daemon(f, "server 1").store_errors = 3; },
     Kind::kStore, "server 1", "RocksDB of server 1 reports 3 errors"},
    {"little_of_a_disk_left", [](DoctorFacts& f) { daemon(f, "server 0").disk_free_bytes = 9e9; },
     Kind::kSpace, "server 0", "has 9 GB (9.0 %) left, its part of a checkpoint takes about 2 GB"},
    {"no_room_for_checkpoints", [](DoctorFacts& f) { daemon(f, "server 1").snapshot_bytes = 26e9; },
     Kind::kSpace, "server 1", "(50.0 %) left"},
    {"a_checkpoint_that_failed",
     [](DoctorFacts& f) {
       daemon(f, "coordinator").checkpoints_failed = 1;
       daemon(f, "server 1").snapshots_failed = 4;
     },
     Kind::kCheckpoint, "",
     "a checkpoint failed just now; failed at server 1 (4 parts in these seconds)"},
    {"checkpoints_that_are_overdue",
     [](DoctorFacts& f) { daemon(f, "coordinator").iterations_since_checkpoint = 301; },
     Kind::kCheckpoint, "", "301 iterations are in no checkpoint, one is due every 100"},
    {"streams_that_break",
     [](DoctorFacts& f) {
       daemon(f, "worker 1").broken_streams = {{"server", 2}, {"worker", 1}};
     },
     Kind::kStreams, "worker 1", "in these seconds: 2 to a server, 1 to a worker"},
    {"streams_left_unread",
     [](DoctorFacts& f) {
       daemon(f, "server 0").paused_streams = 1;
       daemon(f, "server 0").early_gradient_bytes = 64e6;
     },
     Kind::kPaused, "server 0", "leaves 1 of 2 streams unread: 64 MB of gradients"},
    {"sockets_on_one_machine",
     [](DoctorFacts& f) {
       f.machines = {{.id = 1, .processes = {"server 0", "server 1", "worker 0", "worker 1"}}};
       f.workers[0].stall_s = 0.03;
     },
     Kind::kPath, "", "yet 6 MB of 6 MB went through sockets"},
    {"samples_that_cannot_be_read", [](DoctorFacts& f) { f.workers[1].corrupt_samples = 12; },
     Kind::kSamples, "worker 1", "worker 1 could not read 12 samples"},
    {"refused_messages",
     [](DoctorFacts& f) {
       daemon(f, "server 0").refused_messages = {{"length", 5}, {"layer", 1}};
     },
     Kind::kRefused, "server 0", "(in these seconds: 1 layer, 5 length)"},
    {"refused_connections",
     [](DoctorFacts& f) {
       daemon(f, "coordinator").refused_connections = {{"unknown_ca", 3}};
     },
     Kind::kRefused, "coordinator", "refuses connections (in these seconds: 3 unknown_ca)"},
    {"a_certificate_that_expires",
     [](DoctorFacts& f) { daemon(f, "worker 0").certificate_left_s = 3.5 * kDayS; },
     Kind::kCertificate, "worker 0", "the certificate of worker 0 expires in 3.5 days"},
    {"a_certificate_that_has_expired",
     [](DoctorFacts& f) { daemon(f, "worker 0").certificate_left_s = -1.0; }, Kind::kCertificate,
     "worker 0", "the certificate of worker 0 has expired"},
};

class Judge : public ::testing::TestWithParam<HealthCase> {};

TEST_P(Judge, NamesWhatShouldNotBeSo) {
  DoctorFacts facts = healthy_cluster();
  GetParam().change(facts);
  const std::vector<Finding> findings = health_findings(facts);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].kind, GetParam().kind);
  EXPECT_EQ(findings[0].guilty, GetParam().guilty);
  EXPECT_THAT(findings[0].what, HasSubstr(GetParam().what));
  EXPECT_FALSE(findings[0].remedy.empty());
  EXPECT_EQ(findings[0].cost_s, 0.0);
}

INSTANTIATE_TEST_SUITE_P(Facts, Judge, ::testing::ValuesIn(kHealthCases),
                         [](const auto& test) { return test.param.name; });

TEST(Health, OfAHealthyClusterNothingIsSaid) {
  EXPECT_TRUE(health_findings(healthy_cluster()).empty());
  EXPECT_TRUE(health_findings(DoctorFacts()).empty());
}

TEST(Health, ARefusalOrTwoAreNoTrouble) {
  DoctorFacts facts = healthy_cluster();
  daemon(facts, "server 0").refused_messages = {{"length", 1}, {"layer", 1}};
  daemon(facts, "worker 1").refused_connections = {{"handshake", 2}};
  EXPECT_TRUE(health_findings(facts).empty());
}

TEST(Health, SocketsOfOneMachineMatterWhereSomebodyWaitsAndAllOfItIsKnown) {
  const auto said = [](double stall_s, std::vector<std::string> processes, double shared_bytes) {
    DoctorFacts facts = healthy_cluster();
    facts.machines = {{.id = 1, .processes = std::move(processes)}};
    facts.workers[0].stall_s = facts.workers[1].stall_s = stall_s;
    facts.daemons.back().shared_memory_bytes = shared_bytes;
    return !health_findings(facts).empty();
  };
  EXPECT_TRUE(said(0.03, {"server 0", "server 1", "worker 0", "worker 1"}, 1e6));
  EXPECT_FALSE(said(0.001, {"server 0", "server 1", "worker 0", "worker 1"}, 1e6));
  EXPECT_FALSE(said(0.03, {"server 0", "worker 0", "worker 1"}, 1e6));
  EXPECT_FALSE(said(0.03, {"server 0", "server 1", "worker 0", "worker 1"}, 7e6));
}

TEST(Health, TheGravestComesFirstAndBehindWhatLimitsTheJob) {
  DoctorFacts facts = healthy_cluster();
  for (auto& worker : facts.workers) worker.compute_s = 0.09;
  daemon(facts, "coordinator").certificate_left_s = kDayS;
  daemon(facts, "server 0").disk_free_bytes = 1e6;
  daemon(facts, "server 1").store_errors = 1;
  std::vector<Kind> kinds;
  for (const Finding& finding : diagnose(facts)) kinds.push_back(finding.kind);
  EXPECT_THAT(kinds, ElementsAre(Kind::kCompute, Kind::kStore, Kind::kSpace, Kind::kCertificate));
}

}  // namespace
}  // namespace poseidon::doctor_health_test
