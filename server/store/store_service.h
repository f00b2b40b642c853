#pragma once

// The server's end of streams to its store of checkpoint pieces.
//
// Called by: common/checkpoint/store_client.h, from other nodes. Calls:
// server/store/checkpoint_keeper.h, which reads or writes. Answers go out in the order of the
// requests.
//
// Everything runs on the transport's loop.

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "common/probes/refusal_log.h"
#include "common/transport/transport.h"
#include "common/wire/store_wire.h"
#include "server/store/checkpoint_keeper.h"

namespace poseidon {

/// Most streams at a time. A further one replaces the stream that has been idle for longest, or is
/// refused for a while; clients retry.
inline constexpr std::size_t kMaxStoreSessions = 1024;
/// Most unanswered requests of one stream; then reading pauses.
inline constexpr std::size_t kMaxStoreRequests = 4;

class StoreService final : public Acceptor {
 public:
  /// All three must outlive the service, which is destroyed only once the transport has stopped.
  /// `log` may be empty.
  StoreService(Transport* transport, CheckpointKeeper* keeper, RefusalCounts* refusals,
               RefusalLog log);
  ~StoreService() override;

  StreamHandler* on_accept(std::unique_ptr<Stream> stream) override;

 private:
  class Session;

  ReadNext on_message(Session& session, const Bytes& message);
  void read(Session& session, const StoreHeader& header);
  void write(Session& session, const DecodedStore& request);
  void hold(const Session& session, const DecodedStore& request);
  void refuse(const Session& session, const Objection& objection);
  void answer_refused(const Session& session, const StoreHeader& header,
                      const Objection& objection);
  void read_held(const Session& session, const StoreHeader& header);
  void answer(std::uint64_t session, StoreHeader header, absl::Span<const std::byte> payload,
              std::shared_ptr<const void> owner);
  void answer_error(std::uint64_t session, StoreHeader header, const absl::Status& status);
  void pump(Session& session);
  void remove(Session& session);
  bool make_room();

  Transport* const transport_;
  CheckpointKeeper* const keeper_;
  RefusalCounts* const refusals_;
  const RefusalLog log_;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::uint64_t next_session_ = 0;
  std::uint64_t messages_ = 0;  ///< received so far, on all streams
  /// Answers come later through the loop; they check this flag first.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace poseidon
