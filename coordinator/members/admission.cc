#include "coordinator/members/admission.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/check.h"
#include "common/base/ids.h"
#include "common/base/text.h"
#include "common/checkpoint/checkpoint.h"
#include "common/daemon/daemon.h"
#include "common/wire/snapshot.h"

namespace poseidon {
namespace {

constexpr std::size_t kMaxFieldBytes = 512;  // of any text in Join
constexpr std::size_t kMaxLogTextBytes = 2000;

absl::Status check_text(const std::string& text, const char* field) {
  if (text.size() > kMaxFieldBytes || std::any_of(text.begin(), text.end(), is_control)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Join.", field, " is too long or has control characters"));
  }
  return absl::OkStatus();
}

/// HOST:PORT with a wildcard host replaced.
absl::StatusOr<std::string> reachable(const std::string& text, const std::string& peer_host) {
  POSEIDON_ASSIGN_OR_RETURN(HostPort address, parse_host_port(text, PortZero::kRefused));
  if (is_wildcard_host(address.host)) {
    if (peer_host.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the address ", text, " has no host, and the connection shows none: give one"));
    }
    address.host = peer_host;
  }
  return to_string(address);
}

/// A loopback address leads other nodes to their own machines, which is found out when they
/// prepare.
absl::Status check_not_loopback(const std::string& text, const std::string& peer_host) {
  const absl::StatusOr<HostPort> address = parse_host_port(text, PortZero::kRefused);
  const bool is_wrong = address.ok() && is_loopback_host(address->host) && !peer_host.empty() &&
                        !is_loopback_host(peer_host);
  if (!is_wrong) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("this node announces ", text,
                   ", which only its own machine reaches, but the coordinator "
                   "sees it at ",
                   peer_host,
                   ": start it with --listen and an address that the other machines "
                   "reach (0.0.0.0:",
                   address->port, " announces ", peer_host, ")"));
}

}  // namespace

std::string host_of_peer(const std::string& peer) {
  const bool ipv6 = absl::StartsWith(peer, "ipv6:");
  if (!ipv6 && !absl::StartsWith(peer, "ipv4:")) return "";
  const std::string address =
      absl::StrReplaceAll(peer.substr(5), {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
  const absl::StatusOr<HostPort> parsed = parse_host_port(address, PortZero::kAllowed);
  return parsed.ok() ? parsed->host : "";
}

absl::Status check_protocol_version(std::uint32_t theirs, const std::string& who) {
  if (theirs == kProtocolVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("this coordinator speaks protocol ", kProtocolVersion, ", ", who, " speaks ",
                   theirs, ": install the same Poseidon version everywhere"));
}

absl::StatusOr<NodeInfo> admit(const v1::Join& join, const std::string& peer_host) {
  POSEIDON_RETURN_IF_ERROR(check_text(join.address(), "address"));
  POSEIDON_RETURN_IF_ERROR(check_text(join.device(), "device"));
  POSEIDON_RETURN_IF_ERROR(check_text(join.metrics_address(), "metrics_address"));
  POSEIDON_RETURN_IF_ERROR(check_text(join.software_version(), "software_version"));
  POSEIDON_RETURN_IF_ERROR(check_text(join.job(), "job"));
  NodeInfo node;
  node.role = join.role() == v1::NODE_ROLE_SERVER ? NodeRole::kServer : NodeRole::kWorker;
  node.device = join.device();
  node.software_version = join.software_version();
  node.process_id = join.process_id();
  node.incarnation = join.incarnation();
  node.machine = join.machine();
  node.peer_host = peer_host;
  node.job = join.job();
  if (join.rank() > 0) node.rank = WorkerRank(join.rank() - 1);
  node.address = join.address();
  if (!join.store_identity().empty() && !is_store_identity(join.store_identity())) {
    return absl::InvalidArgumentError("Join.store_identity is no identity of a store");
  }
  node.store_identity = join.store_identity();
  // The version first: in another protocol the other fields may mean something else.
  POSEIDON_RETURN_IF_ERROR(check_protocol_version(join.protocol_version(), node_text(node)));
  if (join.role() != v1::NODE_ROLE_WORKER && join.role() != v1::NODE_ROLE_SERVER) {
    return absl::InvalidArgumentError(absl::StrCat("Join.role is ", static_cast<int>(join.role()),
                                                   "; known: worker 1, server 2"));
  }
  if (node.role == NodeRole::kServer && !node.job.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Join.job is ", node.job, ", but only workers serve one job alone"));
  }
  if (node.rank && node.job.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Join.rank is ", join.rank(), " without Join.job, whose rank it would be"));
  }
  if (node.role == NodeRole::kServer && node.address.empty()) {
    return absl::InvalidArgumentError(
        "Join.address is missing: a server must say where workers reach it");
  }
  if (node.role == NodeRole::kServer) node.newest_epoch = Epoch(join.newest_epoch());
  if (node.newest_epoch.value() >= kEpochs) {
    return absl::InvalidArgumentError(absl::StrCat("Join.newest_epoch is ", join.newest_epoch(),
                                                   ", not below ", kEpochs,
                                                   ": give the server an empty --data-dir"));
  }
  if (!node.address.empty()) {
    POSEIDON_ASSIGN_OR_RETURN(node.address, reachable(node.address, peer_host));
    POSEIDON_RETURN_IF_ERROR(check_not_loopback(node.address, peer_host));
  }
  if (!join.metrics_address().empty()) {
    POSEIDON_ASSIGN_OR_RETURN(node.metrics_address, reachable(join.metrics_address(), peer_host));
  }
  return node;
}

std::string one_line(const std::string& text) {
  std::string line = printable(utf8_prefix(text, kMaxLogTextBytes));
  if (text.size() > kMaxLogTextBytes) line += " ...";
  return line;
}

}  // namespace poseidon
