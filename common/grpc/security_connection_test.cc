// The real thing on loopback: a server's port with TLS or a token, and callers that belong there or
// do not. The hostile ones are stock gRPC clients, which check nothing that we would.

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "common/grpc/grpc_transport.h"
#include "common/wire/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
#include "tests/support/test_security.h"

namespace poseidon::security_connection_test {
namespace {

using testing_support::kTestDayS;
using testing_support::test_authority;
using testing_support::test_certificate;
using testing_support::test_now_s;
using testing_support::test_security;
using testing_support::write_secret;

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr std::chrono::seconds kPatience{20};

/// Takes every stream and ends it well.
class Welcome final : public Acceptor, public StreamHandler {
 public:
  StreamHandler* on_accept(std::unique_ptr<Stream> stream) override {
    ++accepted;
    streams_.push_back(std::move(stream));
    streams_.back()->close(absl::OkStatus());
    return this;
  }
  ReadNext on_message(Bytes /*message*/) override { return ReadNext::kContinue; }
  void on_written() override {}
  void on_closed(const absl::Status& /*status*/) override {}
  std::atomic<int> accepted{0};
  /// Once the loop has stopped.
  void forget() { streams_.clear(); }

 private:
  std::vector<std::unique_ptr<Stream>> streams_;  ///< the loop's
};

/// Hears how a stream ends.
class Ear final : public StreamHandler {
 public:
  ReadNext on_message(Bytes /*message*/) override { return ReadNext::kContinue; }
  void on_written() override {}
  void on_closed(const absl::Status& status) override { ended.set_value(status); }
  std::promise<absl::Status> ended;
};

class Connections : public ::testing::Test {
 protected:
  void SetUp() override {
    take_grpc_log();
    folder_ =
        fs::path(::testing::TempDir()) / ("poseidon_connection_test_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override {
    stop_server();
    fs::remove_all(folder_);
  }

  /// As a daemon has it.
  std::shared_ptr<Security> loaded(const KeyPair& of, PeerRole role) {
    return test_security(folder_ / std::to_string(++folders_), of, role);
  }
  std::shared_ptr<Security> with_token(const std::string& token) {
    write_secret(folder_ / token, token);
    auto security = Security::load({.tls_dir = "", .join_token_file = (folder_ / token).string()},
                                   PeerRole::kServer);
    EXPECT_TRUE(security.ok()) << security.status();
    return *security;
  }
  void serve(std::shared_ptr<Security> security) {
    server_security_ = security;
    server_ =
        std::make_unique<GrpcTransport>(GrpcTransportOptions{.security = std::move(security)});
    auto address = server_->listen("127.0.0.1:0", &welcome_);
    ASSERT_TRUE(address.ok()) << address.status();
    address_ = *address;
    server_->start();
  }
  void stop_server() {
    if (server_ == nullptr) return;
    server_->stop();
    welcome_.forget();
    server_.reset();
  }
  /// How a stream of ours to the server ends.
  absl::Status connect(std::shared_ptr<Security> security) {
    GrpcTransport client(GrpcTransportOptions{.security = std::move(security)});
    Ear ear;
    std::unique_ptr<Stream> stream;
    client.start();
    client.post([&] { stream = client.connect(address_, &ear); });
    auto end = ear.ended.get_future();
    EXPECT_EQ(end.wait_for(kPatience), std::future_status::ready);
    client.stop();
    return end.get();
  }
  std::shared_ptr<grpc::Channel> channel(
      const std::shared_ptr<grpc::ChannelCredentials>& credentials) const {
    grpc::ChannelArguments arguments;
    arguments.SetString(GRPC_SSL_TARGET_NAME_OVERRIDE_ARG, "server.poseidon.internal");
    return grpc::CreateCustomChannel(address_, credentials, arguments);
  }
  /// The status that a stock gRPC client gets from `method`.
  grpc::Status call(const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                    const std::string& method) const {
    return call(channel(credentials), method);
  }
  static grpc::Status call(const std::shared_ptr<grpc::Channel>& channel,
                           const std::string& method) {
    grpc::GenericStub stub(channel);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    const grpc::Slice empty("");
    const grpc::ByteBuffer nothing(&empty, 1);
    grpc::Status status;
    grpc::ByteBuffer answer;
    std::promise<void> done;
    stub.UnaryCall(&context, method, {}, &nothing, &answer, [&](grpc::Status ended) {
      status = std::move(ended);
      done.set_value();
    });
    done.get_future().wait();
    return status;
  }
  static std::shared_ptr<grpc::ChannelCredentials> stock(const KeyPair& trusts,
                                                         const KeyPair& own) {
    return grpc::SslCredentials({.pem_root_certs = trusts.certificate_pem,
                                 .pem_private_key = own.key_pem,
                                 .pem_cert_chain = own.certificate_pem});
  }
  std::string exchange() const { return std::string(kExchangeMethod); }
  std::uint64_t refused(PeerRefusal refusal) const { return server_security_->refused(refusal); }

  const KeyPair ours_ = test_authority();
  fs::path folder_;
  int folders_ = 0;
  Welcome welcome_;
  std::shared_ptr<Security> server_security_;
  std::unique_ptr<GrpcTransport> server_;
  std::string address_;
};

TEST_F(Connections, WhoBelongsIsLetInByOursAndStockClients) {
  serve(loaded(ours_, PeerRole::kServer));
  EXPECT_TRUE(connect(loaded(ours_, PeerRole::kWorker)).ok());
  EXPECT_EQ(welcome_.accepted, 1);
  const grpc::Status stocks =
      call(stock(ours_, test_certificate(ours_, PeerRole::kWorker)), exchange());
  EXPECT_NE(stocks.error_code(), grpc::StatusCode::UNAVAILABLE) << stocks.error_message();
  EXPECT_EQ(welcome_.accepted, 2);
  for (std::size_t r = 0; r < kPeerRefusals; ++r) {
    if (static_cast<PeerRefusal>(r) == PeerRefusal::kHandshake) continue;  // of the whole process
    EXPECT_EQ(refused(static_cast<PeerRefusal>(r)), 0U) << r;
  }
}

TEST_F(Connections, AWrongRoleIsToldAndCounted) {
  serve(loaded(ours_, PeerRole::kServer));
  const absl::Status ours = connect(loaded(ours_, PeerRole::kOperator));
  EXPECT_TRUE(absl::IsPermissionDenied(ours)) << ours;
  EXPECT_THAT(std::string(ours.message()), HasSubstr("is for the certificate of a worker"));
  const grpc::Status stocks =
      call(stock(ours_, test_certificate(ours_, PeerRole::kServer)), exchange());
  EXPECT_EQ(stocks.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(refused(PeerRefusal::kWrongRole), 2U);
  EXPECT_EQ(welcome_.accepted, 0);
}

/// One that another tool has made, from a request that named more than it should.
KeyPair certificate_with_names(const KeyPair& authority, const std::string& names) {
  const auto bio_of = [](const std::string& pem) {
    return std::unique_ptr<BIO, decltype(&BIO_free)>(
        BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free);
  };
  const std::unique_ptr<X509, decltype(&X509_free)> issuer(
      PEM_read_bio_X509(bio_of(authority.certificate_pem).get(), nullptr, nullptr, nullptr),
      X509_free);
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> issuer_key(
      PEM_read_bio_PrivateKey(bio_of(authority.key_pem).get(), nullptr, nullptr, nullptr),
      EVP_PKEY_free);
  // All that ours have, but for the names.
  KeyPair made = test_certificate(authority, PeerRole::kServer);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(
      PEM_read_bio_X509(bio_of(made.certificate_pem).get(), nullptr, nullptr, nullptr), X509_free);
  const int place = X509_get_ext_by_NID(certificate.get(), NID_subject_alt_name, -1);
  X509_EXTENSION_free(X509_delete_ext(certificate.get(), place));
  const std::unique_ptr<X509_EXTENSION, decltype(&X509_EXTENSION_free)> extension(
      X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, names.c_str()),
      X509_EXTENSION_free);
  X509_add_ext(certificate.get(), extension.get(), -1);
  EXPECT_GT(X509_sign(certificate.get(), issuer_key.get(), EVP_sha256()), 0);
  const std::unique_ptr<BIO, decltype(&BIO_free)> out(BIO_new(BIO_s_mem()), BIO_free);
  PEM_write_bio_X509(out.get(), certificate.get());
  char* text = nullptr;
  const long size = BIO_get_mem_data(out.get(), &text);
  made.certificate_pem.assign(text, static_cast<std::size_t>(size));
  return made;
}

TEST_F(Connections, ARoleIsADnsNameAndNoOther) {
  serve(loaded(ours_, PeerRole::kServer));
  const auto hears = [&](const std::string& names) {
    return call(stock(ours_, certificate_with_names(ours_, names)), exchange()).error_code();
  };
  const std::string server = "DNS:server.poseidon.internal";
  EXPECT_EQ(hears(server + ",URI:worker.poseidon.internal,email:worker.poseidon.internal"),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(refused(PeerRefusal::kWrongRole), 1U);
  EXPECT_EQ(welcome_.accepted, 0);
  EXPECT_NE(hears(server + ",DNS:worker.poseidon.internal"), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(welcome_.accepted, 1);
}

TEST_F(Connections, ACertificateThatExpiresMakesNoMoreCallsOnItsOldConnection) {
  serve(loaded(ours_, PeerRole::kServer));
  const auto soon =
      channel(stock(ours_, test_certificate(ours_, PeerRole::kWorker, test_now_s() + 3)));
  EXPECT_NE(call(soon, exchange()).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(welcome_.accepted, 1);
  grpc::Status status;
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  do {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    status = call(soon, exchange());
  } while (status.error_code() != grpc::StatusCode::UNAUTHENTICATED &&
           std::chrono::steady_clock::now() < deadline);
  EXPECT_THAT(status.error_message(), AllOf(HasSubstr("has expired at"), HasSubstr("tls issue")));
  EXPECT_EQ(refused(PeerRefusal::kExpired), 1U) << "by no handshake";
}

TEST_F(Connections, ExpiredCertificatesEndInTheHandshake) {
  serve(loaded(ours_, PeerRole::kServer));
  const KeyPair old = test_certificate(ours_, PeerRole::kWorker, test_now_s() - kTestDayS);
  EXPECT_EQ(call(stock(ours_, old), exchange()).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_GE(refused(PeerRefusal::kExpired), 1U);
  EXPECT_EQ(welcome_.accepted, 0);
}

TEST_F(Connections, CertificatesOfAnotherAuthorityEndInTheHandshake) {
  serve(loaded(ours_, PeerRole::kServer));
  const KeyPair theirs = test_authority();
  EXPECT_EQ(
      call(stock(ours_, test_certificate(theirs, PeerRole::kWorker)), exchange()).error_code(),
      grpc::StatusCode::UNAVAILABLE);
  EXPECT_GE(refused(PeerRefusal::kUnknownCa), 1U);
  // Ours trusts its own authority alone, says so, and counts too.
  const auto client = loaded(theirs, PeerRole::kWorker);
  const absl::Status end = connect(client);
  EXPECT_THAT(std::string(end.message()), HasSubstr("is signed by another authority"));
  EXPECT_GE(client->refused(PeerRefusal::kUnknownCa), 1U);
  EXPECT_EQ(welcome_.accepted, 0);
}

TEST_F(Connections, TheLogSaysWhoMayHaveBeenTurnedAway) {
  // Stays until the end: gRPC's threads may write to it.
  static std::ostringstream log;
  spdlog::default_logger()->sinks().push_back(
      std::make_shared<spdlog::sinks::ostream_sink_mt>(log));
  serve(loaded(ours_, PeerRole::kServer));
  const KeyPair theirs = test_authority();
  (void)call(stock(ours_, test_certificate(theirs, PeerRole::kWorker)), exchange());
  (void)connect(loaded(theirs, PeerRole::kWorker));
  (void)connect(Security::none());
  stop_server();
  EXPECT_THAT(log.str(), ContainsRegex("from a peer \\(unknown_ca\\): .*; connected to us in the "
                                       "last 10 s: 127\\.0\\.0\\.1\n"));
  EXPECT_THAT(log.str(), HasSubstr("refused a connection to 127.0.0.1 (unknown_ca)"));
  EXPECT_THAT(log.str(), ContainsRegex("a TLS handshake failed: .*; connected to us in the last "
                                       "10 s: 127\\.0\\.0\\.1\n"));
}

TEST_F(Connections, NoCertificateEndsInTheHandshake) {
  serve(loaded(ours_, PeerRole::kServer));
  const auto nobody = grpc::SslCredentials({.pem_root_certs = ours_.certificate_pem});
  EXPECT_EQ(call(nobody, exchange()).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_GE(refused(PeerRefusal::kNoCertificate), 1U);
  EXPECT_EQ(welcome_.accepted, 0);
}

TEST_F(Connections, AnotherRolesPortIsNotTalkedTo) {
  serve(loaded(ours_, PeerRole::kWorker));  // in a server's place
  const auto client = loaded(ours_, PeerRole::kWorker);
  const absl::Status end = connect(client);
  EXPECT_THAT(std::string(end.message()), HasSubstr("is that of a worker, not of a server"));
  EXPECT_GE(client->refused(PeerRefusal::kWrongRole), 1U);
}

TEST_F(Connections, PlainTextAndTlsDoNotMix) {
  serve(loaded(ours_, PeerRole::kServer));
  const std::uint64_t before = refused(PeerRefusal::kHandshake);
  const absl::Status plain = connect(Security::none());
  EXPECT_THAT(std::string(plain.message()), HasSubstr("Then --tls-dir is needed here too"));
  EXPECT_GT(refused(PeerRefusal::kHandshake), before);
  stop_server();
  serve(Security::none());
  const absl::Status tls = connect(loaded(ours_, PeerRole::kWorker));
  EXPECT_THAT(std::string(tls.message()), HasSubstr("does the other side speak plain text?"));
  EXPECT_EQ(welcome_.accepted, 0);
}

TEST_F(Connections, TokensLetInWhoHasTheSame) {
  serve(with_token("0123456789abcdef"));
  EXPECT_TRUE(connect(with_token("0123456789abcdef")).ok());
  EXPECT_EQ(welcome_.accepted, 1);
  const absl::Status wrong = connect(with_token("0123456789abcdeg"));
  EXPECT_TRUE(absl::IsUnauthenticated(wrong));
  EXPECT_THAT(std::string(wrong.message()),
              AllOf(HasSubstr("--join-token-file"), ::testing::Not(HasSubstr("0123456789abcde"))));
  EXPECT_TRUE(absl::IsUnauthenticated(connect(Security::none())));
  EXPECT_EQ(refused(PeerRefusal::kWrongToken), 1U);
  EXPECT_EQ(refused(PeerRefusal::kNoToken), 1U);
  EXPECT_EQ(welcome_.accepted, 1);
}

}  // namespace
}  // namespace poseidon::security_connection_test
