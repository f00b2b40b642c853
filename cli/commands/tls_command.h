#pragma once

// `poseidon tls`: makes a cluster's certificates (docs/security.md). Errors as in commands.h.
//
// Called by: cli/main.cc. Calls: common/security/certificates.h.

#include <string>

#include "absl/status/status.h"

namespace poseidon {

inline constexpr int kMaxCertificateDays = 3650;

std::string peer_role_list();  ///< "coordinator, server, ..."

struct TlsInitOptions {
  std::string to;
  int days = 730;  ///< of the nodes' certificates; the authority's last ten years
};
/// Makes `to`/ca and a folder for each role, those that are not there yet.
absl::Status run_tls_init(const TlsInitOptions& options);

struct TlsIssueOptions {
  std::string role;
  std::string to;    ///< where run_tls_init made the authority
  std::string name;  ///< "": the role's
  int days = 730;
};
/// One more folder, with a certificate of the same authority. ALREADY_EXISTS when it is there.
absl::Status run_tls_issue(const TlsIssueOptions& options);

}  // namespace poseidon
