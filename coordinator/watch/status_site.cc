#include "coordinator/watch/status_site.h"

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/pages/status_json.h"
#include "common/threads/mutex.h"
#include "coordinator/watch/status_page.h"
#include "nlohmann/json.hpp"

namespace poseidon {
namespace {

using Json = nlohmann::json;

constexpr const char* kApiPath = "/api/v1/status";

/// Nothing but our own two files and our own JSON: a name that a node chose can load and run
/// nothing, whatever the page did with it.
const std::vector<std::pair<std::string, std::string>>& safe_headers() {
  static const std::vector<std::pair<std::string, std::string>> kHeaders = {
      {"Content-Security-Policy",
       "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
       "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
      {"X-Content-Type-Options", "nosniff"},
      {"Referrer-Policy", "no-referrer"},
      {"Cross-Origin-Resource-Policy", "same-origin"},
      {"Cache-Control", "no-cache"}};
  return kHeaders;
}

HttpResponse respond(int status, std::string type, std::shared_ptr<const std::string> body) {
  return {.status = status,
          .content_type = std::move(type),
          .headers = safe_headers(),
          .body = std::move(body)};
}

HttpResponse respond_text(int status, const std::string& text) {
  HttpResponse response = text_response(status, text);
  response.headers = safe_headers();
  return response;
}

std::string etag_of(std::string_view text) {
  return absl::StrCat("\"", absl::Hex(std::hash<std::string_view>{}(text), absl::kZeroPad16), "\"");
}

/// If-None-Match: a list of tags, or *.
bool matches(const std::string& if_none_match, const std::string& etag) {
  const std::vector<std::string> tags = absl::StrSplit(if_none_match, ',');
  return std::any_of(tags.begin(), tags.end(), [&etag](const std::string& tag) {
    const absl::string_view stripped = absl::StripAsciiWhitespace(tag);
    return stripped == "*" || absl::StripPrefix(stripped, "W/") == etag;
  });
}

HttpResponse respond_if_changed(const HttpRequest& request, std::string type,
                                std::shared_ptr<const std::string> body, const std::string& etag) {
  const bool is_known = matches(request.if_none_match, etag);
  HttpResponse response =
      respond(is_known ? 304 : 200, std::move(type), is_known ? nullptr : std::move(body));
  response.headers.emplace_back("ETag", etag);
  return response;
}

const EmbeddedFile& page_file(std::string_view name) {
  const auto files = status_page_files();
  const auto it = std::find_if(files.begin(), files.end(),
                               [name](const EmbeddedFile& file) { return file.name == name; });
  POSEIDON_CHECK(it != files.end(), "the page was compiled in");
  return *it;
}

struct Page {
  const char* path;
  const char* file;
  const char* type;
};
constexpr std::array<Page, 3> kPages = {
    {{"/", "index.html", "text/html; charset=utf-8"},
     {"/page.css", "page.css", "text/css; charset=utf-8"},
     {"/page.js", "page.js", "text/javascript; charset=utf-8"}}};

Json curve_to_json(const LossCurve& curve) {
  Json points = Json::array();
  for (const LossCurve::Point& point : curve.points()) {
    points.push_back({{"iteration", point.first},
                      {"iterations", point.iterations},
                      {"loss", point.mean},
                      {"min", point.min},
                      {"max", point.max}});
  }
  return points;
}

Json tests_to_json(const LossCurve& curve) {
  Json tests = Json::array();
  for (const LossCurve::Test& test : curve.tests()) {
    tests.push_back(
        {{"iteration", test.iteration}, {"loss", test.loss}, {"accuracy", test.accuracy}});
  }
  return tests;
}

Json events_to_json(const std::deque<Event>& events) {
  Json json = Json::array();
  std::for_each(events.rbegin(), events.rend(), [&json](const Event& event) {
    json.push_back({{"number", event.number},
                    {"time_unix_ms", event.time_unix_ms},
                    {"kind", event_kind_name(event.kind)},
                    {"text", event.text}});
  });
  return json;
}

}  // namespace

std::string status_view_to_json(const StatusView& view) {
  Json json = status_to_json(view.status);
  json["version"] = software_version();
  json["loss_curve"] = curve_to_json(view.curve);
  json["tests"] = tests_to_json(view.curve);
  json["events"] = events_to_json(view.events);
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

StatusSite::Document StatusSite::status() {
  const MutexLock lock(mutex_);
  const Nanoseconds now = clock_->now();
  if (!last_ || now - last_->made >= kMaxAge) {
    auto text = std::make_shared<const std::string>(status_view_to_json(look_()));
    std::string etag = etag_of(*text);
    last_ = Document{.text = std::move(text), .etag = std::move(etag), .made = now};
  }
  return *last_;
}

HttpResponse StatusSite::answer(const HttpRequest& request) {
  if (request.method != "GET" && request.method != "HEAD") {
    HttpResponse refused = respond_text(405, "this page is read only: GET or HEAD\n");
    refused.headers.emplace_back("Allow", "GET, HEAD");
    return refused;
  }
  if (request.path == kApiPath) {
    Document document = status();
    return respond_if_changed(request, "application/json; charset=utf-8", std::move(document.text),
                              document.etag);
  }
  for (const Page& page : kPages) {
    if (request.path != page.path) continue;
    const EmbeddedFile& file = page_file(page.file);
    return respond_if_changed(request, page.type, std::make_shared<const std::string>(file.text),
                              etag_of(file.text));
  }
  return respond_text(404,
                      absl::StrCat("nothing is here; the page is /, its data ", kApiPath, "\n"));
}

}  // namespace poseidon
