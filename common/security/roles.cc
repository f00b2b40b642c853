#include "common/security/roles.h"

#include <algorithm>
#include <array>

namespace poseidon {
namespace {

constexpr std::string_view kDomain = ".poseidon.internal";

constexpr RoleSet kCoordinator{PeerRole::kCoordinator};
constexpr RoleSet kServer{PeerRole::kServer};
constexpr RoleSet kWorker{PeerRole::kWorker};
constexpr RoleSet kOperator{PeerRole::kOperator};
constexpr RoleSet kNode{PeerRole::kServer, PeerRole::kWorker};

constexpr bool kTensors = true;

constexpr std::array kRules = {
    MethodRule{"/poseidon.v1.Coordinator/Attach", kNode, kCoordinator},
    MethodRule{"/poseidon.v1.Coordinator/UploadModel", kWorker, kCoordinator},
    MethodRule{"/poseidon.v1.Coordinator/Submit", kOperator, kCoordinator},
    MethodRule{"/poseidon.v1.Coordinator/Declare", kWorker, kCoordinator},
    MethodRule{"/poseidon.v1.Coordinator/GetStatus", kOperator, kCoordinator},
    MethodRule{"/poseidon.v1.Coordinator/Trace", kOperator, kCoordinator},
    MethodRule{"/poseidon.v1.Coordinator/ListCheckpoints", kOperator, kCoordinator},
    MethodRule{"/poseidon.v1.Coordinator/RequestCheckpoint", kOperator, kCoordinator},
    MethodRule{"/poseidon.v1.Coordinator/LocateCheckpoint", kOperator, kCoordinator},
    MethodRule{"/poseidon.v1.Coordinator/RestoreCheckpoint", kOperator, kCoordinator},
    MethodRule{"/poseidon.v1.Coordinator/RemoveCheckpoints", kOperator, kCoordinator},
    MethodRule{"/poseidon.v1.Coordinator/EndJob", kOperator, kCoordinator},
    MethodRule{"/poseidon.v1.Coordinator/DrainNode", kOperator, kCoordinator},
    MethodRule{"/poseidon.v1.ParameterServer/Exchange", kWorker, kServer, kTensors},
    MethodRule{"/poseidon.v1.LocalAggregation/Exchange", kWorker, kWorker, kTensors},
    MethodRule{"/poseidon.v1.FactorExchange/Exchange", kWorker, kWorker, kTensors},
    // `poseidon checkpoint export` reads from the servers, and so does the coordinator of a job
    // that is stopped.
    MethodRule{"/poseidon.v1.CheckpointStore/Exchange",
               {PeerRole::kCoordinator, PeerRole::kServer, PeerRole::kWorker, PeerRole::kOperator},
               kServer,
               kTensors},
    MethodRule{"/poseidon.v1.Probe/Exchange", kNode, kNode, kTensors},
};

}  // namespace

std::string_view peer_role_name(PeerRole role) {
  switch (role) {
    case PeerRole::kCoordinator:
      return "coordinator";
    case PeerRole::kServer:
      return "server";
    case PeerRole::kWorker:
      return "worker";
    case PeerRole::kOperator:
      return "operator";
    case PeerRole::kMonitor:
      return "monitor";
  }
  return "";
}

std::optional<PeerRole> peer_role_from_name(std::string_view name) {
  const auto* found = std::ranges::find(kAllPeerRoles, name, peer_role_name);
  return found == std::end(kAllPeerRoles) ? std::nullopt : std::optional(*found);
}

std::string peer_role_dns_name(PeerRole role) {
  return std::string(peer_role_name(role)) + std::string(kDomain);
}

std::string to_string(RoleSet roles) {
  std::string text;
  for (const PeerRole role : kAllPeerRoles) {
    if (!roles.has(role)) continue;
    text += text.empty() ? "" : " or ";
    text += role == PeerRole::kOperator ? "an " : "a ";
    text += peer_role_name(role);
  }
  return text.empty() ? "nobody" : text;
}

RoleSet roles_of_names(std::span<const std::string> dns_names) {
  RoleSet roles;
  for (const PeerRole role : kAllPeerRoles) {
    if (std::ranges::find(dns_names, peer_role_dns_name(role)) != dns_names.end()) roles.add(role);
  }
  return roles;
}

std::span<const MethodRule> method_rules() { return kRules; }

MethodRule rule_of(std::string_view method) {
  const auto* found = std::ranges::find(kRules, method, &MethodRule::method);
  return found != kRules.end() ? *found : MethodRule{method, kOperator, kCoordinator};
}

}  // namespace poseidon
