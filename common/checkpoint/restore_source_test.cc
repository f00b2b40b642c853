#include "common/checkpoint/restore_source.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace poseidon::restore_source_test {
namespace {

using ::testing::HasSubstr;

/// Two pieces of one layer and worker 0's own state; the second server keeps the first's too.
CheckpointManifest two_copies() {
  CheckpointManifest manifest;
  manifest.snapshot = snapshot_id(Epoch(2), 30);
  manifest.stores = {std::string(32, 'a'), std::string(32, 'b')};
  manifest.pieces = {{.layer = LayerIndex(0),
                      .offset = 0,
                      .elements = 4,
                      .holder = ServerIndex(0),
                      .giver = std::nullopt,
                      .second = ServerIndex(1)},
                     {.layer = LayerIndex(0),
                      .offset = 4,
                      .elements = 4,
                      .holder = ServerIndex(1),
                      .giver = std::nullopt,
                      .second = ServerIndex(0)},
                     {.layer = std::nullopt, .holder = ServerIndex(0), .giver = WorkerRank(0)}};
  return manifest;
}

absl::StatusOr<std::vector<StoreRequest>> requests_with(const std::vector<std::string>& addresses,
                                                        bool own_state = false) {
  const auto source = restore_from_message(restore_to_message(two_copies(), addresses));
  if (!source.ok()) return source.status();
  std::vector<StoreRequest> requests;
  const absl::Status status =
      own_state ? append_own_state_request(*source, nullptr, requests)
                : append_range_requests(*source, PieceIndex(source->pieces), LayerIndex(0), 0, 8, 0,
                                        nullptr, requests);
  if (!status.ok()) return status;
  return requests;
}

TEST(RestoreSource, NamesBothStoresOfAPiece) {
  const auto requests = requests_with({"a:1", "b:1"});
  ASSERT_TRUE(requests.ok()) << requests.status();
  ASSERT_EQ(requests->size(), 2u);
  EXPECT_EQ((*requests)[0].address, "a:1");
  EXPECT_EQ((*requests)[0].second_address, "b:1");
  EXPECT_EQ((*requests)[1].address, "b:1");
  EXPECT_EQ((*requests)[1].second_address, "a:1");
}

TEST(RestoreSource, DoesWithoutAStoreThatIsNotHere) {
  const auto requests = requests_with({"", "b:1"});
  ASSERT_TRUE(requests.ok()) << requests.status();
  for (const StoreRequest& request : *requests) {
    EXPECT_EQ(request.address, "b:1");
    EXPECT_EQ(request.second_address, "");
  }
}

TEST(RestoreSource, SaysWhichPieceNobodyHas) {
  const auto nobody = requests_with({"", ""});
  EXPECT_EQ(nobody.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(nobody.status().message()), HasSubstr("piece 0 of checkpoint 2-30"));
  EXPECT_FALSE(requests_with({"", "b:1"}, /*own_state=*/true).ok()) << "it has one store only";
  EXPECT_TRUE(requests_with({"a:1", ""}, /*own_state=*/true).ok());
}

TEST(RestoreSource, RefusesStoresThatThereAreNot) {
  v1::RestoreSource message = restore_to_message(two_copies(), {"a:1", "b:1"});
  message.mutable_pieces(0)->set_second(3);
  EXPECT_EQ(restore_from_message(message).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace poseidon::restore_source_test
