#pragma once

// The coordinator's status page: answers each path. Read-only.
//
// Called by: common/pages/http_server.h, for browsers (status_page/) and scripts. Calls:
// coordinator/watch/status_page.h, common/pages/status_json.h.
//
//   /                 the page; /page.css and /page.js are its parts
//   /api/v1/status    what `poseidon status --json` prints, and with it "version", "loss_curve",
//                     "tests" and "events" (docs/status_page.md)

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/pages/http_server.h"
#include "common/threads/mutex.h"
#include "coordinator/records/loss_curve.h"
#include "coordinator/watch/event_list.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// All of one moment.
struct StatusView {
  v1::GetStatusResponse status;
  LossCurve curve;
  std::deque<Event> events;
};

/// The JSON of /api/v1/status. Text from nodes is always escaped as JSON strings; bytes that are
/// not UTF-8 become U+FFFD. Pure.
std::string status_view_to_json(const StatusView& view);

/// Any thread.
class StatusSite {
 public:
  /// The view is refreshed at most this often, however many clients there are.
  static constexpr Nanoseconds kMaxAge = Milliseconds(500);

  /// `look` is called on any thread, never twice at a time; `clock` outlives it.
  StatusSite(std::function<StatusView()> look, const Clock* clock)
      : look_(std::move(look)), clock_(clock) {}

  HttpResponse answer(const HttpRequest& request);

 private:
  struct Document {
    std::shared_ptr<const std::string> text;
    std::string etag;
    Nanoseconds made{0};
  };
  Document status();

  const std::function<StatusView()> look_;
  const Clock* const clock_;
  Mutex mutex_;
  std::optional<Document> last_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace poseidon
