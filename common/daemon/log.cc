#include "common/daemon/log.h"

#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log_limit.h"
#include "common/base/text.h"
#include "common/threads/mutex.h"
#include "nlohmann/json.hpp"
#include "spdlog/formatter.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/base_sink.h"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

/// One process has one log, and so one context of it.
struct SharedContext {
  Mutex mutex;
  LogContext context ABSL_GUARDED_BY(mutex);
};
SharedContext& shared_context() {
  static SharedContext shared;
  return shared;
}

/// Whether the default logger is ours; spdlog's own writes to stdout.
bool& is_started() {
  static bool started = false;
  return started;
}

std::string_view view_of(spdlog::string_view_t text) { return {text.data(), text.size()}; }

class ContextFlag final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& /*message*/, const std::tm& /*time*/,
              spdlog::memory_buf_t& to) override {
    const std::string text = log_context_text(log_context());
    to.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<ContextFlag>();
  }
};

/// The message, with spaces for control characters: it may contain names from other machines, which
/// must not add lines to the log. (JSON has escapes for them.)
class MessageFlag final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm& /*time*/,
              spdlog::memory_buf_t& to) override {
    const std::string text = printable(view_of(message.payload));
    to.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<MessageFlag>();
  }
};

class JsonFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& to) override {
    spdlog::memory_buf_t time;
    time_.format(message, time);
    const std::string line = json_log_line(
        {time.data(), time.size()}, view_of(spdlog::level::to_string_view(message.level)),
        view_of(message.logger_name), ::getpid(), log_context(), view_of(message.payload));
    to.append(line.data(), line.data() + line.size());
    to.push_back('\n');
  }
  std::unique_ptr<formatter> clone() const override { return std::make_unique<JsonFormatter>(); }

 private:
  spdlog::pattern_formatter time_{"%Y-%m-%dT%H:%M:%S.%eZ", spdlog::pattern_time_type::utc, ""};
};

/// To stderr. Lines dropped by the limit are counted, and the next line of that kind reports their
/// number.
class LimitedStderr final : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const auto left_out = limit_.admit(view_of(message.payload), message.time.time_since_epoch());
    if (!left_out) return;
    if (*left_out == 0) {
      write(message);
      return;
    }
    const std::string text = absl::StrCat(std::string(view_of(message.payload)), " (", *left_out,
                                          " more lines like this were left out before it)");
    spdlog::details::log_msg told = message;
    told.payload = text;
    write(told);
  }
  void flush_() override { std::fflush(stderr); }

 private:
  void write(const spdlog::details::log_msg& message) {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    std::fwrite(line.data(), 1, line.size(), stderr);
  }

  LogLimit limit_;
};

}  // namespace

absl::Status start_log(std::string_view name, const LogOptions& options) {
  const spdlog::level::level_enum level = spdlog::level::from_str(options.level);
  if (level == spdlog::level::off && options.level != "off") {
    return absl::InvalidArgumentError(
        absl::StrCat("--log-level ", options.level,
                     " is unknown; known: trace, debug, info, warning, error, off"));
  }
  std::unique_ptr<spdlog::formatter> formatter;
  if (options.format == "text") {
    auto pattern = std::make_unique<spdlog::pattern_formatter>();
    pattern->add_flag<ContextFlag>('*').add_flag<MessageFlag>('_').set_pattern(
        "%Y-%m-%dT%H:%M:%S.%e %l %n[%P]%* %_");
    formatter = std::move(pattern);
  } else if (options.format == "json") {
    formatter = std::make_unique<JsonFormatter>();
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("--log-format ", options.format, " is unknown; known: text, json"));
  }
  auto logger =
      std::make_shared<spdlog::logger>(std::string(name), std::make_shared<LimitedStderr>());
  logger->set_formatter(std::move(formatter));
  logger->set_level(level);
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
  is_started() = true;
  return absl::OkStatus();
}

bool log_last_words(std::string_view words) {
  if (!is_started() || !spdlog::should_log(spdlog::level::err)) return false;
  spdlog::error("{}", words);
  return true;
}

void set_log_node(std::uint64_t node) {
  const MutexLock lock(shared_context().mutex);
  shared_context().context.node = node;
}

void set_log_job(std::string_view job, std::uint64_t epoch) {
  const MutexLock lock(shared_context().mutex);
  shared_context().context.job = std::string(job);
  shared_context().context.epoch = epoch;
}

LogContext log_context() {
  const MutexLock lock(shared_context().mutex);
  return shared_context().context;
}

std::string json_log_line(std::string_view time, std::string_view level, std::string_view daemon,
                          std::int64_t pid, const LogContext& context, std::string_view message) {
  nlohmann::ordered_json line = {{"time", std::string(time)},
                                 {"level", std::string(level)},
                                 {"daemon", std::string(daemon)},
                                 {"pid", pid}};
  if (context.node != 0) line["node"] = context.node;
  if (!context.job.empty()) {
    line["job"] = context.job;
    line["epoch"] = context.epoch;
  }
  line["message"] = std::string(message);
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string log_context_text(const LogContext& context) {
  std::string text;
  const auto add = [&text](const auto&... parts) {
    absl::StrAppend(&text, text.empty() ? " (" : ", ", parts...);
  };
  if (context.node != 0) add("node ", context.node);
  if (!context.job.empty()) add("job ", context.job, ", epoch ", context.epoch);
  return text.empty() ? text : text + ")";
}

}  // namespace poseidon
