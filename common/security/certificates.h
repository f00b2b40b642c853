#pragma once

// X.509 certificates of a cluster, on OpenSSL's libcrypto: makes them (`poseidon tls`), reads them,
// and judges a peer's. No files, sockets or clock here.
//
// A cluster has a private authority, whose key stays with the operator, and one certificate per
// node or role. The role is a DNS name in it (common/security/roles.h), so nothing depends on
// addresses.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/security/roles.h"

namespace poseidon {

struct KeyPair {
  std::string certificate_pem;
  std::string key_pem;  ///< PKCS#8, not encrypted
};

/// When something is valid, in seconds since 1970.
struct Validity {
  std::int64_t from_unix_s = 0;
  std::int64_t until_unix_s = 0;
};

/// A self-signed authority (EC P-256) that signs node certificates and nothing below them.
absl::StatusOr<KeyPair> make_authority(const std::string& name, Validity validity);

/// A node's certificate (EC P-256). A coordinator's is good to answer, an operator's and a
/// monitor's to call, a server's and worker's for both. INVALID_ARGUMENT when the authority's key
/// and certificate do not belong together or cannot be read.
absl::StatusOr<KeyPair> issue_certificate(const KeyPair& authority, PeerRole role,
                                          const std::string& name, Validity validity);

struct CertificateFacts {
  std::string subject;  ///< "CN = worker-1"
  std::string issuer;
  std::vector<std::string> dns_names;
  Validity validity;
};

/// Of the first certificate in `pem`; INVALID_ARGUMENT when there is none.
absl::StatusOr<CertificateFacts> read_certificate(const std::string& pem);

/// INVALID_ARGUMENT when `key_pem` is no private key, or not the one of the certificate.
absl::Status check_key(const std::string& certificate_pem, const std::string& key_pem);

/// Why a peer is refused; the values of a metric's label.
enum class PeerRefusal : std::uint8_t {
  kHandshake,       ///< no TLS, or none that both speak
  kNoCertificate,   ///< the peer has shown none
  kUnknownCa,       ///< signed by another authority
  kExpired,         ///< or not valid yet
  kBadCertificate,  ///< anything else wrong with it
  kWrongRole,       ///< a good one that does not allow this
  kNoToken,
  kWrongToken,
  kTooMany,        ///< as many connections as there may be are open
  kBrokenMessage,  ///< what came on a stream in TLS is not what the other end has sent
};
inline constexpr std::size_t kPeerRefusals = 10;
const char* peer_refusal_name(PeerRefusal refusal);

/// Whether the caller or the server uses the certificate.
enum class CertificateUse : std::uint8_t { kCalls, kAnswers };

struct PeerObjection {
  PeerRefusal refusal{};
  std::string message;  ///< what is wrong and the remedy
};

/// Judges what a peer has shown: `certificate_pem` its own, `chain_pem` what it sent with it (may
/// be empty). Nothing: it is signed by one of `authority_pem`, valid now, good for `use`, and has
/// one of the `wanted` roles.
std::optional<PeerObjection> judge_certificate(const std::string& authority_pem,
                                               const std::string& certificate_pem,
                                               const std::string& chain_pem, CertificateUse use,
                                               RoleSet wanted, std::int64_t now_unix_s);

/// Expiry time of the authority in `authority_pem` that has signed the certificate, in seconds
/// since 1970; nullopt when none of them has.
std::optional<std::int64_t> authority_until(const std::string& authority_pem,
                                            const std::string& certificate_pem);

/// "2026-11-21 18:00:00 UTC"
std::string utc_text(std::int64_t unix_s);

}  // namespace poseidon
