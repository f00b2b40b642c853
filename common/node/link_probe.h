#pragma once

// What the network between two nodes carries, one way and then the other, and its latency: measured
// for a moment over our own transport, on the port that every node has anyway.
//
// Before: a node's Calibrate task names the peer. After: the numbers go to the coordinator.
//
// How it stays short on every network
//  1. Data flow for a time (a fraction of a second) or a number of bytes, whichever ends first; one
//     way after the other, since what tells the sender that they came (and so how much may be under
//     way) would stand in line behind data on its way back.
//  2. What is under way is kept to a quarter of what has arrived (and a little to begin with). So
//     the rest that drains after the end takes at most a quarter of the time again, at 10 Mbit/s as
//     at 100 Gbit/s, and the next measurement does not meet it.
//  3. Pieces grow with what has arrived: small enough to tell time by on a slow network, large
//     enough not to measure the cost of messages on a fast one.
// The rate is the receiver's, of the last half of the time: TCP finds its pace first.
//
// One stream is measured, which the process's one loop serves: with gRPC's copies that ends at some
// GB/s, but so does what the job itself can move through that loop.

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
/// What an answerer agrees to at most, whatever it is asked for.
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

  /// Objects to what no end of ours sends here; the session is over then.
  Objection on_message(const Bytes& message, Nanoseconds now);
  /// What to write now, if anything; ask again after every event and every write.
  std::optional<OutgoingMessage> next(Nanoseconds now);
  /// When something ends by itself that has not ended yet.
  std::optional<Nanoseconds> deadline() const;
  /// The caller's, once both directions are known. UNAVAILABLE where too little came to tell.
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
  /// UNAVAILABLE naming the address when nobody answers there. One measurement at a time: a new one
  /// ends an older one.
  void measure(const std::string& address, ProbeLimits limits, Done done);
  /// Any thread. Ends the measurement in progress; its `done` hears CANCELLED.
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
  std::string address_;        ///< whom it measures
  Done done_;
  /// Timers outlive us in the loop; they look here before they touch us.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace poseidon
