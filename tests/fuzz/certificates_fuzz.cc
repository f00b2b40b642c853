// The input of an unauthenticated peer: a certificate and its chain.
//
// The first byte chooses whether the rest is PEM or DER (several in sequence; base64 would hide
// them from the fuzzer), and the purpose to check. The first certificate is the peer's, all of them
// are its chain, and the last one is our authority.
//
// OpenSSL itself is not instrumented: only its heap errors are detected.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "common/base/check.h"
#include "common/base/text.h"
#include "common/security/certificates.h"
#include "tests/fuzz/input.h"

namespace poseidon::fuzz {
namespace {

constexpr std::int64_t kNow = 1'800'000'000;  // that of the seeds
constexpr std::string_view kBegin = "-----BEGIN CERTIFICATE-----\n";
constexpr std::string_view kEnd = "-----END CERTIFICATE-----\n";
constexpr std::size_t kLineLetters = 64;

/// Cuts off the first DER element, or takes what there is of it.
std::string_view first_element(std::string_view& rest) {
  const auto at = [&rest](std::size_t i) {
    return i < rest.size() ? static_cast<unsigned char>(rest[i]) : 0u;
  };
  std::size_t size = 2 + at(1);
  if (at(1) == 0x81) size = 3 + at(2);
  if (at(1) == 0x82) size = 4 + at(2) * 256 + at(3);
  const std::string_view element = rest.substr(0, size);
  rest.remove_prefix(element.size());
  return element;
}

std::string pem_of(std::string_view der) {
  const std::string text = absl::Base64Escape(to_absl(der));
  std::string pem(kBegin);
  for (std::size_t from = 0; from < text.size(); from += kLineLetters) {
    pem += text.substr(from, kLineLetters) + "\n";
  }
  return pem.append(kEnd);
}

/// One text for each certificate; the last one may be anything.
std::vector<std::string> texts(std::string_view rest, bool is_der) {
  std::vector<std::string> found;
  while (!rest.empty()) {
    if (is_der) {
      found.push_back(pem_of(first_element(rest)));
      continue;
    }
    const std::size_t end = rest.find(kEnd);
    const std::size_t size = end == std::string_view::npos ? rest.size() : end + kEnd.size();
    found.emplace_back(rest.substr(0, size));
    rest.remove_prefix(size);
  }
  return found;
}

/// For a line of a log and for a message of gRPC.
void check_text(const std::string& text) {
  POSEIDON_CHECK(std::none_of(text.begin(), text.end(), is_control), "no control character");
  POSEIDON_CHECK(to_utf8(text) == text, "UTF-8");
}

}  // namespace
}  // namespace poseidon::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace poseidon;
  fuzz::Input input(data, size);
  const std::uint8_t how = input.byte();
  const std::vector<std::string> found = fuzz::texts(input.rest(), (how & 1) != 0);
  const std::string own = found.empty() ? "" : found.front();
  const std::string authority = found.empty() ? "" : found.back();
  std::string chain;
  for (const std::string& text : found) chain += text;

  const auto facts = read_certificate(own);
  if (facts.ok()) {
    fuzz::check_text(facts->subject);
    fuzz::check_text(facts->issuer);
    (void)utc_text(facts->validity.from_unix_s);
    (void)utc_text(facts->validity.until_unix_s);
  }
  RoleSet wanted;
  for (const PeerRole role : kAllPeerRoles) {
    if ((how >> (2 + static_cast<unsigned>(role)) & 1) != 0) wanted.add(role);
  }
  const auto use = (how & 2) != 0 ? CertificateUse::kAnswers : CertificateUse::kCalls;
  const auto objection = judge_certificate(authority, own, chain, use, wanted, fuzz::kNow);
  if (objection) {
    POSEIDON_CHECK(!objection->message.empty(), "it is said why");
    fuzz::check_text(objection->message);
    return 0;
  }
  POSEIDON_CHECK(facts.ok(), "only a certificate is good");
  POSEIDON_CHECK(roles_of_names(facts->dns_names).meets(wanted), "its role is wanted");
  POSEIDON_CHECK(
      facts->validity.from_unix_s <= fuzz::kNow && fuzz::kNow <= facts->validity.until_unix_s,
      "it is valid");
  return 0;
}
