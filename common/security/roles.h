#pragma once

// The roles that certificates give, and a table of all methods: the roles that may call each method
// and the roles that may serve it. Pure.
//
// Called by: common/security/certificates.h, which reads the names of a peer's certificate;
// common/security/security.h, which checks every call against the table;
// common/grpc/grpc_transport.h. Calls: nothing.

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace poseidon {

/// The role of a certificate's holder.
enum class PeerRole : std::uint8_t { kCoordinator, kServer, kWorker, kOperator, kMonitor };

inline constexpr PeerRole kAllPeerRoles[] = {PeerRole::kCoordinator, PeerRole::kServer,
                                             PeerRole::kWorker, PeerRole::kOperator,
                                             PeerRole::kMonitor};

/// "coordinator", ...
std::string_view peer_role_name(PeerRole role);
std::optional<PeerRole> peer_role_from_name(std::string_view name);

/// The DNS name (subject alternative name) that represents a role in a certificate:
/// "worker.poseidon.internal". It is never resolved.
std::string peer_role_dns_name(PeerRole role);

/// A second name in the certificates of all daemons, for Prometheus, which checks one name for all
/// of its targets.
inline constexpr std::string_view kDaemonDnsName = "daemon.poseidon.internal";

class RoleSet {
 public:
  constexpr RoleSet() = default;
  constexpr RoleSet(std::initializer_list<PeerRole> roles) {
    for (const PeerRole role : roles) bits_ |= bit(role);
  }
  constexpr bool has(PeerRole role) const { return (bits_ & bit(role)) != 0; }
  constexpr bool meets(RoleSet other) const { return (bits_ & other.bits_) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr void add(PeerRole role) { bits_ |= bit(role); }
  friend constexpr bool operator==(RoleSet, RoleSet) = default;

 private:
  static constexpr unsigned bit(PeerRole role) { return 1U << static_cast<unsigned>(role); }
  unsigned bits_ = 0;
};

/// "a server or a worker"; "nobody" when empty.
std::string to_string(RoleSet roles);

/// The roles among the DNS names of a certificate; other names are ignored.
RoleSet roles_of_names(std::span<const std::string> dns_names);

/// The roles that may read metrics and the status page.
inline constexpr RoleSet kPageReaders{PeerRole::kOperator, PeerRole::kMonitor};

struct MethodRule {
  std::string_view method;  ///< "/poseidon.v1.Service/Method"
  RoleSet callers;          ///< roles that may call it
  RoleSet servers;          ///< roles that may serve it
  /// With TLS its streams have connections of their own (common/grpc/tls_sockets.h).
  bool moves_tensors = false;
};

/// Every method of proto/poseidon/v1.
std::span<const MethodRule> method_rules();

/// The rule of a method. A method that is not in the table may be called by operators and served by
/// the coordinator.
MethodRule rule_of(std::string_view method);

}  // namespace poseidon
