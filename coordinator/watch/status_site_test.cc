#include "coordinator/watch/status_site.h"

#include <chrono>
#include <limits>

#include "common/pages/status_json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace poseidon::status_site_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

constexpr const char* kHostile = "</script><img src=x onerror=alert(1)>\"'&\u2028";

StatusView view_of(int workers, int layers) {
  StatusView view;
  view.status.set_job("digits");
  view.status.set_state("running");
  view.status.set_loss(std::numeric_limits<double>::quiet_NaN());
  for (int i = 0; i < workers; ++i) {
    v1::NodeStatus& worker = *view.status.add_workers();
    worker.set_rank(i);
    worker.set_address("10.0.0." + std::to_string(i) + ":4702");
    worker.set_device(kHostile);
    worker.set_state("running");
    worker.set_images_per_s(100.5);
  }
  for (int i = 0; i < layers; ++i) {
    v1::LayerStatus& layer = *view.status.add_layers();
    layer.set_name("block" + std::to_string(i / 10) + "_conv" + std::to_string(i % 10));
    layer.set_scheme("ps");
    layer.set_sent_bytes_per_s(123456.789 * i);
    layer.set_received_bytes_per_s(123456.789 * i);
    layer.set_reason("a convolution layer has no factors to send");
  }
  view.curve.add({.iteration = 0, .loss = 2.5});
  view.curve.add({.iteration = 1, .loss = std::nullopt, .test_loss = 2.0, .test_accuracy = 0.25});
  view.events = {{.number = 1, .time_unix_ms = 5, .kind = EventKind::kJoin, .text = "first"},
                 {.number = 2, .time_unix_ms = 6, .kind = EventKind::kAlarm, .text = kHostile}};
  return view;
}

std::string header(const HttpResponse& response, const std::string& name) {
  for (const auto& [key, value] : response.headers) {
    if (key == name) return value;
  }
  return "";
}

class StatusSiteTest : public ::testing::Test {
 protected:
  HttpResponse get(const std::string& path, const std::string& if_none_match = "") {
    return site_.answer({.method = "GET", .path = path, .if_none_match = if_none_match});
  }

  StatusView view_ = view_of(2, 3);
  int looks_ = 0;
  ManualClock clock_;
  StatusSite site_{[this] {
                     ++looks_;
                     return view_;
                   },
                   &clock_};
};

TEST_F(StatusSiteTest, ThePageIsThreeFilesOfOurs) {
  EXPECT_EQ(get("/").content_type, "text/html; charset=utf-8");
  EXPECT_THAT(*get("/").body, HasSubstr("<!doctype html>"));
  EXPECT_EQ(get("/page.css").content_type, "text/css; charset=utf-8");
  EXPECT_EQ(get("/page.js").content_type, "text/javascript; charset=utf-8");
  for (const char* path : {"/", "/page.css", "/page.js", "/api/v1/status"}) {
    const HttpResponse response = get(path);
    EXPECT_EQ(response.status, 200) << path;
    EXPECT_THAT(header(response, "Content-Security-Policy"), HasSubstr("default-src 'none'"));
    EXPECT_THAT(header(response, "Content-Security-Policy"), Not(HasSubstr("unsafe")));
    EXPECT_EQ(header(response, "X-Content-Type-Options"), "nosniff");
  }
  // Nothing that the policy would refuse, and nothing from elsewhere.
  for (const char* path : {"/", "/page.css", "/page.js"}) {
    const std::string text = *get(path).body;
    EXPECT_THAT(text, Not(HasSubstr("https:"))) << path;
    EXPECT_THAT(text, Not(HasSubstr("innerHTML"))) << path;
    EXPECT_THAT(text, Not(HasSubstr(" onclick"))) << path;
    EXPECT_THAT(text, Not(HasSubstr(" style="))) << path;
  }
}

TEST_F(StatusSiteTest, OthersAreRefused) {
  for (const char* path :
       {"/api/v2/status", "/api/v1/status/", "/index.html", "/..", "", "/page.js/"}) {
    EXPECT_EQ(get(path).status, 404) << path;
  }
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "get", ""}) {
    const HttpResponse response =
        site_.answer({.method = method, .path = "/api/v1/status", .if_none_match = ""});
    EXPECT_EQ(response.status, 405) << method;
    EXPECT_EQ(header(response, "Allow"), "GET, HEAD");
  }
  EXPECT_EQ(looks_, 0);
  EXPECT_EQ(site_.answer({.method = "HEAD", .path = "/", .if_none_match = ""}).status, 200);
}

TEST_F(StatusSiteTest, JsonIsTheOneOfTheCommandAndMore) {
  Json json = Json::parse(*get("/api/v1/status").body);
  EXPECT_EQ(json["loss_curve"],
            Json::parse(R"([{"iteration":0,"iterations":1,"loss":2.5,"min":2.5,"max":2.5}])"));
  EXPECT_EQ(json["tests"], Json::parse(R"([{"iteration":1,"loss":2.0,"accuracy":0.25}])"));
  ASSERT_EQ(json["events"].size(), 2u);
  EXPECT_EQ(json["events"][0]["kind"], "alarm");  // newest first
  EXPECT_EQ(json["events"][1]["text"], "first");
  for (const char* more : {"version", "loss_curve", "tests", "events"}) json.erase(more);
  EXPECT_EQ(json, status_to_json(view_.status));
}

TEST_F(StatusSiteTest, HostileTextStaysText) {
  view_.status.mutable_workers(0)->set_state("\xff\xfe broken");
  const Json json = Json::parse(*get("/api/v1/status").body);
  EXPECT_EQ(json["workers"][0]["device"], kHostile);
  EXPECT_EQ(json["workers"][0]["state"], "\uFFFD\uFFFD broken");
  EXPECT_EQ(json["events"][0]["text"], kHostile);
}

TEST_F(StatusSiteTest, AnUnchangedStatusIsNotSentAgain) {
  const std::string tag = header(get("/api/v1/status"), "ETag");
  ASSERT_FALSE(tag.empty());
  clock_.advance(StatusSite::kMaxAge);
  for (const std::string& known : {tag, "W/" + tag, "\"other\", " + tag, std::string("*")}) {
    const HttpResponse again = get("/api/v1/status", known);
    EXPECT_EQ(again.status, 304) << known;
    EXPECT_EQ(again.body, nullptr);
    EXPECT_EQ(header(again, "ETag"), tag);
  }
  view_.status.set_iteration(7);
  clock_.advance(StatusSite::kMaxAge);
  EXPECT_EQ(get("/api/v1/status", tag).status, 200);
}

TEST_F(StatusSiteTest, ManyWhoLookCostNoMoreThanOne) {
  for (int i = 0; i < 100; ++i) get("/api/v1/status");
  EXPECT_EQ(looks_, 1);
  clock_.advance(StatusSite::kMaxAge);
  get("/api/v1/status");
  EXPECT_EQ(looks_, 2);
}

TEST(StatusViewJson, OfALargeClusterIsSmallAndQuick) {
  const StatusView view = view_of(64, 1000);
  const auto begin = std::chrono::steady_clock::now();
  const std::string text = status_view_to_json(view);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  RecordProperty("bytes", static_cast<int>(text.size()));
  printf("64 workers, 1000 layers: %zu bytes in %.1f ms\n", text.size(), took.count());
  EXPECT_LT(text.size(), 512u << 10);
}

}  // namespace
}  // namespace poseidon::status_site_test
