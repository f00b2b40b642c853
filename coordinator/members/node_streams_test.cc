#include "coordinator/members/node_streams.h"

#include "gtest/gtest.h"

namespace poseidon::node_streams_test {
namespace {

class OpenLink final : public NodeLink {
 public:
  bool send(const v1::CoordinatorMessage& message) override {
    sent.push_back(message);
    return true;
  }
  void close(const absl::Status& status) override { closed = status; }
  std::string peer_host() const override { return ""; }

  std::vector<v1::CoordinatorMessage> sent;
  absl::Status closed;
};

class FullLink final : public NodeLink {
 public:
  bool send(const v1::CoordinatorMessage& /*message*/) override { return false; }
  void close(const absl::Status& /*status*/) override {}
  std::string peer_host() const override { return ""; }
};

TEST(NodeStreamsTest, FindsTheStreamOfANodeOnceItHasJoined) {
  NodeStreams streams;
  const auto link = std::make_shared<OpenLink>();
  streams.open(link, Nanoseconds(5));
  EXPECT_FALSE(streams.has_stream(NodeId(1)));
  EXPECT_FALSE(streams.send(NodeId(1), {}));
  EXPECT_TRUE(streams.take_undeliverable().empty()) << "it has no stream";
  EXPECT_TRUE(streams.unjoined_since_before(Nanoseconds(5)).empty());
  EXPECT_EQ(streams.unjoined_since_before(Nanoseconds(6)).size(), 1U);
  streams.set_node(link.get(), NodeId(1));
  EXPECT_TRUE(streams.send(NodeId(1), {}));
  EXPECT_EQ(link->sent.size(), 1U);
  EXPECT_TRUE(streams.unjoined_since_before(Nanoseconds(6)).empty());
  streams.close_node(NodeId(1), absl::AbortedError("gone"));
  EXPECT_TRUE(absl::IsAborted(link->closed));
  EXPECT_EQ(streams.size(), 0U);
}

TEST(NodeStreamsTest, NamesNodesThatTakeNothingAfterwards) {
  NodeStreams streams;
  const auto link = std::make_shared<FullLink>();
  streams.open(link, Nanoseconds(0));
  streams.set_node(link.get(), NodeId(2));
  EXPECT_FALSE(streams.send(NodeId(2), {}));
  EXPECT_TRUE(streams.has_stream(NodeId(2)));
  EXPECT_EQ(streams.take_undeliverable(), std::vector<NodeId>{NodeId(2)});
  EXPECT_TRUE(streams.take_undeliverable().empty());
}

}  // namespace
}  // namespace poseidon::node_streams_test
