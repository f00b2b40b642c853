#include "sync/links/peer_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace poseidon {

PeerDoor::PeerDoor(Transport* transport, RefusalCounts* refusals, RefusalLog log)
    : transport_(transport), refusals_(refusals), log_(std::move(log)) {}

PeerDoor::~PeerDoor() { *alive_ = false; }

StreamHandler* PeerDoor::on_accept(std::unique_ptr<Stream> stream) {
  auto accepted = std::make_unique<PeerStream>(this, PeerStreamOrigin::kAccepted);
  accepted->attach(std::move(stream));
  PeerStream* const handler = accepted.get();
  const std::uint64_t number = next_number_++;
  unbound_.push_back({number, std::move(accepted)});
  if (unbound_.size() > kMaxUnboundPeerStreams) {
    // Strangers must not end a run: another worker tries again, as after a cut.
    handler->close(absl::UnavailableError(
        absl::StrCat("this worker has ", kMaxUnboundPeerStreams,
                     " streams without a valid HELLO, the most that it keeps")));
  }
  transport_->post_after(kHelloTimeout, [this, alive = alive_, number] {
    if (*alive) close_if_still_here(number);
  });
  return handler;
}

void PeerDoor::close_if_still_here(std::uint64_t number) {
  for (const Unbound& unbound : unbound_) {
    if (unbound.number != number || unbound.stream->closing()) continue;
    // A worker whose HELLO is still on its way comes again.
    unbound.stream->close(absl::UnavailableError(
        absl::StrCat("no valid HELLO within ", kHelloTimeout.count(), " ms")));
  }
}

void PeerDoor::count_refusal(const PeerStream& stream, const Objection& objection) {
  refusals_->add(objection.reason);
  if (log_) log_(stream.address(), objection);
}

void PeerDoor::on_message(PeerStream& stream, const Bytes& message) {
  const auto refuse = [&](const Objection& objection) {
    count_refusal(stream, objection);
    stream.close(absl::InvalidArgumentError(
        absl::StrCat("refused (", data_refusal_name(objection.reason), "): ", objection.message)));
  };
  const absl::StatusOr<DecodedFactor> decoded = decode_factor(message);
  if (!decoded.ok()) {
    refuse({DataRefusal::kMalformed, std::string(decoded.status().message())});
    return;
  }
  if (decoded->header.kind != FactorKind::kHello) {
    refuse({DataRefusal::kKind, "the first message of a stream is HELLO"});
    return;
  }
  if (host_ == nullptr) {
    // Not counted: a worker that got its assignment earlier than we did only comes too early.
    stream.close(absl::AbortedError("this worker has no part in such a job at present"));
    return;
  }
  if (const absl::Status status = host_->admit(stream, decoded->header, decoded->payload.size());
      !status.ok()) {
    stream.close(status);
    return;
  }
  const auto place = std::find_if(unbound_.begin(), unbound_.end(),
                                  [&](const Unbound& u) { return u.stream.get() == &stream; });
  std::unique_ptr<PeerStream> ours = std::move(place->stream);
  unbound_.erase(place);
  host_->adopt(std::move(ours), decoded->header.rank);
}

void PeerDoor::on_closed(PeerStream& stream, const absl::Status& /*status*/) {
  std::erase_if(unbound_, [&](const Unbound& u) { return u.stream.get() == &stream; });
}

}  // namespace poseidon
