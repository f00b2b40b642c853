#include "cli/remote/trace_json.h"

#include <map>
#include <set>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace poseidon::trace_json_test {
namespace {

using Json = nlohmann::json;

v1::TraceEvent event_of(Stage stage, std::uint64_t begin_us, std::uint64_t took_us) {
  v1::TraceEvent event;
  event.set_stage(static_cast<std::uint32_t>(stage));
  event.set_begin_ns(begin_us * 1000);
  event.set_duration_ns(took_us * 1000);
  event.set_iteration(4);
  event.set_layer(1);
  event.set_chunk(3);
  event.set_peer(1);
  event.set_bytes(64);
  return event;
}

/// What the file of a worker and a server holds; the server's clock is 50 us behind.
Json trace_of(const std::vector<v1::TraceEvent>& worker,
              const std::vector<v1::TraceEvent>& server) {
  TraceData data;
  v1::TracePart head, worker_node, worker_events, server_node, server_events, tail;
  head.mutable_head()->set_job("digits");
  head.mutable_head()->set_first_iteration(4);
  head.mutable_head()->mutable_plan()->add_layers()->set_name("conv \"1\"");
  worker_node.mutable_node()->set_role(v1::NODE_ROLE_WORKER);
  worker_node.mutable_node()->set_address("w:1");
  worker_node.mutable_node()->set_clock_echoes(3);
  worker_node.mutable_node()->set_clock_error_ns(1500);
  server_node.mutable_node()->set_role(v1::NODE_ROLE_SERVER);
  server_node.mutable_node()->set_clock_offset_ns(-50'000);
  worker_events.mutable_events();
  server_events.mutable_events();
  for (const auto& event : worker) *worker_events.mutable_events()->add_events() = event;
  for (const auto& event : server) *server_events.mutable_events()->add_events() = event;
  tail.mutable_tail()->add_notes("one is missing");
  for (const auto* part :
       {&head, &worker_node, &worker_events, &server_node, &server_events, &tail}) {
    EXPECT_TRUE(data.add(*part));
  }
  std::string text;
  write_trace_json(data, [&text](std::string_view piece) { text.append(piece); });
  return Json::parse(text);
}

Json only(const Json& trace, const std::string& key, const std::string& value) {
  Json found = Json::array();
  for (const Json& event : trace["traceEvents"]) {
    if (event.contains(key) && event[key] == value) found.push_back(event);
  }
  return found;
}

TEST(TraceJson, OneProcessPerNodeAndOneTime) {
  const Json trace =
      trace_of({event_of(Stage::kForward, 1000, 20)}, {event_of(Stage::kStep, 990, 5)});
  const Json names = only(trace, "name", "process_name");
  ASSERT_EQ(names.size(), 2U);
  EXPECT_EQ(names[0]["args"]["name"], "worker 0 (w:1)");
  EXPECT_EQ(names[1]["args"]["name"], "server 0");
  const Json spans = only(trace, "ph", "X");
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0]["name"], "forward conv \"1\"");
  EXPECT_EQ(spans[0]["cat"], "forward");
  EXPECT_DOUBLE_EQ(spans[0]["ts"], 0.0);
  EXPECT_DOUBLE_EQ(spans[0]["dur"], 20.0);
  EXPECT_DOUBLE_EQ(spans[1]["ts"], 40.0);
  EXPECT_EQ(spans[0]["args"]["iteration"], 4);
  EXPECT_EQ(spans[0]["args"]["chunk"], 2);
  EXPECT_NE(spans[0]["pid"], spans[1]["pid"]);
  EXPECT_EQ(trace["otherData"]["clocks"][0]["error_us"], 1.5);
  EXPECT_TRUE(trace["otherData"]["clocks"][1]["error_us"].is_null()) << "nothing is known of it";
  EXPECT_EQ(trace["otherData"]["notes"][0], "one is missing");
}

TEST(TraceJson, ArrowsJoinBothEnds) {
  const Json trace = trace_of({event_of(Stage::kSend, 0, 5), event_of(Stage::kCopy, 90, 5)},
                              {event_of(Stage::kStep, 20, 5), event_of(Stage::kSend, 30, 5)});
  const Json begins = only(trace, "ph", "s"), ends = only(trace, "ph", "f");
  ASSERT_EQ(begins.size(), 2U);
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_EQ(begins[0]["name"], "gradient");
  EXPECT_EQ(begins[0]["id"], ends[1]["id"]);
  EXPECT_EQ(begins[1]["name"], "parameters");
  EXPECT_EQ(begins[1]["id"], ends[0]["id"]);
  EXPECT_NE(begins[0]["id"], begins[1]["id"]);
}

TEST(TraceJson, AGroupsRelayHasRowsAndArrowsOfItsOwn) {
  const auto at = [](RelayEnd end, v1::TraceEvent event) {
    event.set_relay_end(static_cast<std::uint32_t>(end));
    return event;
  };
  // Worker 0 leads: its own gradient to its relay, the sum to the server, and both ways back.
  const Json trace =
      trace_of({at(RelayEnd::kWorker, event_of(Stage::kSend, 0, 5)),
                at(RelayEnd::kRelay, event_of(Stage::kSum, 6, 3)), event_of(Stage::kSend, 10, 5),
                event_of(Stage::kCopy, 80, 5), at(RelayEnd::kRelay, event_of(Stage::kSend, 86, 5)),
                at(RelayEnd::kWorker, event_of(Stage::kCopy, 92, 5))},
               {});
  const Json begins = only(trace, "ph", "s"), ends = only(trace, "ph", "f");
  ASSERT_EQ(begins.size(), 3U);
  ASSERT_EQ(ends.size(), 3U);
  EXPECT_EQ(begins[0]["id"], ends[0]["id"]) << "to its relay's sum";
  EXPECT_EQ(begins[2]["id"], ends[2]["id"]) << "and from there";
  EXPECT_EQ(begins[0]["name"], "gradient");
  EXPECT_EQ(begins[2]["name"], "parameters");
  EXPECT_NE(begins[0]["id"], begins[1]["id"]) << "the server's is another gradient";
  std::set<Json> rows;
  for (const Json& span : only(trace, "ph", "X")) {
    if (span["cat"] != "copy") rows.insert(span["tid"]);
  }
  EXPECT_EQ(rows.size(), 4U);
}

TEST(TraceJson, WhatOverlapsHasNoRow) {
  const Json trace =
      trace_of({event_of(Stage::kQueue, 0, 50), event_of(Stage::kQueue, 10, 50)}, {});
  EXPECT_TRUE(only(trace, "ph", "X").empty());
  const Json begins = only(trace, "ph", "b"), ends = only(trace, "ph", "e");
  ASSERT_EQ(begins.size(), 2U);
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_EQ(begins[0]["id"], ends[0]["id"]);
  EXPECT_NE(begins[0]["id"], begins[1]["id"]);
}

TEST(TraceJson, EachKindOfWorkHasItsRow) {
  v1::TraceEvent own = event_of(Stage::kCopy, 60, 1);  // own factors: on the computing thread
  own.clear_chunk();
  own.clear_peer();
  v1::TraceEvent factor = event_of(Stage::kSend, 70, 1);
  factor.clear_chunk();
  const Json trace = trace_of(
      {event_of(Stage::kBackward, 0, 1), event_of(Stage::kTest, 10, 1),
       event_of(Stage::kCopy, 20, 1), event_of(Stage::kSend, 30, 1), own, factor},
      {event_of(Stage::kWrite, 0, 1), event_of(Stage::kSum, 10, 1), event_of(Stage::kSend, 20, 1)});
  std::set<std::string> rows;
  for (const Json& name : only(trace, "name", "thread_name")) rows.insert(name["args"]["name"]);
  EXPECT_THAT(rows, ::testing::ElementsAre("aggregate", "compute", "disk", "receive",
                                           "send to server 0", "send to worker 0", "test"));
}

TEST(TraceJson, AGpusCopiesAreBesideWhatItComputesAndWhatTheTrainerDoes) {
  const auto plain = [](Stage stage, std::uint64_t begin_us, std::uint64_t took_us) {
    v1::TraceEvent event = event_of(stage, begin_us, took_us);
    event.clear_chunk();
    event.clear_peer();
    return event;
  };
  v1::TraceEvent batch = plain(Stage::kUpload, 40, 5);
  batch.clear_layer();
  const Json trace = trace_of(
      {plain(Stage::kStall, 0, 5), plain(Stage::kUpload, 5, 3), plain(Stage::kUploadFactors, 6, 3),
       plain(Stage::kForward, 8, 10), plain(Stage::kBackward, 20, 30),
       plain(Stage::kDownload, 30, 5), plain(Stage::kRebuild, 42, 1), batch},
      {event_of(Stage::kStep, 990, 5)});
  std::map<Json, std::string> rows;
  for (const Json& name : only(trace, "name", "thread_name")) {
    if (name["pid"] == 1) rows[name["tid"]] = name["args"]["name"];
  }
  std::multimap<std::string, std::string> events;
  for (const Json& span : only(trace, "ph", "X")) {
    if (span["pid"] == 1) events.emplace(rows[span["tid"]], span["name"]);
  }
  EXPECT_THAT(
      events,
      ::testing::UnorderedElementsAre(
          std::pair("compute", "forward conv \"1\""), std::pair("compute", "backward conv \"1\""),
          std::pair("to the GPU", "upload conv \"1\""), std::pair("to the GPU", "upload"),
          std::pair("factors to the GPU", "upload_factors conv \"1\""),
          std::pair("from the GPU", "download conv \"1\""),
          std::pair("trainer", "stall conv \"1\""), std::pair("trainer", "rebuild conv \"1\"")));
  EXPECT_EQ(only(trace, "cat", "upload")[0]["args"]["bytes"], 64);
  EXPECT_TRUE(only(trace, "ph", "s").empty());
}

TEST(TraceData, PartsThatDoNotBelongAreRefused) {
  TraceData data;
  v1::TracePart events;
  events.mutable_events()->add_events();
  EXPECT_FALSE(data.add(events)) << "of whom?";
  EXPECT_FALSE(data.add(v1::TracePart()));
}

TEST(TraceData, StagesOfALaterVersionAreLeftOut) {
  v1::TraceEvent unknown = event_of(Stage::kForward, 0, 1);
  unknown.set_stage(200);
  EXPECT_TRUE(only(trace_of({unknown}, {}), "ph", "X").empty());
}

}  // namespace
}  // namespace poseidon::trace_json_test
