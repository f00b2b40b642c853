#include "common/checkpoint/checkpoint.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/toy_plan.h"

namespace poseidon::checkpoint_test {
namespace {

using ::testing::HasSubstr;

/// Three layers of 10, 6 and 7 elements; the second goes by SFB.
Plan mixed_plan(std::uint32_t workers = 2, std::uint32_t servers = 2) {
  Plan plan = testing_support::toy_plan(workers, servers, {10, 6, 7}, 4);
  testing_support::send_by_factors(plan, LayerIndex(1), 2, 2);  // 2x2 weights and 2 biases
  return plan;
}

CheckpointManifest manifest_of(const Plan& plan) {
  CheckpointManifest manifest;
  manifest.snapshot = snapshot_id(plan.epoch, 400);
  manifest.job_id = "toy-5";
  manifest.job_name = "toy";
  manifest.job_json = "{\"name\": \"toy\"}";
  manifest.run_directory = "/runs/toy";
  manifest.workers = plan.workers();
  manifest.begun_with = 3;
  manifest.samples = 12'800;
  manifest.loss = 0.25;
  manifest.time_unix_s = 1'700'000'000;
  manifest.bytes = 276;
  manifest.stores = {std::string(32, 'a'), std::string(32, '0')};
  manifest.pieces = checkpoint_pieces(plan, 16);
  manifest.plan = *plan_pin_from_json(nlohmann::json::parse(plan_to_json(plan)), "plan");
  manifest.data = DataIdentity{.train = {.samples = 60000, .digest = 7}, .test = std::nullopt};
  return manifest;
}

TEST(SnapshotId, NamesEpochAndIteration) {
  const SnapshotId id = snapshot_id(Epoch(12), 400);
  EXPECT_EQ(snapshot_epoch(id), Epoch(12));
  EXPECT_EQ(snapshot_iteration(id), 400);
  EXPECT_EQ(snapshot_name(id), "12-400");
  EXPECT_EQ(parse_snapshot_name("12-400"), id);
  EXPECT_LT(snapshot_id(Epoch(11), 1'000'000), id);
  for (const char* wrong : {"", "-", "12", "12-", "-400", "0-400", "12-0400", "+12-400", "12--4",
                            "12-400 ", "16777216-1", "1-1099511627776"}) {
    EXPECT_FALSE(parse_snapshot_name(wrong)) << wrong;
  }
}

TEST(CheckpointPieces, CoverEverythingOnce) {
  for (const std::uint32_t workers : {1u, 2u, 3u}) {
    for (const std::uint32_t servers : {1u, 2u, 3u}) {
      const Plan plan = mixed_plan(workers, servers);
      const auto pieces = checkpoint_pieces(plan, 16);
      std::vector<std::vector<int>> seen = {std::vector<int>(10), std::vector<int>(6),
                                            std::vector<int>(7)};
      int of_worker = 0;
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        const CheckpointPiece& piece = pieces[i];
        EXPECT_LT(piece.holder.value(), servers);
        if (!piece.layer) {
          ++of_worker;
          EXPECT_EQ(piece.giver, WorkerRank(0));
          continue;
        }
        const bool sfb = plan.layers[piece.layer->value()].scheme == Scheme::kSfb;
        EXPECT_EQ(piece.giver.has_value(), sfb);
        if (sfb) {
          EXPECT_LT(piece.giver->value(), workers);
        } else {
          EXPECT_EQ(piece.holder, plan.chunks[i].server)
              << "a chunk's piece has the chunk's number";
          EXPECT_EQ(piece.offset, plan.chunks[i].offset);
        }
        for (std::int64_t e = 0; e < piece.elements; ++e) {
          ++seen[piece.layer->value()][static_cast<std::size_t>(piece.offset + e)];
        }
      }
      EXPECT_EQ(of_worker, 1);
      for (const auto& layer : seen) {
        for (const int times : layer) EXPECT_EQ(times, 1);
      }
    }
  }
}

TEST(CheckpointPieces, TwoServersKeepEachWhereThereAreTwo) {
  for (const std::uint32_t servers : {1u, 2u, 3u}) {
    const Plan plan = mixed_plan(2, servers);
    const auto once = checkpoint_pieces(plan, 16);
    const auto twice = checkpoint_pieces(plan, 16, 2);
    ASSERT_EQ(once.size(), twice.size());
    std::size_t stored = 0;
    for (std::uint32_t s = 0; s < servers; ++s) stored += pieces_at(twice, ServerIndex(s));
    EXPECT_EQ(stored, servers == 1 ? once.size() : 2 * once.size());
    for (std::size_t i = 0; i < once.size(); ++i) {
      EXPECT_EQ(twice[i].holder, once[i].holder);
      EXPECT_FALSE(once[i].second);
      ASSERT_EQ(twice[i].second.has_value(), servers > 1);
      if (!twice[i].second) continue;
      EXPECT_NE(*twice[i].second, twice[i].holder);
      EXPECT_LT(twice[i].second->value(), servers);
    }
  }
  EXPECT_TRUE(check_replicas(2, 2).ok());
  EXPECT_THAT(std::string(check_replicas(2, 1).message()), HasSubstr("checkpoint.replicas: 2"));
}

TEST(Manifest, WithTwoCopiesAnyOneStoreMayBeLost) {
  CheckpointManifest manifest = manifest_of(mixed_plan());
  EXPECT_FALSE(is_reachable(manifest, {true, false}));
  manifest.pieces = checkpoint_pieces(mixed_plan(), 16, 2);
  const auto back = manifest_from_json(manifest_to_json(manifest), "manifest");
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(manifest_to_json(*back), manifest_to_json(manifest));
  EXPECT_EQ(back->pieces[0].second, manifest.pieces[0].second);
  EXPECT_TRUE(is_reachable(*back, {true, false}));
  EXPECT_TRUE(is_reachable(*back, {false, true}));
  EXPECT_FALSE(is_reachable(*back, {false, false}));
  EXPECT_THAT(stores_in_use(*back), ::testing::ElementsAre(true, true));
  auto json = nlohmann::json::parse(manifest_to_json(manifest));
  json.erase("checksum");
  json["pieces"][0]["second"] = json["pieces"][0]["holder"];
  EXPECT_THAT(std::string(manifest_from_json(json.dump(), "m.json").status().message()),
              HasSubstr("pieces[0].second"));
  json["pieces"][0]["second"] = 2;
  EXPECT_FALSE(manifest_from_json(json.dump(), "m.json").ok());
}

TEST(PieceIndex, FindsAnyRangeWhateverTheCut) {
  const auto pieces = checkpoint_pieces(mixed_plan(), 16);  // layer 0: [0,4) [4,8) [8,10)
  const auto ranges = PieceIndex(pieces).covering(LayerIndex(0), 3, 6);
  ASSERT_TRUE(ranges.ok()) << ranges.status();
  ASSERT_EQ(ranges->size(), 3u);
  EXPECT_EQ((*ranges)[0].piece, PieceId(0));
  EXPECT_EQ((*ranges)[0].in_piece, 3);
  EXPECT_EQ((*ranges)[0].in_range, 0);
  EXPECT_EQ((*ranges)[0].elements, 1);
  EXPECT_EQ((*ranges)[1].in_range, 1);
  EXPECT_EQ((*ranges)[1].elements, 4);
  EXPECT_EQ((*ranges)[2].in_piece, 0);
  EXPECT_EQ((*ranges)[2].elements, 1);
}

TEST(PieceIndex, FindsEveryRangeOnceAndInOrder) {
  const auto pieces = checkpoint_pieces(mixed_plan(), 16);
  const PieceIndex index(pieces);
  for (std::int64_t offset = 0; offset < 10; ++offset) {
    for (std::int64_t elements = 0; offset + elements <= 10; ++elements) {
      const auto ranges = index.covering(LayerIndex(0), offset, elements);
      ASSERT_TRUE(ranges.ok()) << ranges.status();
      std::int64_t at = offset;
      for (const PieceRange& range : *ranges) {
        const CheckpointPiece& piece = pieces[range.piece.value()];
        EXPECT_EQ(piece.layer, LayerIndex(0));
        EXPECT_EQ(range.in_range, at - offset);
        EXPECT_EQ(piece.offset + range.in_piece, at);
        EXPECT_GT(range.elements, 0);
        EXPECT_LE(range.in_piece + range.elements, piece.elements);
        at += range.elements;
      }
      EXPECT_EQ(at, offset + elements);
    }
  }
}

TEST(PieceIndex, SaysWhatIsMissing) {
  auto pieces = checkpoint_pieces(mixed_plan(), 16);
  pieces.erase(pieces.begin() + 1);
  const auto ranges = PieceIndex(pieces).covering(LayerIndex(0), 0, 10);
  EXPECT_EQ(ranges.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(ranges.status().message()), HasSubstr("element 4 of layer 0"));
  EXPECT_FALSE(PieceIndex(pieces).covering(LayerIndex(9), 0, 1).ok());
}

TEST(MissingStores, NamesThoseThatHavePieces) {
  CheckpointManifest manifest = manifest_of(mixed_plan());
  EXPECT_EQ(missing_stores(manifest, [](const std::string&) { return true; }), "");
  const std::string first = manifest.stores[0];
  EXPECT_EQ(missing_stores(manifest, [&first](const std::string& store) { return store != first; }),
            "the server whose --data-dir has STORE_IDENTITY " + first +
                ", with a part of checkpoint " + snapshot_name(manifest.snapshot));
  EXPECT_THAT(missing_stores(manifest, [](const std::string&) { return false; }),
              HasSubstr(first + ", " + manifest.stores[1]));
  manifest.stores.emplace_back(32, 'f');  // of a server that no piece lies on
  EXPECT_EQ(
      missing_stores(manifest,
                     [&](const std::string& store) { return store != manifest.stores.back(); }),
      "");
}

TEST(Manifest, ComesBackFromItsJson) {
  const CheckpointManifest manifest = manifest_of(mixed_plan());
  const auto back = manifest_from_json(manifest_to_json(manifest), "manifest");
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(manifest_to_json(*back), manifest_to_json(manifest));
  EXPECT_EQ(back->snapshot, manifest.snapshot);
  EXPECT_EQ(back->iteration(), 400);
  EXPECT_EQ(back->pieces.size(), manifest.pieces.size());
  EXPECT_EQ(back->loss, 0.25);
}

TEST(Manifest, RefusesWhatItCannotTrust) {
  auto json = nlohmann::json::parse(manifest_to_json(manifest_of(mixed_plan())));
  json.erase("checksum");  // as who edits it does
  const auto refusal = [&json](const auto& change) {
    nlohmann::json changed = json;
    change(changed);
    const auto read = manifest_from_json(changed.dump(), "m.json");
    return read.ok() ? std::string("accepted") : std::string(read.status().message());
  };
  EXPECT_THAT(refusal([](auto& j) { j.erase("stores"); }), HasSubstr("stores"));
  EXPECT_THAT(refusal([](auto& j) { j["stores"][0] = "x"; }), HasSubstr("32 hexadecimal"));
  EXPECT_THAT(refusal([](auto& j) { j["id"] = "7"; }), HasSubstr("EPOCH-ITERATION"));
  EXPECT_THAT(refusal([](auto& j) { j["format"] = 2; }), HasSubstr("format"));
  EXPECT_THAT(refusal([](auto& j) { j["pieces"][0]["holder"] = 2; }), HasSubstr("holder"));
  EXPECT_THAT(refusal([](auto& j) { j["pieces"][0]["elements"] = -1; }), HasSubstr("elements"));
  EXPECT_THAT(refusal([](auto& j) { j["pieces"].erase(1); }), HasSubstr("element 4 of layer 0"));
  EXPECT_THAT(refusal([](auto& j) { j["surprise"] = 1; }), HasSubstr("surprise"));
  EXPECT_THAT(refusal([](auto& j) {
                j["plan"]["local_groups"] = {{0, 1}, {2}};
              }),
              HasSubstr("plan.local_groups: groups of 3 workers"));
  EXPECT_FALSE(manifest_from_json("{", "m.json").ok());
}

TEST(Manifest, NoBitMayTurn) {
  const std::string whole = manifest_to_json(manifest_of(mixed_plan()));
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string turned = whole;
    turned[i] = static_cast<char>(turned[i] ^ (1 << i % 8));
    EXPECT_FALSE(manifest_from_json(turned, "m.json").ok()) << "bit " << i % 8 << " of byte " << i;
  }
}

}  // namespace
}  // namespace poseidon::checkpoint_test
