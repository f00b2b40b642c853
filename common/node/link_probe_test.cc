#include "common/node/link_probe.h"
#include "common/threads/mutex.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/grpc/grpc_transport.h"
#include "common/transport/memory_transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "poseidon/v1/probe.pb.h"

namespace poseidon::link_probe_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Nanoseconds ms(std::int64_t count) { return Milliseconds(count); }

Bytes bytes_of(const OutgoingMessage& message) {
  auto text = std::make_shared<std::string>(message.prefix.str());
  text->append(reinterpret_cast<const char*>(message.payload.data()), message.payload.size());
  Bytes bytes;
  bytes.pieces.push_back({reinterpret_cast<const std::byte*>(text->data()), text->size()});
  bytes.owner = std::move(text);
  return bytes;
}

Bytes bytes_of(const v1::ProbeMessage& message) {
  OutgoingMessage outgoing;
  outgoing.prefix = MessagePrefix(message.SerializeAsString());
  return bytes_of(outgoing);
}

v1::ProbeMessage parse(const OutgoingMessage& outgoing) {
  const Bytes bytes = bytes_of(outgoing);
  v1::ProbeMessage message;
  EXPECT_TRUE(message.ParseFromArray(bytes.pieces[0].data(), static_cast<int>(bytes.size())));
  return message;
}

v1::ProbeMessage message(v1::ProbeKind kind) {
  v1::ProbeMessage result;
  result.set_protocol_version(kProtocolVersion);
  result.set_kind(kind);
  return result;
}

/// A model of one direction of a wire: a number of bytes per second, whole messages, in order.
struct Wire {
  double bytes_per_s;
  Nanoseconds delay = std::chrono::microseconds(100);
  Nanoseconds hitch_at = Nanoseconds::max();  ///< from then on it stands still, for 20 ms
  Nanoseconds free_at{0};
  Nanoseconds carries(std::size_t bytes, Nanoseconds now) {
    free_at =
        std::max(free_at, now) +
        Nanoseconds(static_cast<std::int64_t>(static_cast<double>(bytes) / bytes_per_s * 1e9));
    if (free_at >= hitch_at) {
      free_at += Milliseconds(20);
      hitch_at = Nanoseconds::max();
    }
    return free_at + delay;
  }
};

struct Played {
  absl::StatusOr<ProbeResult> result = absl::UnknownError("never ended");
  Nanoseconds took{0};
  Nanoseconds drained{0};  ///< when the last byte under way came, after the result
};

/// Both ends on two wires.
Played play(ProbeLimits limits, Wire there, Wire back) {
  ProbeSession ends[2] = {{ProbeSession::Role::kCaller, limits},
                          {ProbeSession::Role::kAnswerer, kProbeCeiling}};
  Wire* wires[2] = {&there, &back};
  struct Event {
    int to;
    Bytes message;
  };
  std::multimap<Nanoseconds, Event> events;
  Nanoseconds now{0};
  Played played;
  for (int guard = 0; guard < 1'000'000; ++guard) {
    for (int e = 0; e < 2; ++e) {
      while (auto outgoing = ends[e].next(now)) {
        const Bytes bytes = bytes_of(*outgoing);
        events.emplace(wires[e]->carries(bytes.size(), now), Event{1 - e, bytes});
      }
    }
    if (auto result = ends[0].result(now)) {
      played.result = *result;
      played.took = now;
      played.drained = std::max(there.free_at, back.free_at) - now;
      return played;
    }
    Nanoseconds next = events.empty() ? Nanoseconds::max() : events.begin()->first;
    for (const ProbeSession& end : ends) {
      if (end.deadline() && *end.deadline() > now) next = std::min(next, *end.deadline());
    }
    if (next == Nanoseconds::max()) return played;
    now = next;
    while (!events.empty() && events.begin()->first <= now) {
      const Event event = events.begin()->second;
      events.erase(events.begin());
      const Objection objection = ends[event.to].on_message(event.message, now);
      EXPECT_FALSE(objection) << objection.message;
    }
  }
  return played;
}

TEST(ProbeSession, TellsTheSpeedOfSlowAndFastNetworksInBoundedTime) {
  for (const double mbit : {10.0, 200.0, 1000.0, 10'000.0, 100'000.0}) {
    const double bytes_per_s = mbit * 1e6 / 8;
    const Played played = play({}, {bytes_per_s}, {bytes_per_s});
    ASSERT_TRUE(played.result.ok()) << mbit << ": " << played.result.status();
    EXPECT_NEAR(played.result->send_bytes_per_s / bytes_per_s, 1.0, 0.08) << mbit;
    EXPECT_NEAR(played.result->receive_bytes_per_s / bytes_per_s, 1.0, 0.08) << mbit;
    EXPECT_LT(played.took, ms(560)) << mbit;
    EXPECT_LT(played.drained, ms(110)) << mbit;
  }
}

TEST(ProbeSession, TellsTheDirectionsApart) {
  const Played played = play({}, {.bytes_per_s = 50e6}, {.bytes_per_s = 5e6});
  ASSERT_TRUE(played.result.ok()) << played.result.status();
  EXPECT_NEAR(played.result->send_bytes_per_s, 50e6, 5e6);
  EXPECT_NEAR(played.result->receive_bytes_per_s, 5e6, 0.5e6);
}

TEST(ProbeSession, AHitchBeforeTheLastPieceDoesNotSpoilIt) {
  for (std::int64_t us = 0; us < 40000; us += 100) {
    const Nanoseconds hitch = std::chrono::microseconds(us);
    const Wire wire{.bytes_per_s = 1e9, .hitch_at = hitch};
    const Played played = play({.max_bytes = 4 << 20, .max_time = ms(500)}, wire, wire);
    ASSERT_TRUE(played.result.ok()) << played.result.status() << ", hitch after " << us << " us";
  }
}

TEST(ProbeSession, LatencyIsHalfTheShortestWayThereAndBack) {
  const Played played =
      play({}, {.bytes_per_s = 1e9, .delay = ms(3)}, {.bytes_per_s = 1e9, .delay = ms(5)});
  ASSERT_TRUE(played.result.ok()) << played.result.status();
  EXPECT_NEAR(played.result->latency_s, 4e-3, 0.1e-3);
}

TEST(ProbeSession, BytesEndItOnAFastNetwork) {
  const Played played = play({.max_bytes = 8 << 20, .max_time = ms(2000)}, {10e9}, {10e9});
  ASSERT_TRUE(played.result.ok()) << played.result.status();
  EXPECT_LT(played.took, ms(50)) << "instead of four seconds";
}

TEST(ProbeSession, WhereNothingComesItSaysSo) {
  const Played played = play({}, {.bytes_per_s = 1e9}, {.bytes_per_s = 1e3});
  EXPECT_FALSE(played.result.ok());
}

class Hostile : public ::testing::Test {
 protected:
  Objection say(const v1::ProbeMessage& message) {
    return end_.on_message(bytes_of(message), ms(1));
  }
  void greet(std::uint64_t max_bytes = 1 << 20, std::uint64_t max_us = 100'000) {
    v1::ProbeMessage hello = message(v1::PROBE_KIND_HELLO);
    hello.set_max_bytes(max_bytes);
    hello.set_max_us(max_us);
    ASSERT_FALSE(say(hello));
    ASSERT_EQ(parse(*end_.next(ms(1))).kind(), v1::PROBE_KIND_HELLO);
  }
  ProbeSession end_{ProbeSession::Role::kAnswerer, kProbeCeiling};
};

TEST_F(Hostile, AnAnswererAgreesToNoMoreThanItsCeiling) {
  greet(UINT64_MAX, UINT64_MAX);
  v1::ProbeMessage data = message(v1::PROBE_KIND_DATA);
  data.set_payload(std::string(1000, 'x'));
  ASSERT_FALSE(say(data));
  EXPECT_EQ(*end_.deadline(), ms(1) + kProbeCeiling.max_time);
  EXPECT_EQ(parse(*end_.next(ms(1))).kind(), v1::PROBE_KIND_ACK) << "nothing of its own yet";
}

TEST_F(Hostile, WhatNoEndOfOursSendsIsRefused) {
  EXPECT_TRUE(say(message(v1::PROBE_KIND_DATA))) << "before HELLO";
  v1::ProbeMessage other_version = message(v1::PROBE_KIND_HELLO);
  other_version.set_protocol_version(99);
  EXPECT_TRUE(say(other_version));
  Bytes garbage;
  const std::string text = "\xff\xff\xff\xff\xff\xff";
  garbage.pieces.push_back({reinterpret_cast<const std::byte*>(text.data()), text.size()});
  EXPECT_TRUE(end_.on_message(garbage, ms(1)));
  greet();
  EXPECT_TRUE(say(message(v1::PROBE_KIND_HELLO))) << "twice";
  EXPECT_TRUE(say(message(v1::PROBE_KIND_RESULT))) << "only an answerer sends it";
  EXPECT_TRUE(say(message(v1::PROBE_KIND_UNSPECIFIED)));
  v1::ProbeMessage too_much_taken = message(v1::PROBE_KIND_ACK);
  too_much_taken.set_delivered_bytes(1);
  EXPECT_TRUE(say(too_much_taken)) << "more than was sent";
  v1::ProbeMessage too_large = message(v1::PROBE_KIND_DATA);
  too_large.set_payload(std::string((1 << 20) + 1, 'x'));
  EXPECT_TRUE(say(too_large));
  EXPECT_FALSE(say(message(v1::PROBE_KIND_PING)));
  EXPECT_TRUE(say(message(v1::PROBE_KIND_PING))) << "a flood of them would have to be kept";
}

TEST(ProbeSession, AnAnswererTellsNoSpeedBeforeItHasEchoed) {
  ProbeSession caller{ProbeSession::Role::kCaller, kProbeCeiling};
  ASSERT_EQ(parse(*caller.next(ms(1))).kind(), v1::PROBE_KIND_HELLO);
  ASSERT_FALSE(caller.on_message(bytes_of(message(v1::PROBE_KIND_HELLO)), ms(1)));
  ASSERT_EQ(parse(*caller.next(ms(1))).kind(), v1::PROBE_KIND_PING);
  v1::ProbeMessage result = message(v1::PROBE_KIND_RESULT);
  result.set_bytes_per_s(1);
  EXPECT_TRUE(caller.on_message(bytes_of(result), ms(1))) << "nothing to report with it yet";
  EXPECT_TRUE(caller.on_message(bytes_of(message(v1::PROBE_KIND_DATA)), ms(1)));
  EXPECT_FALSE(caller.result(ms(1) + 2 * kProbeCeiling.max_time));
}

TEST_F(Hostile, WhoTakesNothingGetsLittle) {
  greet(64 << 20);
  v1::ProbeMessage data = message(v1::PROBE_KIND_DATA);
  data.set_payload("x");
  ASSERT_FALSE(say(data));
  std::uint64_t sent = 0;
  while (auto outgoing = end_.next(ms(200))) sent += outgoing->payload.size();
  EXPECT_GT(sent, 0u);
  EXPECT_LE(sent, 64u << 10);
}

// ---- over a transport ----

TEST(LinkProbe, MeasuresOverAnyTransport) {
  MemoryNetwork network(1, {.min_delay = std::chrono::microseconds(200),
                            .max_delay = std::chrono::microseconds(300)});
  RefusalCounts refusals;
  LinkProbe a(&network.endpoint("a"), &refusals, {}), b(&network.endpoint("b"), &refusals, {});
  ASSERT_TRUE(network.endpoint("b").listen("b:1", &b).ok());
  std::optional<absl::StatusOr<ProbeResult>> result;
  a.measure("b:1", {}, [&](absl::StatusOr<ProbeResult> r) { result = std::move(r); });
  while (!result && network.step()) {
  }
  ASSERT_TRUE(result.has_value());
  ASSERT_TRUE(result->ok()) << result->status();
  EXPECT_GT((*result)->send_bytes_per_s, 1e6);
  EXPECT_GT((*result)->latency_s, 190e-6);
  EXPECT_LT((*result)->latency_s, 400e-6);
}

TEST(LinkProbe, NobodyThereIsSaidWithTheAddress) {
  MemoryNetwork network(1, {});
  RefusalCounts refusals;
  LinkProbe probe(&network.endpoint("a"), &refusals, {});
  std::optional<absl::StatusOr<ProbeResult>> result;
  probe.measure("nowhere:1", {}, [&](absl::StatusOr<ProbeResult> r) { result = std::move(r); });
  while (!result && network.step()) {
  }
  ASSERT_TRUE(result.has_value());
  EXPECT_THAT(std::string(result->status().message()), HasSubstr("nowhere:1"));
}

/// Takes what comes and never answers.
class Mute final : public Acceptor, public StreamHandler {
 public:
  StreamHandler* on_accept(std::unique_ptr<Stream> stream) override {
    stream_ = std::move(stream);
    return this;
  }
  ReadNext on_message(Bytes) override { return ReadNext::kContinue; }
  void on_written() override {}
  void on_closed(const absl::Status&) override {}

 private:
  std::unique_ptr<Stream> stream_;
};

TEST(LinkProbe, SilenceEndsAndSoDoesCancelling) {
  for (const bool cancel : {false, true}) {
    MemoryNetwork network(1, {});
    RefusalCounts refusals;
    LinkProbe probe(&network.endpoint("a"), &refusals, {});
    Mute mute;
    ASSERT_TRUE(network.endpoint("b").listen("b:1", &mute).ok());
    int ended = 0;
    absl::Status status;
    probe.measure("b:1", {}, [&](const absl::StatusOr<ProbeResult>& r) {
      ++ended;
      status = r.status();
    });
    if (cancel) probe.cancel();
    while (network.step()) {
    }
    EXPECT_EQ(ended, 1);
    EXPECT_EQ(absl::IsCancelled(status), cancel) << status;
    EXPECT_EQ(absl::IsDeadlineExceeded(status), !cancel) << status;
  }
}

TEST(LinkProbe, WhatIsRefusedIsCountedAndSaysWhoseItIs) {
  MemoryNetwork network(1, {});
  RefusalCounts refusals;
  std::vector<std::string> logged;
  LinkProbe probe(&network.endpoint("b"), &refusals,
                  [&](const std::string& peer, const Objection& objection) {
                    logged.push_back(peer + ": " + objection.message);
                  });
  ASSERT_TRUE(network.endpoint("b").listen("b:1", &probe).ok());
  const auto say = [&](const std::string& bytes) {
    Mute mute;
    const auto stream = network.endpoint("a").connect("b:1", &mute);
    stream->write({.prefix = MessagePrefix(bytes)});
    while (network.step()) {
    }
  };
  v1::ProbeMessage other_version = message(v1::PROBE_KIND_HELLO);
  other_version.set_protocol_version(99);
  say(other_version.SerializeAsString());
  say("\xff\xff\xff\xff\xff\xff");
  say(message(v1::PROBE_KIND_PING).SerializeAsString());
  EXPECT_EQ(refusals.of(DataRefusal::kVersion), 1u);
  EXPECT_EQ(refusals.of(DataRefusal::kMalformed), 1u);
  EXPECT_EQ(refusals.of(DataRefusal::kKind), 1u);
  EXPECT_THAT(logged, ElementsAre(HasSubstr("a: probe refused: it speaks protocol 99"),
                                  HasSubstr("not a ProbeMessage"), HasSubstr("HELLO comes first")));
}

TEST(LinkProbe, MeasuresOverGrpcBesideAnotherMethodOfThePort) {
  GrpcTransport server, client;
  Mute mute;
  const auto address = server.listen("127.0.0.1:0", &mute);
  ASSERT_TRUE(address.ok()) << address.status();
  RefusalCounts refusals;
  LinkProbe answerer(&server.add_method(kProbeMethod), &refusals, {});
  LinkProbe caller(&client.add_method(kProbeMethod), &refusals, {});
  ASSERT_TRUE(server.add_method(kProbeMethod).listen(*address, &answerer).ok());
  server.start();
  client.start();
  Mutex mutex;
  CondVar changed;
  std::optional<absl::StatusOr<ProbeResult>> result;
  caller.measure(*address, {.max_bytes = 4 << 20, .max_time = ms(50)},
                 [&](absl::StatusOr<ProbeResult> r) {
                   const MutexLock lock(mutex);
                   result = std::move(r);
                   changed.notify_all();
                 });
  {
    MutexLock lock(mutex);
    ASSERT_TRUE(
        changed.wait_for(mutex, std::chrono::seconds(60), [&] { return result.has_value(); }));
  }
  client.stop();
  server.stop();
  ASSERT_TRUE(result->ok()) << result->status();
  EXPECT_GT((*result)->send_bytes_per_s, 0.0);
  EXPECT_GT((*result)->receive_bytes_per_s, 0.0);
}

}  // namespace
}  // namespace poseidon::link_probe_test
