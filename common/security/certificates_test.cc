#include "common/security/certificates.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::certificates_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kNow = 1'800'000'000;
constexpr std::int64_t kDay = 86400;
constexpr Validity kAYear{.from_unix_s = kNow - kDay, .until_unix_s = kNow + 365 * kDay};

class Certificates : public ::testing::Test {
 protected:
  static KeyPair authority(const std::string& name = "our authority", Validity validity = kAYear) {
    auto made = make_authority(name, validity);
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }
  static KeyPair node(const KeyPair& authority, PeerRole role, Validity validity = kAYear) {
    auto made = issue_certificate(authority, role, "node-1", validity);
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }
  std::optional<PeerObjection> judge(const KeyPair& node, CertificateUse use, RoleSet wanted,
                                     std::int64_t now = kNow) const {
    return judge_certificate(ours_.certificate_pem, node.certificate_pem, node.certificate_pem, use,
                             wanted, now);
  }
  const KeyPair ours_ = authority();
};

TEST_F(Certificates, AreGoodForTheirRoleAndUse) {
  const RoleSet worker{PeerRole::kWorker};
  const KeyPair made = node(ours_, PeerRole::kWorker);
  EXPECT_FALSE(judge(made, CertificateUse::kCalls, worker));
  EXPECT_FALSE(judge(made, CertificateUse::kAnswers, worker));
  const auto facts = read_certificate(made.certificate_pem);
  ASSERT_TRUE(facts.ok());
  EXPECT_EQ(facts->subject, "CN = node-1");
  EXPECT_EQ(facts->issuer, "CN = our authority");
  EXPECT_THAT(facts->dns_names, ElementsAre("worker.poseidon.internal", kDaemonDnsName));
  EXPECT_EQ(facts->validity.from_unix_s, kAYear.from_unix_s);
  EXPECT_EQ(facts->validity.until_unix_s, kAYear.until_unix_s);
  EXPECT_TRUE(check_key(made.certificate_pem, made.key_pem).ok());
}

TEST_F(Certificates, ASubjectDoesNotEndItsQuotes) {
  const auto strange = issue_certificate(ours_, PeerRole::kWorker, R"(a",b\)", kAYear);
  ASSERT_TRUE(strange.ok()) << strange.status();
  EXPECT_EQ(read_certificate(strange->certificate_pem)->subject, R"(CN = a\"\,b\\)");
}

TEST_F(Certificates, AWorkersIsNoCoordinators) {
  const auto objection =
      judge(node(ours_, PeerRole::kWorker), CertificateUse::kAnswers, {PeerRole::kCoordinator});
  ASSERT_TRUE(objection);
  EXPECT_EQ(objection->refusal, PeerRefusal::kWrongRole);
  EXPECT_THAT(objection->message, HasSubstr("a worker, not of a coordinator"));
}

TEST_F(Certificates, AnOperatorsAnswersNobody) {
  const auto objection =
      judge(node(ours_, PeerRole::kOperator), CertificateUse::kAnswers, {PeerRole::kOperator});
  ASSERT_TRUE(objection);
  EXPECT_EQ(objection->refusal, PeerRefusal::kWrongRole);
}

TEST_F(Certificates, OfAnotherAuthorityAreRefusedWhateverItsName) {
  const KeyPair theirs = authority();  // the same name
  const auto objection =
      judge(node(theirs, PeerRole::kWorker), CertificateUse::kCalls, {PeerRole::kWorker});
  ASSERT_TRUE(objection);
  EXPECT_EQ(objection->refusal, PeerRefusal::kUnknownCa) << objection->message;
  const auto named = judge(node(authority("their authority"), PeerRole::kWorker),
                           CertificateUse::kCalls, {PeerRole::kWorker});
  ASSERT_TRUE(named);
  EXPECT_EQ(named->refusal, PeerRefusal::kUnknownCa);
  EXPECT_THAT(named->message, HasSubstr("their authority"));
}

TEST_F(Certificates, TheirAuthorityInTheChainHelpsNobody) {
  const KeyPair theirs = authority("their authority");
  const KeyPair made = node(theirs, PeerRole::kWorker);
  const auto objection = judge_certificate(ours_.certificate_pem, made.certificate_pem,
                                           made.certificate_pem + theirs.certificate_pem,
                                           CertificateUse::kCalls, {PeerRole::kWorker}, kNow);
  ASSERT_TRUE(objection);
  EXPECT_EQ(objection->refusal, PeerRefusal::kUnknownCa) << objection->message;
}

TEST_F(Certificates, ANodesCertificateMakesNoOthers) {
  const KeyPair server = node(ours_, PeerRole::kServer);
  const KeyPair forged = node(server, PeerRole::kCoordinator);  // signed by a node
  const auto objection =
      judge_certificate(ours_.certificate_pem, forged.certificate_pem,
                        forged.certificate_pem + server.certificate_pem, CertificateUse::kAnswers,
                        {PeerRole::kCoordinator}, kNow);
  ASSERT_TRUE(objection);
  EXPECT_NE(objection->refusal, PeerRefusal::kWrongRole) << objection->message;
}

TEST_F(Certificates, HaveTheirTime) {
  const KeyPair made = node(ours_, PeerRole::kWorker, {kNow - 10 * kDay, kNow + 10 * kDay});
  const RoleSet worker{PeerRole::kWorker};
  EXPECT_FALSE(judge(made, CertificateUse::kCalls, worker, kNow));
  const auto late = judge(made, CertificateUse::kCalls, worker, kNow + 11 * kDay);
  ASSERT_TRUE(late);
  EXPECT_EQ(late->refusal, PeerRefusal::kExpired);
  EXPECT_THAT(late->message, HasSubstr("expired (valid until 2027-01-25 08:00:00 UTC)"));
  const auto orphan = judge(node(ours_, PeerRole::kWorker, {kNow - kDay, kNow + 1000 * kDay}),
                            CertificateUse::kCalls, worker, kNow + 366 * kDay);
  ASSERT_TRUE(orphan);
  EXPECT_EQ(orphan->refusal, PeerRefusal::kExpired);
  EXPECT_THAT(orphan->message,
              ::testing::AllOf(HasSubstr("its authority \"CN = our authority\" has"),
                               HasSubstr("poseidon tls init")));
  // The authority of this test begins a day before kNow.
  const auto early = judge(made, CertificateUse::kCalls, worker, kNow - 11 * kDay);
  ASSERT_TRUE(early);
  EXPECT_EQ(early->refusal, PeerRefusal::kExpired);
  EXPECT_THAT(early->message, HasSubstr("not valid yet"));
}

TEST_F(Certificates, TheEndOfWhoSignedThemIsKnown) {
  const std::string made = node(ours_, PeerRole::kWorker).certificate_pem;
  const KeyPair same_name = authority("our authority", {kNow, kNow + 1000 * kDay});
  EXPECT_EQ(authority_until(ours_.certificate_pem, made), kAYear.until_unix_s);
  EXPECT_EQ(authority_until(same_name.certificate_pem + ours_.certificate_pem, made),
            kAYear.until_unix_s)
      << "the new one, for which others are made";
  EXPECT_EQ(authority_until(same_name.certificate_pem, made), std::nullopt);
  EXPECT_EQ(authority_until(ours_.certificate_pem, "hello"), std::nullopt);
}

TEST_F(Certificates, NoneAndNonsenseAreTold) {
  const RoleSet worker{PeerRole::kWorker};
  const auto none = judge({}, CertificateUse::kCalls, worker);
  ASSERT_TRUE(none);
  EXPECT_EQ(none->refusal, PeerRefusal::kNoCertificate);
  const auto nonsense = judge({.certificate_pem = "-----BEGIN CERTIFICATE-----\nAAAA\n"},
                              CertificateUse::kCalls, worker);
  ASSERT_TRUE(nonsense);
  EXPECT_EQ(nonsense->refusal, PeerRefusal::kBadCertificate);
  EXPECT_FALSE(read_certificate("hello").ok());
}

TEST_F(Certificates, KeysBelongToCertificates) {
  const KeyPair one = node(ours_, PeerRole::kWorker);
  const KeyPair two = node(ours_, PeerRole::kWorker);
  EXPECT_THAT(std::string(check_key(one.certificate_pem, two.key_pem).message()),
              HasSubstr("not the certificate's"));
  EXPECT_THAT(std::string(check_key(one.certificate_pem, "").message()),
              HasSubstr("no private key"));
  EXPECT_FALSE(
      issue_certificate({one.certificate_pem, two.key_pem}, PeerRole::kWorker, "n", kAYear).ok());
  EXPECT_FALSE(issue_certificate(ours_, PeerRole::kWorker, "", kAYear).ok());
}

}  // namespace
}  // namespace poseidon::certificates_test
