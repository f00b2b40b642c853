#pragma once

// Formats the progress of a running job. Pure: status in, text out.
//
// Called by: watch.h, which polls the coordinator and writes to stdout. Calls: nothing.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "poseidon/v1/control.pb.h"

namespace poseidon {

/// "0:07", "12:03", "2:05:09". Negative and non-finite values give "?".
std::string format_duration(double seconds);

/// The job is done, stopped or failed, and its rates are over with it.
bool has_ended(const v1::GetStatusResponse& status);

/// "0 B/s", "12.3 kB/s", "117 MB/s": powers of 1000, three significant digits.
std::string format_bytes_per_s(double bytes_per_s);

/// "1234" up to four digits, then with thousands: "431,080".
std::string format_count(std::int64_t count);

/// "2000 images/s".
std::string format_images_per_s(const v1::GetStatusResponse& status);

/// "0.1234"; "-" for NaN (not measured yet).
std::string format_measure(double value);

/// Bandwidth of all workers together, one part per scheme in force: "ps 34.1 MB/s up, 33.9 MB/s
/// down". Empty before the first measurement.
std::string format_bandwidth(const v1::GetStatusResponse& status);

/// "120/500"; "120" where only the job's programs know how many there are.
std::string iteration_of(const v1::GetStatusResponse& status);
/// "120 of 500"; "120".
std::string iterations_done(const v1::GetStatusResponse& status);

/// Seconds until the last iteration at the mean speed of those that iterated_seconds is the time
/// of; nullopt before the first of them. Does not change while no iteration finishes, as in a long
/// test.
std::optional<double> seconds_left(const v1::GetStatusResponse& status);

struct ProgressOptions {
  bool terminal = false;     ///< true: one live line, rewritten; false: plain lines
  std::size_t columns = 80;  ///< of the terminal; the live line is cut to fit
  /// When not on a terminal: the least time between two progress lines.
  Nanoseconds plain_interval = std::chrono::seconds(3);
  /// What to do while the job waits for nodes, after the coordinator's message; "": nothing.
  std::string waiting_hint;
};

/// Turns successive statuses of one job into text to write. One thread only.
class Progress {
 public:
  explicit Progress(ProgressOptions options) : options_(std::move(options)) {}

  /// Text to write now, possibly empty. `now` never goes backwards.
  std::string update(const v1::GetStatusResponse& status, Nanoseconds now);

  /// The coordinator does not answer, because of `why`. Prints a line the first time, and another
  /// with the next status.
  std::string unheard(const std::string& why);

  /// Ends the live line, so that other text can follow. Empty when there is none.
  std::string finish();

 private:
  std::string live_line(const v1::GetStatusResponse& status) const;
  std::string plain_lines(const v1::GetStatusResponse& status, Nanoseconds now);
  /// A line for each change of state, each new test result, and when the coordinator answers again.
  std::string events(const v1::GetStatusResponse& status, Nanoseconds now);

  const ProgressOptions options_;
  bool live_ = false;      ///< the cursor stands behind a live line
  bool unheard_ = false;   ///< since the last status
  std::string announced_;  ///< state and message last announced
  std::string remark_;     ///< the last message while it runs, ...
  Nanoseconds remark_since_{0};
  std::optional<std::uint64_t> tested_iteration_;
  std::optional<Nanoseconds> last_line_;
  std::uint64_t last_iteration_ = 0;
};

}  // namespace poseidon
