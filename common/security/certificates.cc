#include "common/security/certificates.h"

#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <array>
#include <ctime>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace poseidon {
namespace {

template <auto free_function>
struct Free {
  template <typename T>
  void operator()(T* thing) const {
    free_function(thing);
  }
};
using Bio = std::unique_ptr<BIO, Free<BIO_free_all>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Store = std::unique_ptr<X509_STORE, Free<X509_STORE_free>>;
using StoreContext = std::unique_ptr<X509_STORE_CTX, Free<X509_STORE_CTX_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Free<X509_EXTENSION_free>>;
using BigNumber = std::unique_ptr<BIGNUM, Free<BN_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Free<GENERAL_NAMES_free>>;

void free_certificates(STACK_OF(X509) * stack) { sk_X509_pop_free(stack, X509_free); }
using CertificateStack = std::unique_ptr<STACK_OF(X509), Free<free_certificates>>;

constexpr int kSerialBits = 127;             // positive, and at most 20 bytes
constexpr std::size_t kMaxCommonName = 64;   // of X.520
constexpr int kMaxChainCertificates = 8;     // that a peer may send
constexpr std::size_t kMaxPemBytes = 65536;  // of what a peer sends

/// What OpenSSL says was wrong, and forgets it.
std::string openssl_error() {
  std::array<char, 256> text{};
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  if (code == 0) return "no reason given";
  ERR_error_string_n(code, text.data(), text.size());
  return text.data();
}

absl::Status failed(const char* what) {
  return absl::InternalError(absl::StrCat("cannot ", what, ": ", openssl_error()));
}

Bio reader(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

std::string written(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return size > 0 ? std::string(data, static_cast<std::size_t>(size)) : "";
}

/// There is no user to type a pass phrase, so an encrypted key is refused.
int no_pass_phrase(char* /*out*/, int /*size*/, int /*writes*/, void* /*user*/) { return -1; }

Certificate parse_certificate(const std::string& pem) {
  if (pem.size() > kMaxPemBytes) return nullptr;
  const Bio bio = reader(pem);
  Certificate certificate(PEM_read_bio_X509(bio.get(), nullptr, no_pass_phrase, nullptr));
  ERR_clear_error();
  return certificate;
}

Key parse_key(const std::string& pem) {
  const Bio bio = reader(pem);
  Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_pass_phrase, nullptr));
  ERR_clear_error();
  return key;
}

/// Quotes within are escaped: a message puts all of it between two.
std::string name_text(const X509_NAME* name) {
  const Bio bio(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(bio.get(), name, 0,
                     XN_FLAG_ONELINE & ~(ASN1_STRFLGS_ESC_MSB | ASN1_STRFLGS_ESC_QUOTE));
  return written(bio.get());
}

std::int64_t unix_seconds(const ASN1_TIME* time) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return 0;
  return ::timegm(&parts);
}

std::string pem_of(const X509* certificate) {
  const Bio bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(bio.get(), certificate);
  return written(bio.get());
}

std::string pem_of(const EVP_PKEY* key) {
  const Bio bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_PKCS8PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr);
  return written(bio.get());
}

bool add_extension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

bool set_serial(X509* certificate) {
  const BigNumber serial(BN_new());
  return serial != nullptr &&
         BN_rand(serial.get(), kSerialBits, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) == 1 &&
         BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(certificate)) != nullptr;
}

/// All but extensions and signature.
absl::StatusOr<Certificate> begin_certificate(EVP_PKEY* key, const std::string& name,
                                              Validity validity) {
  if (name.empty() || name.size() > kMaxCommonName) {
    return absl::InvalidArgumentError(absl::StrCat("name \"", name, "\" in a certificate: 1 to ",
                                                   kMaxCommonName, " characters wanted"));
  }
  Certificate certificate(X509_new());
  X509_NAME* const subject = X509_get_subject_name(certificate.get());
  const bool done =
      X509_set_version(certificate.get(), X509_VERSION_3) == 1 && set_serial(certificate.get()) &&
      ASN1_TIME_set(X509_getm_notBefore(certificate.get()), validity.from_unix_s) != nullptr &&
      ASN1_TIME_set(X509_getm_notAfter(certificate.get()), validity.until_unix_s) != nullptr &&
      X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8,
                                 reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1,
                                 0) == 1 &&
      X509_set_pubkey(certificate.get(), key) == 1;
  if (!done) return failed("make a certificate");
  return certificate;
}

const char* usage_of(PeerRole role) {
  switch (role) {
    case PeerRole::kOperator:
    case PeerRole::kMonitor:
      return "clientAuth";
    case PeerRole::kCoordinator:
    case PeerRole::kServer:
    case PeerRole::kWorker:
      break;
  }
  return "serverAuth,clientAuth";
}

std::string names_for(PeerRole role) {
  const std::string own = "DNS:" + peer_role_dns_name(role);
  const bool answers = role != PeerRole::kOperator && role != PeerRole::kMonitor;
  return answers ? own + ",DNS:" + std::string(kDaemonDnsName) : own;
}

std::vector<std::string> dns_names_of(const X509* certificate) {
  std::vector<std::string> found;
  const Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_DNS) continue;
    found.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.dNSName)),
                       static_cast<std::size_t>(ASN1_STRING_length(name->d.dNSName)));
  }
  return found;
}

CertificateFacts facts_of(const X509* certificate) {
  return {.subject = name_text(X509_get_subject_name(certificate)),
          .issuer = name_text(X509_get_issuer_name(certificate)),
          .dns_names = dns_names_of(certificate),
          .validity = {.from_unix_s = unix_seconds(X509_get0_notBefore(certificate)),
                       .until_unix_s = unix_seconds(X509_get0_notAfter(certificate))}};
}

CertificateStack parse_chain(const std::string& pem) {
  CertificateStack stack(sk_X509_new_null());
  if (pem.size() > kMaxPemBytes) return stack;
  const Bio bio = reader(pem);
  for (int i = 0; i < kMaxChainCertificates; ++i) {
    X509* const next = PEM_read_bio_X509(bio.get(), nullptr, no_pass_phrase, nullptr);
    if (next == nullptr) break;
    sk_X509_push(stack.get(), next);
  }
  ERR_clear_error();
  return stack;
}

/// Why a certificate is not good, and which one of its chain it is about.
struct Flaw {
  int error = X509_V_OK;
  CertificateFacts of;
};

/// X509_V_OK or why not. `authorities`: one or more.
Flaw verify(STACK_OF(X509) * authorities, X509* certificate, STACK_OF(X509) * chain,
            CertificateUse use, std::int64_t now_unix_s) {
  const Store store(X509_STORE_new());
  const StoreContext context(X509_STORE_CTX_new());
  const auto add_all = [&] {
    for (int i = 0; i < sk_X509_num(authorities); ++i) {
      if (X509_STORE_add_cert(store.get(), sk_X509_value(authorities, i)) != 1) return false;
    }
    return true;
  };
  if (store == nullptr || context == nullptr || !add_all() ||
      X509_STORE_CTX_init(context.get(), store.get(), certificate, chain) != 1) {
    return {X509_V_ERR_OUT_OF_MEM, facts_of(certificate)};
  }
  X509_STORE_CTX_set_purpose(context.get(), use == CertificateUse::kCalls
                                                ? X509_PURPOSE_SSL_CLIENT
                                                : X509_PURPOSE_SSL_SERVER);
  X509_VERIFY_PARAM* const parameters = X509_STORE_CTX_get0_param(context.get());
  X509_VERIFY_PARAM_set_time(parameters, now_unix_s);
  X509_VERIFY_PARAM_set_flags(parameters, X509_V_FLAG_X509_STRICT);
  const bool good = X509_verify_cert(context.get()) == 1;
  const int error = X509_STORE_CTX_get_error(context.get());
  ERR_clear_error();
  if (good) return {};
  X509* const at = X509_STORE_CTX_get_current_cert(context.get());
  return {error == X509_V_OK ? X509_V_ERR_UNSPECIFIED : error,
          facts_of(at == nullptr ? certificate : at)};
}

/// `facts`: of the certificate that was sent.
PeerObjection objection_to(const Flaw& flaw, const CertificateFacts& facts) {
  const std::string whose = absl::StrCat("the certificate \"", facts.subject, "\" ");
  const bool is_its_own = flaw.of.subject == facts.subject;
  const std::string whose_time =
      is_its_own ? whose
                 : absl::StrCat(whose, "is good, but its authority \"", flaw.of.subject, "\" ");
  switch (flaw.error) {
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
      return {PeerRefusal::kUnknownCa,
              absl::StrCat(whose, "is signed by another authority (\"", facts.issuer,
                           "\") than ours: all nodes of a cluster need certificates of one "
                           "`poseidon tls init`; if they have, another party answers in between")};
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return {PeerRefusal::kExpired,
              absl::StrCat(whose_time, "has expired (valid until ",
                           utc_text(flaw.of.validity.until_unix_s), "): make a new one with `",
                           is_its_own ? "poseidon tls issue`"
                                      : "poseidon tls init`, for all of the cluster")};
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return {PeerRefusal::kExpired, absl::StrCat(whose_time, "is not valid yet (from ",
                                                  utc_text(flaw.of.validity.from_unix_s),
                                                  "): are the clocks of both machines right?")};
    case X509_V_ERR_INVALID_PURPOSE:
      return {PeerRefusal::kWrongRole,
              absl::StrCat(whose,
                           "is not for this side of a connection: is it an operator's where "
                           "a daemon's is needed, or the reverse?")};
    default:
      return {PeerRefusal::kBadCertificate,
              absl::StrCat(whose, "is not good: ", X509_verify_cert_error_string(flaw.error))};
  }
}

}  // namespace

absl::StatusOr<KeyPair> make_authority(const std::string& name, Validity validity) {
  const Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return failed("make a key");
  POSEIDON_ASSIGN_OR_RETURN(const Certificate certificate,
                            begin_certificate(key.get(), name, validity));
  X509* const raw = certificate.get();
  const bool done = X509_set_issuer_name(raw, X509_get_subject_name(raw)) == 1 &&
                    add_extension(raw, raw, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
                    add_extension(raw, raw, NID_key_usage, "critical,keyCertSign,cRLSign") &&
                    add_extension(raw, raw, NID_subject_key_identifier, "hash") &&
                    X509_sign(raw, key.get(), EVP_sha256()) > 0;
  if (!done) return failed("sign the authority's certificate");
  return KeyPair{.certificate_pem = pem_of(raw), .key_pem = pem_of(key.get())};
}

absl::StatusOr<KeyPair> issue_certificate(const KeyPair& authority, PeerRole role,
                                          const std::string& name, Validity validity) {
  POSEIDON_RETURN_IF_ERROR(check_key(authority.certificate_pem, authority.key_pem));
  const Certificate issuer = parse_certificate(authority.certificate_pem);
  const Key issuer_key = parse_key(authority.key_pem);
  const Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return failed("make a key");
  POSEIDON_ASSIGN_OR_RETURN(const Certificate certificate,
                            begin_certificate(key.get(), name, validity));
  X509* const raw = certificate.get();
  const bool done = X509_set_issuer_name(raw, X509_get_subject_name(issuer.get())) == 1 &&
                    add_extension(raw, issuer.get(), NID_basic_constraints, "critical,CA:FALSE") &&
                    add_extension(raw, issuer.get(), NID_key_usage, "critical,digitalSignature") &&
                    add_extension(raw, issuer.get(), NID_ext_key_usage, usage_of(role)) &&
                    add_extension(raw, issuer.get(), NID_subject_alt_name, names_for(role)) &&
                    add_extension(raw, issuer.get(), NID_subject_key_identifier, "hash") &&
                    add_extension(raw, issuer.get(), NID_authority_key_identifier, "keyid") &&
                    X509_sign(raw, issuer_key.get(), EVP_sha256()) > 0;
  if (!done) return failed("sign a certificate");
  return KeyPair{.certificate_pem = pem_of(raw), .key_pem = pem_of(key.get())};
}

absl::StatusOr<CertificateFacts> read_certificate(const std::string& pem) {
  const Certificate certificate = parse_certificate(pem);
  if (certificate == nullptr) return absl::InvalidArgumentError("there is no certificate (PEM)");
  return facts_of(certificate.get());
}

absl::Status check_key(const std::string& certificate_pem, const std::string& key_pem) {
  const Certificate certificate = parse_certificate(certificate_pem);
  if (certificate == nullptr) return absl::InvalidArgumentError("there is no certificate (PEM)");
  const Key key = parse_key(key_pem);
  if (key == nullptr) return absl::InvalidArgumentError("there is no private key (PEM)");
  const bool match = X509_check_private_key(certificate.get(), key.get()) == 1;
  ERR_clear_error();
  return match ? absl::OkStatus()
               : absl::InvalidArgumentError("the private key is not the certificate's");
}

const char* peer_refusal_name(PeerRefusal refusal) {
  switch (refusal) {
    case PeerRefusal::kHandshake:
      return "handshake";
    case PeerRefusal::kNoCertificate:
      return "no_certificate";
    case PeerRefusal::kUnknownCa:
      return "unknown_ca";
    case PeerRefusal::kExpired:
      return "expired";
    case PeerRefusal::kBadCertificate:
      return "bad_certificate";
    case PeerRefusal::kWrongRole:
      return "wrong_role";
    case PeerRefusal::kNoToken:
      return "no_token";
    case PeerRefusal::kWrongToken:
      return "wrong_token";
    case PeerRefusal::kTooMany:
      return "too_many";
    case PeerRefusal::kBrokenMessage:
      return "broken_message";
  }
  return "";
}

std::optional<PeerObjection> judge_certificate(const std::string& authority_pem,
                                               const std::string& certificate_pem,
                                               const std::string& chain_pem, CertificateUse use,
                                               RoleSet wanted, std::int64_t now_unix_s) {
  if (certificate_pem.empty()) {
    return PeerObjection{PeerRefusal::kNoCertificate,
                         "it sent no certificate: this cluster requires one (--tls-dir with a "
                         "certificate of `poseidon tls init`)"};
  }
  const CertificateStack authorities = parse_chain(authority_pem);
  const Certificate certificate = parse_certificate(certificate_pem);
  if (sk_X509_num(authorities.get()) <= 0 || certificate == nullptr) {
    return PeerObjection{PeerRefusal::kBadCertificate, "its certificate cannot be read"};
  }
  const CertificateFacts facts = facts_of(certificate.get());
  const CertificateStack chain = parse_chain(chain_pem);
  const Flaw flaw = verify(authorities.get(), certificate.get(), chain.get(), use, now_unix_s);
  if (flaw.error != X509_V_OK) return objection_to(flaw, facts);
  const RoleSet roles = roles_of_names(facts.dns_names);
  if (!roles.meets(wanted)) {
    return PeerObjection{PeerRefusal::kWrongRole,
                         absl::StrCat("the certificate \"", facts.subject, "\" is that of ",
                                      to_string(roles), ", not of ", to_string(wanted),
                                      ": is this the right machine, and the right --tls-dir?")};
  }
  return std::nullopt;
}

std::optional<std::int64_t> authority_until(const std::string& authority_pem,
                                            const std::string& certificate_pem) {
  const CertificateStack authorities = parse_chain(authority_pem);
  const Certificate certificate = parse_certificate(certificate_pem);
  std::optional<std::int64_t> until;
  for (int i = 0; certificate != nullptr && i < sk_X509_num(authorities.get()); ++i) {
    // By key too: all that `poseidon tls init` makes have one name.
    X509* const authority = sk_X509_value(authorities.get(), i);
    if (X509_check_issued(authority, certificate.get()) != X509_V_OK) continue;
    until = std::max(until.value_or(0), facts_of(authority).validity.until_unix_s);
  }
  ERR_clear_error();
  return until;
}

std::string utc_text(std::int64_t unix_s) {
  const std::time_t time = unix_s;
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text.data();
}

}  // namespace poseidon
