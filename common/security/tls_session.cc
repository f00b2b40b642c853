#include "common/security/tls_session.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/security/security.h"

namespace poseidon {
namespace {

/// One byte of length, and the name of the protocol inside TLS with its version.
constexpr std::array<unsigned char, 18> kStreamProtocol{
    17, 'p', 'o', 's', 'e', 'i', 'd', 'o', 'n', '-', 's', 't', 'r', 'e', 'a', 'm', '/', '1'};
/// AES-128 is first: with OpenSSL 3.0 it costs no more than AES-256, elsewhere less.
constexpr const char* kCiphers =
    "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";
/// OpenSSL reads so much from a socket at a time: two records. Before each record it moves all that
/// it has read to the beginning of its buffer, so a larger buffer costs more than it saves.
constexpr std::size_t kReadBytes = std::size_t{33} << 10;
/// A sixth of what RFC 8446, 5.5, allows AES-GCM with full records.
constexpr std::size_t kKeyBytes = std::size_t{64} << 30;

using TlsBio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using TlsCertificate = std::unique_ptr<X509, decltype(&X509_free)>;

std::string last_tls_error() {
  const unsigned long error = ERR_peek_last_error();
  const char* const reason = ERR_reason_error_string(error);
  return reason != nullptr ? reason : absl::StrCat("error ", error);
}

std::string tls_pem_of(X509* certificate) {
  if (certificate == nullptr) return "";
  const TlsBio out(BIO_new(BIO_s_mem()), BIO_free);
  PEM_write_bio_X509(out.get(), certificate);
  char* text = nullptr;
  const long size = BIO_get_mem_data(out.get(), &text);
  return {text, static_cast<std::size_t>(size)};
}

std::string tls_pem_of(STACK_OF(X509) * certificates) {
  std::string all;
  for (int i = 0; i < sk_X509_num(certificates); ++i) {
    all += tls_pem_of(sk_X509_value(certificates, i));
  }
  return all;
}

TlsBio tls_bio_of(const std::string& pem) {
  return {BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free};
}

bool use_identity(SSL_CTX* context, const TlsIdentity& identity) {
  const TlsBio certificates = tls_bio_of(identity.certificate_pem),
               keys = tls_bio_of(identity.key_pem);
  const TlsCertificate own(PEM_read_bio_X509(certificates.get(), nullptr, nullptr, nullptr),
                           X509_free);
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
      PEM_read_bio_PrivateKey(keys.get(), nullptr, nullptr, nullptr), EVP_PKEY_free);
  if (own == nullptr || key == nullptr || SSL_CTX_use_certificate(context, own.get()) != 1 ||
      SSL_CTX_use_PrivateKey(context, key.get()) != 1) {
    return false;
  }
  while (X509* next = PEM_read_bio_X509(certificates.get(), nullptr, nullptr, nullptr)) {
    if (SSL_CTX_add0_chain_cert(context, next) != 1) {
      X509_free(next);
      return false;
    }
  }
  ERR_clear_error();  // the end of the file
  return true;
}

int choose_protocol(SSL* /*ssl*/, const unsigned char** out, unsigned char* out_bytes,
                    const unsigned char* offered, unsigned offered_bytes, void* /*unused*/) {
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_bytes, kStreamProtocol.data(), kStreamProtocol.size(),
                            offered, offered_bytes) != OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

/// The TLS alert that tells the other end our objection.
int verify_error(PeerRefusal refusal) {
  switch (refusal) {
    case PeerRefusal::kUnknownCa:
      return X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY;
    case PeerRefusal::kExpired:
      return X509_V_ERR_CERT_HAS_EXPIRED;
    default:
      return X509_V_ERR_CERT_UNTRUSTED;
  }
}

}  // namespace

// ---- shared by all connections ----

absl::StatusOr<std::shared_ptr<const TlsContext>> TlsContext::make(const TlsIdentity& identity,
                                                                   End end) {
  ERR_clear_error();
  const std::shared_ptr<SSL_CTX> context(
      SSL_CTX_new(end == End::kCalls ? TLS_client_method() : TLS_server_method()), SSL_CTX_free);
  const bool is_made =
      context != nullptr && SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION) == 1 &&
      SSL_CTX_set_ciphersuites(context.get(), kCiphers) == 1 &&
      SSL_CTX_set_num_tickets(context.get(), 0) == 1 && use_identity(context.get(), identity) &&
      SSL_CTX_set_alpn_protos(context.get(), kStreamProtocol.data(), kStreamProtocol.size()) == 0;
  if (!is_made) {
    return absl::InvalidArgumentError(
        absl::StrCat("OpenSSL does not take the certificate or key: ", last_tls_error()));
  }
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context.get(),
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
#ifdef SSL_OP_ENABLE_KTLS
  SSL_CTX_set_options(context.get(), SSL_OP_ENABLE_KTLS);
#endif
  SSL_CTX_set_alpn_select_cb(context.get(), choose_protocol, nullptr);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_cert_verify_callback(context.get(), &TlsSession::verify, nullptr);
  return std::shared_ptr<const TlsContext>(new TlsContext(context, end));
}

// ---- one connection ----

TlsSession::TlsSession(const TlsContext& context, int socket, Judge judge)
    : judge_(std::move(judge)), ssl_(SSL_new(context.context_.get()), SSL_free) {
  POSEIDON_CHECK(ssl_ != nullptr && SSL_set_fd(ssl_.get(), socket) == 1, "there is memory for TLS");
  SSL_set_app_data(ssl_.get(), this);
  if (context.end() == TlsContext::End::kCalls) {
    SSL_set_connect_state(ssl_.get());
  } else {
    SSL_set_accept_state(ssl_.get());
  }
}

TlsSession::~TlsSession() = default;

int TlsSession::verify(X509_STORE_CTX* store, void* /*unused*/) {
  auto* const ssl =
      static_cast<SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
  auto* const session = static_cast<TlsSession*>(SSL_get_app_data(ssl));
  session->objection_ = session->judge_(tls_pem_of(X509_STORE_CTX_get0_cert(store)),
                                        tls_pem_of(X509_STORE_CTX_get0_untrusted(store)));
  X509_STORE_CTX_set_error(
      store, session->objection_ ? verify_error(session->objection_->refusal) : X509_V_OK);
  return session->objection_ ? 0 : 1;
}

TlsSession::Result TlsSession::handshake() {
  ERR_clear_error();
  const int returned = SSL_do_handshake(ssl_.get());
  if (returned != 1) {
    const bool shows_none =
        ERR_GET_REASON(ERR_peek_error()) == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE;
    if (shows_none && !objection_) objection_ = judge_("", "");
    Result result = failure(returned);
    if (objection_) result = {Outcome::kJudged, 0, objection_->message};
    return result;
  }
  const unsigned char* protocol = nullptr;
  unsigned protocol_bytes = 0;
  SSL_get0_alpn_selected(ssl_.get(), &protocol, &protocol_bytes);
  if (protocol_bytes == 0) {
    is_over_ = true;
    return {Outcome::kBroken, 0, "the other side speaks another protocol inside TLS"};
  }
  // Strangers do not get the large buffers.
  SSL_free_buffers(ssl_.get());
  SSL_set_default_read_buffer_len(ssl_.get(), kReadBytes);
  SSL_set_read_ahead(ssl_.get(), 1);
  return {};
}

TlsSession::Result TlsSession::read(absl::Span<std::byte> room) {
  ERR_clear_error();
  std::size_t bytes = 0;
  const int returned = SSL_read_ex(ssl_.get(), room.data(), room.size(), &bytes);
  return returned == 1 ? Result{Outcome::kDone, bytes, ""} : failure(returned);
}

TlsSession::Result TlsSession::write(absl::Span<const std::byte> bytes) {
  ERR_clear_error();
  std::size_t written = 0;
  const int returned = SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &written);
  if (returned != 1) return failure(returned);
  renew_key_in_time(written);
  return {Outcome::kDone, written, ""};
}

void TlsSession::renew_key_in_time(std::size_t written) {
  since_key_ += written;
  // The kernel does not renew keys: it ends a connection whose counter is used up.
  if (since_key_ < kKeyBytes || BIO_get_ktls_send(SSL_get_wbio(ssl_.get())) != 0) return;
  since_key_ = 0;
  SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED);
}

void TlsSession::close_notify() {
  if (is_over_ || SSL_is_init_finished(ssl_.get()) == 0) return;
  ERR_clear_error();
  SSL_shutdown(ssl_.get());
  ERR_clear_error();
}

TlsSession::Result TlsSession::failure(int returned) {
  const int system_error = errno;
  switch (SSL_get_error(ssl_.get(), returned)) {
    case SSL_ERROR_WANT_READ:
      return {Outcome::kWantsRead, 0, ""};
    case SSL_ERROR_WANT_WRITE:
      return {Outcome::kWantsWrite, 0, ""};
    case SSL_ERROR_ZERO_RETURN:
      return {Outcome::kClosed, 0, "the other end closed it within the stream"};
    case SSL_ERROR_SYSCALL:
      is_over_ = true;
      return {Outcome::kCut, 0,
              system_error != 0 ? std::generic_category().message(system_error) : "it ended"};
    default:
      break;
  }
  is_over_ = true;
  const int reason = ERR_GET_REASON(ERR_peek_error());
  std::string what = last_tls_error();
  ERR_clear_error();
  if (reason == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
    return {Outcome::kCut, 0, "it ended without being closed"};
  }
  // OpenSSL numbers received alerts from here on.
  const bool is_alert = reason > SSL_AD_REASON_OFFSET && reason <= SSL_AD_REASON_OFFSET + 255;
  return {is_alert ? Outcome::kAlert : Outcome::kBroken, 0, std::move(what)};
}

CertificateFacts TlsSession::peer_certificate() const {
  const TlsCertificate shown(SSL_get1_peer_certificate(ssl_.get()), X509_free);
  return read_certificate(tls_pem_of(shown.get())).value_or(CertificateFacts());
}

std::string TlsSession::description() const {
  const auto by = [](bool kernel) { return kernel ? "the kernel" : "OpenSSL"; };
  return absl::StrCat(SSL_get_cipher_name(ssl_.get()), ", encrypted by ",
                      by(BIO_get_ktls_send(SSL_get_wbio(ssl_.get())) != 0), ", decrypted by ",
                      by(BIO_get_ktls_recv(SSL_get_rbio(ssl_.get())) != 0));
}

}  // namespace poseidon
