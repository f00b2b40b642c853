#include "cli/terminal/progress.h"

#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/text.h"

namespace poseidon {
namespace {

constexpr const char* kRewriteLine = "\r\x1b[K";  // to the first column, clear to the end
/// What is over sooner is not worth a line.
constexpr Nanoseconds kRemarkDelay = std::chrono::seconds(3);

std::string details(const v1::GetStatusResponse& status, const char* separator) {
  std::string text = absl::StrCat("loss ", format_measure(status.loss()));
  if (!has_ended(status)) absl::StrAppend(&text, separator, format_images_per_s(status));
  if (const auto left = seconds_left(status)) {
    absl::StrAppend(&text, separator, format_duration(*left), " left");
  }
  if (const std::string bandwidth = format_bandwidth(status); !bandwidth.empty()) {
    absl::StrAppend(&text, separator, bandwidth);
  }
  return text;
}

}  // namespace

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e9) return "?";
  const std::int64_t whole = std::llround(seconds);
  const std::int64_t hours = whole / 3600;
  if (hours > 0) return absl::StrFormat("%d:%02d:%02d", hours, whole / 60 % 60, whole % 60);
  return absl::StrFormat("%d:%02d", whole / 60, whole % 60);
}

std::string format_bytes_per_s(double bytes_per_s) {
  if (!std::isfinite(bytes_per_s) || bytes_per_s < 0) return "?";
  return scaled_text(bytes_per_s, "B/s");
}

std::string format_count(std::int64_t count) {
  std::string digits = std::to_string(count);
  if (digits.size() <= 4) return digits;
  const std::size_t first = digits.front() == '-' ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3;) {
    at -= 3;
    digits.insert(at, 1, ',');
  }
  return digits;
}

std::string format_images_per_s(const v1::GetStatusResponse& status) {
  return absl::StrCat(format_count(std::llround(status.images_per_s())), " images/s");
}

std::string format_measure(double value) {
  if (std::isnan(value)) return "-";
  return absl::StrFormat("%.4f", value);
}

std::string format_bandwidth(const v1::GetStatusResponse& status) {
  struct Rates {
    double sent = 0;
    double received = 0;
  };
  std::map<std::string, Rates> by_scheme;
  for (const v1::LayerStatus& layer : status.layers()) {
    Rates& rates = by_scheme[layer.scheme()];
    rates.sent += layer.sent_bytes_per_s();
    rates.received += layer.received_bytes_per_s();
  }
  std::string text;
  for (const auto& [scheme, rates] : by_scheme) {
    if (rates.sent <= 0 && rates.received <= 0) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ", printable(scheme), " ",
                    format_bytes_per_s(rates.sent), " up, ", format_bytes_per_s(rates.received),
                    " down");
  }
  return text;
}

std::string iteration_of(const v1::GetStatusResponse& status) {
  if (status.iterations() == 0) return absl::StrCat(status.iteration());
  return absl::StrCat(status.iteration(), "/", status.iterations());
}

std::string iterations_done(const v1::GetStatusResponse& status) {
  if (status.iterations() == 0) return absl::StrCat(status.iteration());
  return absl::StrCat(status.iteration(), " of ", status.iterations());
}

std::optional<double> seconds_left(const v1::GetStatusResponse& status) {
  if (status.iteration() <= status.training_from() || status.iterations() < status.iteration()) {
    return std::nullopt;
  }
  const auto done = static_cast<double>(status.iteration() - status.training_from());
  const auto missing = static_cast<double>(status.iterations() - status.iteration());
  return missing * status.iterated_seconds() / done;
}

bool has_ended(const v1::GetStatusResponse& status) {
  return status.state() == "done" || status.state() == "stopped" || status.state() == "failed";
}

std::string Progress::update(const v1::GetStatusResponse& status, Nanoseconds now) {
  if (!options_.terminal) return plain_lines(status, now);
  const std::string lines = events(status, now);
  std::string text = lines.empty() || !live_ ? lines : absl::StrCat(kRewriteLine, lines);
  if (status.state() == "running") {
    absl::StrAppend(&text, kRewriteLine, live_line(status));
    live_ = true;
  } else if (!lines.empty()) {
    live_ = false;
  }
  return text;
}

std::string Progress::unheard(const std::string& why) {
  if (std::exchange(unheard_, true)) return "";
  return absl::StrCat(std::exchange(live_, false) ? kRewriteLine : "", printable(why), "\n");
}

std::string Progress::finish() {
  if (!live_) return "";
  live_ = false;
  return "\n";
}

std::string Progress::live_line(const v1::GetStatusResponse& status) const {
  const std::string percent =
      status.iterations() == 0
          ? ""
          : absl::StrCat(" ", status.iteration() * 100 / status.iterations(), "%");
  std::string line = absl::StrCat(printable(status.job()), " ", iteration_of(status), percent,
                                  " | ", details(status, " | "));
  // One column stays free: some terminals wrap as soon as the last one is written.
  if (options_.columns > 0 && line.size() > options_.columns - 1) {
    line.resize(options_.columns - 1);
  }
  return line;
}

std::string Progress::plain_lines(const v1::GetStatusResponse& status, Nanoseconds now) {
  std::string text;
  const bool ended = has_ended(status);
  const bool due = !last_line_ || now - *last_line_ >= options_.plain_interval;
  if (status.iteration() > last_iteration_ && (due || ended)) {
    absl::StrAppend(&text, "iteration ", iteration_of(status), "  ", details(status, "  "), "\n");
    last_line_ = now;
    last_iteration_ = status.iteration();
  }
  const std::string lines = events(status, now);
  // The iterations come before the end, but after the beginning.
  return status.state() == "running" ? absl::StrCat(lines, text) : absl::StrCat(text, lines);
}

std::string Progress::events(const v1::GetStatusResponse& status, Nanoseconds now) {
  std::string text;
  if (std::exchange(unheard_, false)) text = "the coordinator answers again\n";
  if (!std::isnan(status.test_accuracy()) && tested_iteration_ != status.tested_iteration() &&
      (status.state() == "running" || status.state() == "done")) {
    tested_iteration_ = status.tested_iteration();
    absl::StrAppend(&text, "test after ", status.tested_iteration(), " iterations  loss ",
                    format_measure(status.test_loss()), "  accuracy ",
                    format_measure(status.test_accuracy()), "\n");
  }
  std::string state = status.state();
  // While it runs, the message is a remark, worth a line when it stays; before and after, it is the
  // news.
  const bool runs = status.state() == "running";
  const std::string remark = runs ? status.message() : "";
  if (std::exchange(remark_, remark) != remark) remark_since_ = now;
  if (!status.message().empty() && (!runs || now - remark_since_ >= kRemarkDelay)) {
    absl::StrAppend(&state, ": ", status.message());
    if (status.state() == "waiting") absl::StrAppend(&state, options_.waiting_hint);
  }
  if (state != announced_) {
    announced_ = state;
    absl::StrAppend(&text, printable(absl::StrCat(status.job(), " ", state)), "\n");
  }
  return text;
}

}  // namespace poseidon
