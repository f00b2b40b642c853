#include "common/security/roles.h"

#include <set>

#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "poseidon/v1/control.pb.h"
#include "poseidon/v1/data.pb.h"
#include "poseidon/v1/factors.pb.h"
#include "poseidon/v1/probe.pb.h"
#include "poseidon/v1/store.pb.h"

namespace poseidon::roles_test {
namespace {

std::set<std::string> methods_of_the_protocol() {
  std::set<std::string> methods;
  for (const google::protobuf::FileDescriptor* file :
       {v1::NodeMessage::descriptor()->file(), v1::ChunkMessage::descriptor()->file(),
        v1::FactorMessage::descriptor()->file(), v1::ProbeMessage::descriptor()->file(),
        v1::StoreMessage::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      const google::protobuf::ServiceDescriptor* const service = file->service(s);
      for (int m = 0; m < service->method_count(); ++m) {
        methods.insert("/" + service->full_name() + "/" + service->method(m)->name());
      }
    }
  }
  return methods;
}

TEST(Roles, TheTableHasEveryMethodOfTheProtocolOnce) {
  std::set<std::string> in_table;
  for (const MethodRule& rule : method_rules()) {
    EXPECT_TRUE(in_table.insert(std::string(rule.method)).second) << rule.method;
    EXPECT_FALSE(rule.callers.empty()) << rule.method;
    EXPECT_FALSE(rule.servers.empty()) << rule.method;
  }
  EXPECT_EQ(in_table, methods_of_the_protocol());
}

/// Of each method, who may call it: C S W O.
TEST(Roles, WhoMayCallWhat) {
  const auto callers = [](std::string_view method) {
    std::string letters;
    for (const PeerRole role : kAllPeerRoles) {
      if (rule_of(method).callers.has(role)) letters += "CSWO"[static_cast<int>(role)];
    }
    return letters;
  };
  EXPECT_EQ(callers("/poseidon.v1.Coordinator/Attach"), "SW");
  EXPECT_EQ(callers("/poseidon.v1.Coordinator/UploadModel"), "W");
  EXPECT_EQ(callers("/poseidon.v1.Coordinator/Submit"), "O");
  EXPECT_EQ(callers("/poseidon.v1.Coordinator/Declare"), "W");
  EXPECT_EQ(callers("/poseidon.v1.Coordinator/GetStatus"), "O");
  EXPECT_EQ(callers("/poseidon.v1.Coordinator/ListCheckpoints"), "O");
  EXPECT_EQ(callers("/poseidon.v1.Coordinator/RequestCheckpoint"), "O");
  EXPECT_EQ(callers("/poseidon.v1.Coordinator/LocateCheckpoint"), "O");
  EXPECT_EQ(callers("/poseidon.v1.Coordinator/RestoreCheckpoint"), "O");
  EXPECT_EQ(callers("/poseidon.v1.Coordinator/RemoveCheckpoints"), "O");
  EXPECT_EQ(callers("/poseidon.v1.Coordinator/EndJob"), "O");
  EXPECT_EQ(callers("/poseidon.v1.Coordinator/Trace"), "O");
  EXPECT_EQ(callers("/poseidon.v1.ParameterServer/Exchange"), "W");
  EXPECT_EQ(callers("/poseidon.v1.LocalAggregation/Exchange"), "W");
  EXPECT_EQ(callers("/poseidon.v1.FactorExchange/Exchange"), "W");
  EXPECT_EQ(callers("/poseidon.v1.CheckpointStore/Exchange"), "CSWO");
  EXPECT_EQ(callers("/poseidon.v1.Probe/Exchange"), "SW");
  EXPECT_EQ(callers("/poseidon.v1.Coordinator/AddedLater"), "O") << "never a node's by oversight";
}

TEST(Roles, OnlyACoordinatorAnswersForTheCoordinator) {
  for (const MethodRule& rule : method_rules()) {
    const bool is_coordinators = rule.method.starts_with("/poseidon.v1.Coordinator/");
    EXPECT_EQ(rule.servers == RoleSet{PeerRole::kCoordinator}, is_coordinators) << rule.method;
    EXPECT_EQ(rule.servers.has(PeerRole::kCoordinator), is_coordinators) << rule.method;
    EXPECT_FALSE(rule.servers.has(PeerRole::kOperator)) << rule.method;
  }
  EXPECT_EQ(rule_of("/poseidon.v1.Coordinator/").servers, RoleSet{PeerRole::kCoordinator});
}

TEST(Roles, NamesGoBothWays) {
  for (const PeerRole role : kAllPeerRoles) {
    EXPECT_EQ(peer_role_from_name(peer_role_name(role)), role);
    const std::string names[] = {"elsewhere.example", peer_role_dns_name(role)};
    EXPECT_EQ(roles_of_names(names), RoleSet{role});
  }
  EXPECT_EQ(peer_role_dns_name(PeerRole::kWorker), "worker.poseidon.internal");
  EXPECT_FALSE(peer_role_from_name("root"));
  const std::string near[] = {"worker", "worker.poseidon.internal.example",
                              "xworker.poseidon.internal", "*.poseidon.internal"};
  EXPECT_TRUE(roles_of_names(near).empty());
  EXPECT_EQ(to_string(RoleSet{PeerRole::kWorker, PeerRole::kServer}), "a server or a worker");
}

}  // namespace
}  // namespace poseidon::roles_test
