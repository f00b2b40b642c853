#pragma once

// Measures the bandwidth between two nodes, first one way and then the other, and the latency. It
// takes a moment, over our own transport and the node's usual port.
//
// Called by: common/node/node_calibration.h, for a Calibrate task that names the peer; the numbers
// go to the coordinator. Calls: common/transport/transport.h.
//
// How it stays short on any network
//  1. Data flow for a time (a fraction of a second) or a number of bytes, whichever ends first; one
//     direction after the other, because acknowledgements, which control how much may be in flight,
//     would queue behind data in the other direction.
//  2. Data in flight is limited to a quarter of what has arrived (plus a little at the start). So
//     draining it at the end takes at most a quarter of the time, at 10 Mbit/s as at 100 Gbit/s,
//     and it does not disturb the next measurement.
//  3. Pieces grow with the amount that has arrived: small enough for timing on a slow network,
//     large enough on a fast one not to measure the cost per message.
// The rate is that of the receiver over the second half of the time, because TCP starts slowly.
//
// One stream is measured, on the process's one loop. gRPC's copies limit it to a few GB/s, but they
// limit the job on that loop, too.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/probes/refusal_log.h"
#include "common/transport/transport.h"

namespace poseidon {

inline constexpr std::string_view kProbeMethod = "/poseidon.v1.Probe/Exchange";

struct ProbeLimits {
  std::uint64_t max_bytes = 64 << 20;        ///< per direction
  Nanoseconds max_time = Milliseconds(200);  ///< per direction
};
/// The most that an answerer accepts, whatever the request.
inline constexpr ProbeLimits kProbeCeiling{.max_bytes = 256 << 20, .max_time = Milliseconds(2000)};

struct ProbeResult {
  double send_bytes_per_s = 0.0;  ///< from the caller to the answerer
  double receive_bytes_per_s = 0.0;
  double latency_s = 0.0;  ///< one way: half of the shortest way there and back
};

/// One end of a measurement. Pure: messages and the time in, messages out.
class ProbeSession {
 public:
  enum class Role { kCaller, kAnswerer };
  ProbeSession(Role role, ProbeLimits limits);

  /// Objects to a message that no Poseidon peer sends in this state; the session is over then.
  Objection on_message(const Bytes& message, Nanoseconds now);
  /// What to write now, if anything; ask again after every event and every write.
  std::optional<OutgoingMessage> next(Nanoseconds now);
  /// The time of the next timeout, if any.
  std::optional<Nanoseconds> deadline() const;
  /// The caller's, once both directions are known. UNAVAILABLE when too little arrived to measure.
  std::optional<absl::StatusOr<ProbeResult>> result(Nanoseconds now) const;

 private:
  struct Sample {
    Nanoseconds time;
    std::uint64_t bytes;  ///< taken until then
  };
  struct Decoded;

  Objection check(const Decoded& message) const;
  void take_data(std::uint64_t bytes, Nanoseconds now);
  void take_ping(Nanoseconds now);
  bool receiving_ended(Nanoseconds now) const;
  bool may_send_data(Nanoseconds now) const;
  std::uint64_t piece_bytes() const;
  OutgoingMessage make(std::uint32_t kind, std::uint64_t payload_bytes);
  double receive_rate() const;

  const Role role_;
  ProbeLimits limits_;
  bool greeted_ = false;  ///< the other side's HELLO came
  bool sent_hello_ = false;
  std::uint32_t pings_ = 0;  ///< caller: sent; answerer: to be sent back
  std::optional<Nanoseconds> ping_sent_;
  std::optional<Nanoseconds> round_trip_;  ///< the shortest
  std::optional<Nanoseconds> send_start_;
  std::uint64_t sent_bytes_ = 0;
  std::uint64_t acknowledged_bytes_ = 0;
  std::uint64_t told_bytes_ = 0;  ///< delivered_bytes of our last message
  std::uint64_t received_bytes_ = 0;
  std::vector<Sample> samples_;
  /// The answerer's: its first data; the caller's: the result of the way there.
  std::optional<Nanoseconds> receive_start_;
  std::optional<std::uint64_t> send_rate_;  ///< the answerer's RESULT
};

/// Both ends of all measurements of one process. All methods but those said to be for any thread
/// run on the transport's loop. Destroyed only once the transport has stopped, or before it starts.
class LinkProbe final : public Acceptor {
 public:
  using Done = std::function<void(absl::StatusOr<ProbeResult>)>;

  /// `transport` speaks kProbeMethod; it and `refusals` outlive the probe. `log` may be empty.
  LinkProbe(Transport* transport, RefusalCounts* refusals, RefusalLog log);
  ~LinkProbe() override;

  /// Any thread. Measures towards `address`; `done` is called once, on the loop, within seconds:
  /// UNAVAILABLE, naming the address, when no node answers there. One measurement at a time: a new
  /// one ends an older one.
  void measure(const std::string& address, ProbeLimits limits, Done done);
  /// Any thread. Ends the measurement in progress; its `done` gets CANCELLED.
  void cancel();

  StreamHandler* on_accept(std::unique_ptr<Stream> stream) override;

 private:
  class End;
  void finish(const absl::StatusOr<ProbeResult>& result);
  void remove(End& end);
  void watch(std::uint64_t number, Nanoseconds delay);

  void refuse(const std::string& peer, const Objection& objection);

  Transport* const transport_;
  RefusalCounts* const refusals_;
  const RefusalLog log_;
  std::map<std::uint64_t, std::unique_ptr<End>> ends_;
  std::uint64_t next_number_ = 0;
  std::uint64_t calling_ = 0;  ///< number of our own measurement's end; 0: none
  std::string address_;        ///< the peer it measures
  Done done_;
  /// The loop's timers may outlive this object; they check this flag first.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace poseidon
