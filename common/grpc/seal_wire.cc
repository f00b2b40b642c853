#include "common/grpc/seal_wire.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "poseidon/v1/stream.pb.h"

namespace poseidon {
namespace {

/// A request or a grant is smaller.
constexpr std::size_t kMaxAgreementBytes = 256;

void forget(std::string& text) { forget_secret(text.data(), text.size()); }

void forget(v1::SealGrant& grant) {
  forget(*grant.mutable_to_server());
  forget(*grant.mutable_to_caller());
}

std::optional<v1::SealAgreement> parse(const Bytes& message) {
  if (message.size() > kMaxAgreementBytes) return std::nullopt;
  std::string text = joined(message);
  v1::SealAgreement agreement;
  const bool is_whole = agreement.ParseFromString(text);
  forget(text);
  if (!is_whole) return std::nullopt;
  return agreement;
}

template <typename Array>
bool read_exactly(const std::string& text, Array& out) {
  if (text.size() != out.size()) return false;
  std::memcpy(out.data(), text.data(), out.size());
  return true;
}

template <typename Array>
std::string text_of(const Array& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::string encode_seal_request() {
  v1::SealAgreement agreement;
  agreement.mutable_request()->set_version(kSealVersion);
  return agreement.SerializeAsString();
}

std::optional<std::uint32_t> read_seal_request(const Bytes& message) {
  const auto agreement = parse(message);
  if (!agreement || !agreement->has_request()) return std::nullopt;
  return agreement->request().version();
}

std::string encode_seal_grant(const SealGrant& grant) {
  v1::SealAgreement agreement;
  v1::SealGrant& out = *agreement.mutable_grant();
  out.set_ticket(text_of(grant.ticket));
  out.set_to_server(text_of(grant.secrets.to_server));
  out.set_to_caller(text_of(grant.secrets.to_caller));
  std::string text = agreement.SerializeAsString();
  forget(out);
  return text;
}

std::optional<SealGrant> read_seal_grant(const Bytes& message) {
  auto agreement = parse(message);
  if (!agreement || !agreement->has_grant()) return std::nullopt;
  SealGrant grant;
  const bool is_whole = read_exactly(agreement->grant().ticket(), grant.ticket) &&
                        read_exactly(agreement->grant().to_server(), grant.secrets.to_server) &&
                        read_exactly(agreement->grant().to_caller(), grant.secrets.to_caller);
  forget(*agreement->mutable_grant());
  return is_whole ? std::optional(grant) : std::nullopt;
}

std::string encode_seal_end(const absl::Status& status) {
  const auto code = static_cast<std::uint32_t>(status.code());
  std::string text;
  for (int i = 0; i < 4; ++i) text.push_back(static_cast<char>(code >> (8 * i)));
  return absl::StrCat(text, status.message().substr(0, kMaxSealEndBytes - 4));
}

std::optional<absl::Status> decode_seal_end(std::string_view text) {
  if (text.size() < 4 || text.size() > kMaxSealEndBytes) return std::nullopt;
  std::uint32_t code = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    code |= std::uint32_t{static_cast<unsigned char>(text[i])} << (8 * i);
  }
  if (code > static_cast<std::uint32_t>(absl::StatusCode::kUnauthenticated)) return std::nullopt;
  return absl::Status(static_cast<absl::StatusCode>(code), to_absl(text.substr(4)));
}

}  // namespace poseidon
