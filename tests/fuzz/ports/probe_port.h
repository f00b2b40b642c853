#pragma once

// A node's port for network measurements by peers, and its own measurement towards them.

#include <string>

#include "common/base/check.h"
#include "common/base/ids.h"
#include "common/node/link_probe.h"
#include "poseidon/v1/probe.pb.h"
#include "tests/fuzz/ports/port.h"

namespace poseidon::fuzz {

class ProbePort final : public Port {
 public:
  explicit ProbePort(Transport* transport) : probe_(transport, &refusals_, {}) {
    POSEIDON_CHECK(transport->listen("victim", &probe_).ok(), "a free address");
  }

  /// The third byte says what was taken: nothing at first, then in steps as the window grows.
  Words believable(Input& input) override {
    const std::uint8_t how = input.byte(), much = input.byte(), taken = input.byte();
    v1::ProbeMessage message;
    message.set_protocol_version(kProtocolVersion + (how == 255 ? 1 : 0));
    message.set_kind(static_cast<v1::ProbeKind>(1 + how % 5));
    if (message.kind() == v1::PROBE_KIND_HELLO) {
      message.set_max_bytes(std::uint64_t{much} << (how / 5 % 48));
      message.set_max_us(std::uint64_t{much} << (how / 5 % 48));
    }
    message.set_delivered_bytes(std::uint64_t{taken} * 1024);
    if (message.kind() == v1::PROBE_KIND_RESULT) {
      message.set_bytes_per_s(std::uint64_t{much} << (how / 5 % 57));
    }
    if (message.kind() == v1::PROBE_KIND_DATA) message.set_payload(std::string(much * 64, '\0'));
    return {MessagePrefix(message.SerializeAsString()), ""};
  }

  void act(std::uint8_t how) override {
    if (how % 4 == 0) return probe_.cancel();
    const ProbeLimits limits{.max_bytes = std::uint64_t{how} * 512,
                             .max_time = Milliseconds(how / 8)};
    ++asked_;
    probe_.measure("peer", limits, [this](const absl::StatusOr<ProbeResult>& result) {
      --asked_;
      POSEIDON_CHECK(!result.ok() || (result->send_bytes_per_s > 0 &&
                                      result->receive_bytes_per_s > 0 && result->latency_s >= 0),
                     "what a measurement says is a speed");
    });
  }

  void check() const override {
    POSEIDON_CHECK(asked_ >= 0 && asked_ <= 1, "each measurement ends once, and the last is new");
  }

 private:
  int asked_ = 0;
  RefusalCounts refusals_;
  LinkProbe probe_;
};

}  // namespace poseidon::fuzz
