#include "cli/doctor/doctor_diagnose.h"

#include <functional>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::doctor_diagnose_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr double kGbit = 1e9 / 8;
constexpr auto kWorker = DoctorFacts::Daemon::Role::kWorker;

/// Computes 80 ms of 100, hardly waits; each node on a machine of its own, with cores to spare.
DoctorFacts healthy(std::size_t workers = 3, std::size_t servers = 2) {
  DoctorFacts facts;
  facts.iteration_s = 0.1;
  facts.iterations = 30;
  facts.batch_size = 32;
  const auto node = [&](const std::string& name) {
    const std::uint64_t machine = facts.machines.size() + 1;
    facts.machines.push_back(
        {.id = machine, .cores = 8, .used = 3, .wanted = 0.05, .processes = {name}});
    return DoctorFacts::Node{.name = name,
                             .machine = machine,
                             .send_bytes_per_s = 8 * kGbit,
                             .receive_bytes_per_s = 9 * kGbit,
                             .send_s = 0.02,
                             .receive_s = 0.02,
                             .sent_bytes = 20e6,
                             .received_bytes = 20e6};
  };
  for (std::size_t w = 0; w < workers; ++w) {
    facts.workers.push_back({.node = node(absl::StrCat("worker ", w)),
                             .compute_s = 0.080 + 0.001 * static_cast<double>(w),
                             .compute_mean_s = 0.082 + 0.001 * static_cast<double>(w),
                             .compute_quick_s = 0.078 + 0.001 * static_cast<double>(w),
                             .stall_s = 0.004,
                             .input_s = 0.0001});
  }
  for (std::size_t s = 0; s < servers; ++s) {
    facts.servers.push_back({.node = node(absl::StrCat("server ", s)),
                             .busy_s = 0.01,
                             .shard_bytes = 10e6,
                             .disk_share = 0.05,
                             .disk_bytes_per_s = 300e6});
  }
  facts.layers = {{.name = "conv", .bytes = 4e6, .stall_s = 0.003},
                  {.name = "fc", .fully_connected_by_ps = true, .bytes = 16e6, .stall_s = 0.001}};
  return facts;
}

/// All workers wait this much longer.
void wait_more(DoctorFacts& facts, double seconds) {
  for (auto& worker : facts.workers) worker.stall_s += seconds;
  for (auto& layer : facts.layers)
    layer.stall_s += seconds / static_cast<double>(facts.layers.size());
  facts.iteration_s += seconds;
}

void slow_link(DoctorFacts& facts, DoctorFacts::Node& node, bool sends) {
  wait_more(facts, 0.3);
  (sends ? node.send_bytes_per_s : node.receive_bytes_per_s) = 0.1 * kGbit;
  (sends ? node.send_s : node.receive_s) = 0.3;
}

/// Computes for this time in every iteration.
void slow_worker(DoctorFacts& facts, DoctorFacts::Worker& slow) {
  facts.iteration_s = 0.2;
  slow.compute_s = slow.compute_mean_s = slow.compute_quick_s = 0.18;
  for (auto& worker : facts.workers) {
    if (&worker != &slow) worker.stall_s = 0.1;
  }
}

/// Most of its time it is not let run, so that its messages wait too; in most iterations it
/// computes as fast as the others, who take 6 ms. As measured with `docker --cpus 0.05`.
void stopped_worker(DoctorFacts& facts, DoctorFacts::Worker& stopped) {
  facts.iteration_s = 0.036;
  for (auto& worker : facts.workers) {
    worker.compute_s = worker.compute_mean_s = 0.006;
    worker.compute_quick_s = 0.0055;
    worker.stall_s = 0.029;
  }
  stopped.compute_mean_s = 0.030;
  stopped.stall_s = 0.005;
  stopped.input_s = 0.004;
  stopped.node.send_bytes_per_s = 0.2 * kGbit;
  stopped.node.receive_bytes_per_s = 0.0353 * kGbit;
  stopped.node.receive_s = 0.030;
}

/// All of them on the machine of the first.
void on_one_machine(DoctorFacts& facts, double used, double wanted) {
  facts.machines = {{.id = 1, .cores = 2, .used = used, .wanted = wanted}};
  const auto here = [&facts](DoctorFacts::Node& node) {
    node.machine = 1;
    facts.machines[0].processes.push_back(node.name);
  };
  for (auto& worker : facts.workers) here(worker.node);
  for (auto& server : facts.servers) here(server.node);
}

void slow_network(DoctorFacts& facts) {
  wait_more(facts, 0.3);
  const auto slow = [](DoctorFacts::Node& node) {
    node.send_bytes_per_s = node.receive_bytes_per_s = 0.4 * kGbit;
    node.send_s = node.receive_s = 0.35;
  };
  for (auto& worker : facts.workers) slow(worker.node);
  for (auto& server : facts.servers) slow(server.node);
}

struct Case {
  std::string name;
  std::function<void(DoctorFacts&)> change;
  Finding::Kind kind;
  std::string guilty;
  std::string what;
  std::size_t workers = 3, servers = 2;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

const std::vector<Case> kCases = {
    {"healthy", [](DoctorFacts&) {}, Finding::Kind::kCompute, "", "nothing limits it but compute"},
    {"slow_link_of_a_worker", [](DoctorFacts& f) { slow_link(f, f.workers[1].node, true); },
     Finding::Kind::kLink, "worker 1",
     "the link of worker 1 sends 100 Mbit/s, those of the other nodes 8 Gbit/s"},
    {"slow_link_of_a_server", [](DoctorFacts& f) { slow_link(f, f.servers[0].node, false); },
     Finding::Kind::kLink, "server 0", "the link of server 0 receives 100 Mbit/s"},
    {"slow_link_while_its_worker_computes_a_little_longer",
     [](DoctorFacts& f) {
       slow_link(f, f.workers[1].node, true);
       f.workers[1].stall_s += 0.1;
       f.workers[1].compute_s *= 1.5;
       f.workers[1].compute_mean_s *= 1.5;
     },
     Finding::Kind::kLink, "worker 1", "the link of worker 1"},
    {"worker_that_is_stopped_in_bursts", [](DoctorFacts& f) { stopped_worker(f, f.workers[1]); },
     Finding::Kind::kWorker, "worker 1",
     "worker 1 computes 30 ms per iteration on average, the others 6 ms, though its quick "
     "iterations "
     "take 5.5 ms: something keeps it from running in between; they wait for it"},
    {"worker_that_is_stopped_in_bursts_on_one_host",
     [](DoctorFacts& f) {
       stopped_worker(f, f.workers[0]);
       f.one_host = true;
     },
     Finding::Kind::kWorker, "worker 0", "something keeps it from running in between", 2, 1},
    {"worker_whose_cpu_is_limited_on_a_machine_with_free_cores",
     [](DoctorFacts& f) {
       stopped_worker(f, f.workers[1]);
       on_one_machine(f, 0.5, 1.92);
       f.workers[0].node.used = f.workers[2].node.used = 0.2;
       f.workers[1].node.used = 0.05;
       f.workers[1].node.wanted = 1.9;
     },
     Finding::Kind::kWorker, "worker 1",
     "in between; it uses 0.05 cores and waits for 1.90 more; they wait for it"},
    // As measured: its stops hit other things than its computing.
    {"worker_whose_cpu_is_limited_on_a_machine_that_lacks_cores_too",
     [](DoctorFacts& f) {
       stopped_worker(f, f.workers[1]);
       f.workers[1].compute_mean_s = 0.009;
       f.workers[1].input_s = 0.007;
       f.one_host = true;
       on_one_machine(f, 0.11, 2.03);
       f.workers[0].node.used = f.workers[2].node.used = 0.02;
       f.workers[0].node.wanted = f.workers[2].node.wanted = 0.05;
       f.workers[1].node.used = 0.05;
       f.workers[1].node.wanted = 1.9;
     },
     Finding::Kind::kCpu, "worker 1", "worker 1 uses 0.05 cores and waits for 1.90 more"},
    {"server_whose_cpu_is_limited",
     [](DoctorFacts& f) {
       slow_link(f, f.servers[1].node, false);
       on_one_machine(f, 2.05, 1.0);
       f.servers[1].node.used = 0.05;
       f.servers[1].node.wanted = 0.95;
     },
     Finding::Kind::kCpu, "server 1", "server 1 uses 0.05 cores and waits for 0.95 more"},
    {"slow_messages_within_a_host_are_no_links",
     [](DoctorFacts& f) {
       slow_link(f, f.workers[1].node, false);
       f.workers[0].stall_s = f.workers[2].stall_s = 0.004;
       f.layers[0].stall_s = f.layers[1].stall_s = 0.05;
       f.one_host = true;
     },
     Finding::Kind::kUnknown, "", "no link, worker, server or core stands out"},
    {"slow_worker", [](DoctorFacts& f) { slow_worker(f, f.workers[2]); }, Finding::Kind::kWorker,
     "worker 2", "computes 180 ms per iteration, the others 82.5 ms: they"},
    {"worker_that_is_a_little_slower_all_the_time_while_all_have_bad_moments",
     [](DoctorFacts& f) {
       f.iteration_s = 0.2;
       for (auto& worker : f.workers) worker.compute_mean_s = 0.15;
       f.workers[2].compute_s = 0.12;
       f.workers[2].compute_mean_s = 0.16;
       f.workers[2].compute_quick_s = 0.12;
     },
     Finding::Kind::kWorker, "worker 2", "computes 120 ms per iteration, the others 80.5 ms"},
    {"slow_worker_that_also_reads_and_writes_slowly",
     [](DoctorFacts& f) {
       slow_worker(f, f.workers[2]);
       f.workers[2].node.send_bytes_per_s = f.workers[2].node.receive_bytes_per_s = 0.5 * kGbit;
       f.workers[2].node.send_s = f.workers[2].node.receive_s = 0.05;
     },
     Finding::Kind::kWorker, "worker 2", "the others"},
    {"slow_worker_of_two", [](DoctorFacts& f) { slow_worker(f, f.workers[0]); },
     Finding::Kind::kWorker, "worker 0", "the others", 2, 2},
    {"network_too_small", slow_network, Finding::Kind::kNetwork, "",
     "the network is too small for the job"},
    {"messages_too_slow_within_a_host",
     [](DoctorFacts& f) {
       slow_network(f);
       f.one_host = true;
     },
     Finding::Kind::kNetwork, "", "all nodes are on one machine: they share its cores and memory"},
    {"samples_of_one_worker",
     [](DoctorFacts& f) {
       f.iteration_s = 0.2;
       f.workers[1].input_s = 0.1;
       f.workers[0].stall_s = f.workers[2].stall_s = 0.1;
     },
     Finding::Kind::kInput, "worker 1", "worker 1 waits up to 50 % of an iteration for samples"},
    {"samples_of_all",
     [](DoctorFacts& f) {
       f.iteration_s = 0.2;
       for (auto& worker : f.workers) worker.input_s = 0.1;
     },
     Finding::Kind::kInput, "", "all workers wait up to 50 %"},
    {"one_that_computed_faster_before",
     [](DoctorFacts& f) {
       f.daemons = {{.role = kWorker,
                     .name = "worker 1",
                     .compute_before_s = 0.06,
                     .compute_now_s = 0.081,
                     .gpu_celsius = 91.0},
                    {.role = kWorker,
                     .name = "worker 2",
                     .compute_before_s = 0.075,
                     .compute_now_s = 0.081}};
     },
     Finding::Kind::kSlower, "worker 1", "until now: worker 1 (81 ms, 60 ms on average before)"},
    {"all_computed_faster_before",
     [](DoctorFacts& f) {
       for (const auto& worker : f.workers) {
         f.daemons.push_back({.role = kWorker,
                              .name = worker.node.name,
                              .compute_before_s = 0.04,
                              .compute_now_s = 0.08});
       }
     },
     Finding::Kind::kSlower, "", "worker 0 (80 ms, 40 ms on average before), worker 1"},
    {"slow_worker_that_was_not_slow_before",
     [](DoctorFacts& f) {
       slow_worker(f, f.workers[2]);
       f.daemons = {
           {.role = kWorker, .name = "worker 2", .compute_before_s = 0.08, .compute_now_s = 0.18}};
     },
     Finding::Kind::kWorker, "worker 2", "they wait for it; it took 80 ms on average before"},
    {"gpus_that_have_little_to_do",
     [](DoctorFacts& f) {
       f.daemons = {{.role = kWorker, .name = "worker 0", .gpu_utilization = 0.5},
                    {.role = kWorker, .name = "worker 1", .gpu_utilization = 0.3},
                    {.role = kWorker, .name = "worker 2"}};
     },
     Finding::Kind::kCompute, "", "4 % waiting; GPUs run kernels for 40 % of the time"},
    {"too_few_cores",
     [](DoctorFacts& f) {
       f.machines = {{.id = 9, .cores = 2, .used = 1.9, .wanted = 1.9, .processes = {"a", "b"}}};
       for (auto& worker : f.workers) worker.node.machine = 9;
     },
     Finding::Kind::kCpu, "a, b", "has 2 cores: these processes use 1.90 and wait for 1.90 more"},
    {"cores_that_nobody_could_count",
     [](DoctorFacts& f) {
       for (auto& machine : f.machines) machine.cores = 0;
       f.machines[0].used = f.machines[0].wanted = 0;
       f.machines[1].wanted = 2 * f.machines[1].used;
     },
     Finding::Kind::kCompute, "", "nothing limits it but compute"},
    {"one_server_holds_too_much",
     [](DoctorFacts& f) {
       wait_more(f, 0.1);
       f.servers[1].shard_bytes = 60e6;
       f.servers[1].node.receive_s = 0.15;
     },
     Finding::Kind::kServer, "server 1",
     "holds 60 MB of parameters, a server's part would be 35 MB"},
    {"one_server_sums_all_the_time",
     [](DoctorFacts& f) {
       wait_more(f, 0.1);
       f.servers[0].busy_s = 0.19;
     },
     Finding::Kind::kServer, "server 0", "sums and steps for 95 %"},
    {"a_straggling_layer",
     [](DoctorFacts& f) {
       wait_more(f, 0.05);
       f.layers[0].stall_s = 0.002;
       f.layers[1].stall_s = 0.052;
     },
     Finding::Kind::kLayer, "fc", "workers wait 52 ms per iteration for layer fc"},
    {"few_workers_wait",
     [](DoctorFacts& f) {
       f.workers[1].stall_s = 0.05;
       f.layers[0].stall_s = f.layers[1].stall_s = 0.008;
     },
     Finding::Kind::kUnknown, "", "1 of 3 workers (worker 1) wait"},
    {"no_iterations", [](DoctorFacts& f) { f.iteration_s = 0.0; }, Finding::Kind::kUnknown, "",
     "too few iterations"},
};

class Diagnose : public ::testing::TestWithParam<Case> {};

TEST_P(Diagnose, NamesTheGuiltyOneAndNobodyElse) {
  const Case& c = GetParam();
  DoctorFacts facts = healthy(c.workers, c.servers);
  c.change(facts);
  const std::vector<Finding> findings = diagnose(facts);
  ASSERT_EQ(findings.size(), 1U) << findings[1].what;
  EXPECT_STREQ(finding_name(findings[0].kind), finding_name(c.kind)) << findings[0].what;
  EXPECT_EQ(findings[0].guilty, c.guilty);
  EXPECT_THAT(findings[0].what, HasSubstr(c.what));
  EXPECT_FALSE(findings[0].remedy.empty());
  EXPECT_LE(findings[0].share, 1.0);
}

INSTANTIATE_TEST_SUITE_P(Facts, Diagnose, ::testing::ValuesIn(kCases),
                         [](const auto& tested) { return tested.param.name; });

TEST(DiagnoseDisk, ASlowDiskIsNamedBesidesWhatLimitsTraining) {
  DoctorFacts facts = healthy();
  facts.servers[1].disk_bytes_per_s = 5e6;
  facts.servers[1].disk_share = 1.0;
  facts.servers[1].disk_waiting = 12;
  const auto findings = diagnose(facts);
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[0].kind, Finding::Kind::kCompute);
  EXPECT_EQ(findings[1].kind, Finding::Kind::kDisk);
  EXPECT_EQ(findings[1].guilty, "server 1");
  EXPECT_THAT(findings[1].what, HasSubstr("takes 5 MB/s, the other servers' 300 MB/s"));
}

TEST(DiagnoseDisk, ASlowOneThatHasNothingToDoIsNotNamed) {
  DoctorFacts facts = healthy();
  facts.servers[1].disk_bytes_per_s = 5e6;
  EXPECT_EQ(diagnose(facts).size(), 1U);
}

TEST(DiagnoseDisk, AllAtTheirLimitAreAllNamed) {
  DoctorFacts facts = healthy();
  for (auto& server : facts.servers) server.disk_share = 0.9;
  EXPECT_EQ(diagnose(facts).size(), 3U);
}

TEST(DiagnoseDisk, AFastOneIsNotBlamedForBeingBusyToo) {
  DoctorFacts facts = healthy();
  for (auto& server : facts.servers) server.disk_share = 0.9;
  facts.servers[1].disk_bytes_per_s = 5e6;
  const auto findings = diagnose(facts);
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[1].guilty, "server 1");
}

TEST(DiagnoseNetwork, SaysWhatWouldHelp) {
  DoctorFacts facts = healthy();
  wait_more(facts, 0.3);
  for (auto& worker : facts.workers) worker.node.send_s = 0.32;
  const auto findings = diagnose(facts);
  ASSERT_EQ(findings[0].kind, Finding::Kind::kNetwork);
  // 20 MB within the 81 ms of computing; it has 320 ms.
  EXPECT_THAT(findings[0].remedy, HasSubstr("about 1.98 Gbit/s per node"));
  EXPECT_THAT(findings[0].remedy, HasSubstr("bf16"));
  EXPECT_THAT(findings[0].remedy,
              HasSubstr("fully connected layers (fc) are 80 % of what goes by servers"));
  EXPECT_THAT(findings[0].remedy, HasSubstr("a batch of about 127 in place of 32"));
  facts.sixteen_bits = true;
  EXPECT_THAT(diagnose(facts)[0].remedy, ::testing::Not(HasSubstr("bf16")));
}

TEST(DiagnoseNetwork, FactorsAreNeitherHalvedNorHelpedByALargerBatch) {
  DoctorFacts facts = healthy();
  facts.layers[1] = {.name = "fc", .by_sfb = true, .bytes = 400e6, .stall_s = 0.001};
  wait_more(facts, 0.3);
  for (auto& worker : facts.workers) worker.node.send_s = 0.32;
  facts.servers.resize(1);
  const Finding network = diagnose(facts)[0];
  ASSERT_EQ(network.kind, Finding::Kind::kNetwork);
  EXPECT_THAT(network.remedy, HasSubstr("most of it may be factors (fc): a smaller batch"));
  EXPECT_THAT(network.remedy, ::testing::Not(HasSubstr("bf16")));
  EXPECT_THAT(network.remedy, ::testing::Not(HasSubstr("in place of 32")));
  EXPECT_THAT(network.remedy, ::testing::Not(HasSubstr("check whether SFB")));
  EXPECT_THAT(network.what, ::testing::Not(HasSubstr("pass the link of server 0")))
      << "factors do not";

  facts.layers[1].stall_s = 10 * facts.layers[0].stall_s;
  facts.layers[0].stall_s = 0.0;
  for (const Finding& finding : diagnose(facts)) {
    if (finding.kind != Finding::Kind::kLayer) continue;
    EXPECT_THAT(finding.what, HasSubstr("by SFB"));
    EXPECT_THAT(finding.remedy, HasSubstr("sync.scheme \"ps\""));
  }
}

TEST(DiagnoseNetwork, ALinkThatAllMessagesPassMayBeTheOnlySlowOne) {
  DoctorFacts facts = healthy();
  wait_more(facts, 0.3);
  for (auto& worker : facts.workers) worker.node.send_s = 0.32;
  ASSERT_GT(facts.servers.size(), 1U);
  EXPECT_THAT(diagnose(facts)[0].what, HasSubstr("no node's link is worse than the others'"));
  facts.servers.resize(1);
  const auto findings = diagnose(facts);
  ASSERT_EQ(findings[0].kind, Finding::Kind::kNetwork);
  EXPECT_THAT(findings[0].what, HasSubstr("all of them pass the link of server 0"));
  EXPECT_THAT(findings[0].remedy, StartsWith("check whether the link of server 0"));
}

TEST(Diagnose, TheMostExpensiveComesFirst) {
  DoctorFacts facts = healthy();
  slow_link(facts, facts.workers[0].node, true);
  facts.workers[1].input_s = 0.05;
  const auto findings = diagnose(facts);
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[0].guilty, "worker 0");
  EXPECT_EQ(findings[1].kind, Finding::Kind::kInput);
  EXPECT_GE(findings[0].cost_s, findings[1].cost_s);
}

TEST(Diagnose, WhereCoresAreShortASmallDifferenceAccusesNobody) {
  DoctorFacts facts = healthy();
  facts.machines = {{.id = 9, .cores = 2, .used = 1.0, .wanted = 0.9, .processes = {"all"}}};
  for (auto& worker : facts.workers) worker.node.machine = 9;
  facts.workers[1].compute_s *= 1.5;
  facts.workers[1].compute_mean_s *= 1.5;
  for (const Finding& finding : diagnose(facts)) EXPECT_EQ(finding.kind, Finding::Kind::kCpu);
}

TEST(Diagnose, WhereEverybodyWaitsForCoresThatComesBeforeTheNetwork) {
  DoctorFacts facts = healthy();
  slow_network(facts);
  on_one_machine(facts, 0.15, 3.82);
  const auto findings = diagnose(facts);
  EXPECT_EQ(findings[0].kind, Finding::Kind::kCpu);
  EXPECT_THAT(findings[0].what, HasSubstr("these processes use 0.15 and wait for 3.82 more"));
  EXPECT_GT(findings[0].share, 0.7);
  for (std::size_t i = 1; i < findings.size(); ++i) EXPECT_LT(findings[i].share, 0.25);
  on_one_machine(facts, 0.15, 4.9);
  EXPECT_EQ(diagnose(facts).size(), 1U) << "it explains all waiting";
}

TEST(Diagnose, AStoppedWorkerCostsWhatTheOthersWaitForItAndIsNoLackOfCores) {
  DoctorFacts facts = healthy();
  stopped_worker(facts, facts.workers[1]);
  on_one_machine(facts, 0.15, 2.7);
  facts.workers[0].node.used = facts.workers[2].node.used = 0.05;
  facts.workers[0].node.wanted = facts.workers[2].node.wanted = 0.3;
  facts.workers[1].node.used = 0.05;
  facts.workers[1].node.wanted = 2.1;
  const auto findings = diagnose(facts);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].kind, Finding::Kind::kWorker);
  EXPECT_NEAR(findings[0].cost_s, 0.024, 1e-9);
}

TEST(Diagnose, ATooSmallNetworkIsNamedBesidesCoresThatAreMissedALittle) {
  DoctorFacts facts = healthy();
  slow_network(facts);
  on_one_machine(facts, 1.2, 0.7);
  const auto findings = diagnose(facts);
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[0].kind, Finding::Kind::kNetwork);
  EXPECT_EQ(findings[1].kind, Finding::Kind::kCpu);
}

TEST(Diagnose, WhoIsStoppedIsHelpedByLookingAtWhatStopsIt) {
  DoctorFacts facts = healthy();
  stopped_worker(facts, facts.workers[1]);
  EXPECT_THAT(diagnose(facts)[0].remedy, HasSubstr("docker --cpus"));
  EXPECT_THAT(diagnose(facts)[0].remedy, HasSubstr("SIGSTOP"));
}

/// Stopped for 60 ms, running for 20 ms, again and again: a message to it waits for up to 60 ms
/// where the others' take less than 1.
void stop_for_60_of_80_ms(DoctorFacts& facts, DoctorFacts::Worker& stopped) {
  stopped_worker(facts, stopped);
  facts.iteration_s = 0.045;
  for (auto& worker : facts.workers) worker.stall_s = 0.038;
  stopped.compute_mean_s = 0.020;
  stopped.stall_s = 0.005;
  stopped.node.receive_s = 0.040;
  stopped.node.receive_bytes_per_s = 0.015 * kGbit;
}

TEST(Diagnose, AWorkerThatIsStoppedForMostOfTheTimeIsNotJudgedByItsLink) {
  DoctorFacts facts = healthy();
  stop_for_60_of_80_ms(facts, facts.workers[1]);
  auto findings = diagnose(facts);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].kind, Finding::Kind::kWorker) << findings[0].what;
  EXPECT_EQ(findings[0].guilty, "worker 1");

  // Its computing takes longer than it runs between two stops: no iteration is a quick one.
  stop_for_60_of_80_ms(facts, facts.workers[1]);
  facts.iteration_s = 0.2;
  for (auto& worker : facts.workers) {
    worker.compute_s = worker.compute_mean_s = worker.compute_quick_s = 0.045;
    worker.stall_s = 0.15;
  }
  facts.workers[1].compute_s = facts.workers[1].compute_mean_s = 0.165;
  facts.workers[1].compute_quick_s = 0.15;
  facts.workers[1].stall_s = 0.03;
  facts.workers[1].node.receive_s = 0.18;
  findings = diagnose(facts);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].kind, Finding::Kind::kWorker) << findings[0].what;
}

TEST(Diagnose, AWorkerThatWaitsForCoresForMostOfTheTimeIsNotJudgedByItsLink) {
  DoctorFacts facts = healthy();
  slow_link(facts, facts.workers[1].node, false);
  facts.workers[1].node.receive_bytes_per_s = 0.01 * kGbit;
  on_one_machine(facts, 1.0, 3.0);
  for (auto& worker : facts.workers) {
    worker.node.used = 0.2;
    worker.node.wanted = 0.6;
  }
  const auto findings = diagnose(facts);
  ASSERT_FALSE(findings.empty());
  for (const Finding& finding : findings) {
    EXPECT_NE(finding.kind, Finding::Kind::kLink) << finding.what;
  }
  EXPECT_EQ(findings[0].kind, Finding::Kind::kCpu) << findings[0].what;
}

TEST(Diagnose, ALinkThatIsSlowBeyondWhatItsWorkerStandsStillIsNamed) {
  DoctorFacts facts = healthy();
  slow_link(facts, facts.workers[1].node, false);
  // A quarter of the time: in the other three its messages are as slow.
  facts.workers[1].compute_mean_s *= 4.0 / 3.0;
  facts.workers[1].compute_quick_s = 0.04;
  const auto findings = diagnose(facts);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].kind, Finding::Kind::kLink);
}

}  // namespace
}  // namespace poseidon::doctor_diagnose_test
