#include "cli/remote/trace_json.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace poseidon {
namespace {

using Json = nlohmann::json;

/// Rows of a process; those of streams follow, one per peer.
constexpr std::uint32_t kComputeRow = 1, kUploadRow = 2, kUploadFactorsRow = 3, kDownloadRow = 4,
                        kTrainerRow = 5, kTestRow = 6, kReceiveRow = 7, kRelayRow = 8,
                        kAggregateRow = 1, kDiskRow = 2, kServerRows = 100, kWorkerRows = 10'000,
                        kToRelayRows = 20'000, kOfRelayRows = 30'000;

class Writer {
 public:
  Writer(const TraceData& data, const std::function<void(std::string_view)>& write)
      : data_(data), write_(write), nodes_(timed_nodes(data)) {
    begin_ = Nanoseconds::max();
    for (const TimedNode& node : nodes_) {
      if (!node.events.empty()) begin_ = std::min(begin_, node.events.front().begin);
    }
    for (const auto& layer : data.head.plan().layers()) layers_.push_back(layer.name());
  }

  void run() {
    write_("{\"displayTimeUnit\":\"ms\",\"otherData\":");
    write_(other_data().dump());
    write_(",\"traceEvents\":[\n");
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      pid_ = n + 1;
      name("process_name", 0, nodes_[n].name());
      emit({{"ph", "M"}, {"name", "process_sort_index"}, {"args", {{"sort_index", pid_}}}}, 0);
      rows_.clear();
      has_device_ = std::any_of(nodes_[n].events.begin(), nodes_[n].events.end(),
                                [](const TimedEvent& e) { return is_device_copy(e.stage); });
      for (const TimedEvent& event : nodes_[n].events) add(nodes_[n], event);
      for (const auto& [row, text] : rows_) {
        name("thread_name", row, text);
        emit({{"ph", "M"}, {"name", "thread_sort_index"}, {"args", {{"sort_index", row}}}}, row);
      }
    }
    write_("\n]}\n");
  }

 private:
  Json other_data() const {
    Json clocks = Json::array();
    for (const TraceData::Node& node : data_.nodes) {
      clocks.push_back(
          {{"node", absl::StrCat(node.node.role() == v1::NODE_ROLE_SERVER ? "server " : "worker ",
                                 node.node.index())},
           {"address", node.node.address()},
           {"offset_us", static_cast<double>(node.node.clock_offset_ns()) * 1e-3},
           {"error_us", node.node.clock_echoes() == 0
                            ? Json(nullptr)
                            : Json(static_cast<double>(node.node.clock_error_ns()) * 1e-3)},
           {"echoes", node.node.clock_echoes()},
           {"dropped_events", node.node.dropped()}});
    }
    return {{"job", data_.head.job()},
            {"job_id", data_.head.job_id()},
            {"first_iteration", data_.head.first_iteration()},
            {"iterations", data_.head.iterations()},
            {"clocks", clocks},
            {"notes", data_.notes}};
  }

  void emit(Json event, std::uint32_t row) {
    event["pid"] = pid_;
    event["tid"] = row;
    write_(first_ ? "" : ",\n");
    first_ = false;
    write_(event.dump(-1, ' ', false, Json::error_handler_t::replace));
  }

  void name(const char* what, std::uint32_t row, const std::string& text) {
    emit({{"ph", "M"}, {"name", what}, {"args", {{"name", text}}}}, row);
  }

  double us(Nanoseconds time) const { return static_cast<double>((time - begin_).count()) * 1e-3; }

  /// Of the trainer's thread, beside which a GPU computes.
  static bool is_of_trainer(Stage stage) {
    return stage == Stage::kInput || stage == Stage::kStall || stage == Stage::kRebuild ||
           stage == Stage::kCopy;
  }

  /// The row of an event, which is named the first time.
  std::uint32_t row_of(const TimedNode& node, const TimedEvent& event) {
    std::uint32_t row = node.is_server ? kAggregateRow : kComputeRow;
    std::string text = node.is_server ? "aggregate" : "compute";
    // A row for each of the streams on which a GPU copies, lest copies overlap on one.
    if (event.stage == Stage::kUpload) {
      row = kUploadRow;
      text = "to the GPU";
    } else if (event.stage == Stage::kUploadFactors) {
      row = kUploadFactorsRow;
      text = "factors to the GPU";
    } else if (event.stage == Stage::kDownload) {
      row = kDownloadRow;
      text = "from the GPU";
    } else if (event.stage == Stage::kTest) {
      row = kTestRow;
      text = "test";
    } else if (event.stage == Stage::kWrite) {
      row = kDiskRow;
      text = "disk";
    } else if (event.stage == Stage::kCopy && event.peer) {
      row = kReceiveRow;
      text = "receive";
    } else if (has_device_ && is_of_trainer(event.stage)) {
      row = kTrainerRow;
      text = "trainer";
    } else if (event.stage == Stage::kSum && !node.is_server) {
      row = kRelayRow;
      text = "aggregate for the group";
    } else if (event.stage == Stage::kSend) {
      const std::uint32_t peer = event.peer.value_or(0);
      const bool to_server = !node.is_server && event.chunk.has_value();
      const auto choose = [&](std::uint32_t rows, const char* to) {
        row = peer + rows;
        text = absl::StrCat("send to ", to, peer);
      };
      if (event.relay_end == RelayEnd::kWorker) {
        choose(kToRelayRows, "the relay of worker ");
      } else if (event.relay_end == RelayEnd::kRelay) {
        choose(kOfRelayRows, "the group's worker ");
      } else {
        choose(to_server ? kServerRows : kWorkerRows, to_server ? "server " : "worker ");
      }
    }
    rows_.try_emplace(row, std::move(text));
    return row;
  }

  std::string layer_of(const TimedEvent& event) const {
    if (!event.layer) return "";
    return *event.layer < layers_.size() ? layers_[*event.layer] : absl::StrCat(*event.layer);
  }

  void add(const TimedNode& node, const TimedEvent& event) {
    const char* stage = stage_name(event.stage);
    const std::string layer = layer_of(event);
    Json args = {{"iteration", event.iteration}};
    if (event.layer) args["layer"] = layer;
    if (event.chunk) args[event.stage == Stage::kWrite ? "piece" : "chunk"] = *event.chunk;
    if (event.peer) args["peer"] = *event.peer;
    if (event.bytes > 0) args["bytes"] = event.bytes;
    Json json = {{"name", layer.empty() ? stage : absl::StrCat(stage, " ", layer)},
                 {"cat", stage},
                 {"ts", us(event.begin)},
                 {"args", std::move(args)}};
    // Many chunks wait at a time, and snapshots overlap: those have no row of their own.
    if (event.stage == Stage::kQueue || event.stage == Stage::kCheckpoint) {
      json["id"] = absl::StrCat(pid_, ".", ++asynchronous_);
      json["ph"] = "b";
      Json end = {{"ph", "e"},
                  {"name", json["name"]},
                  {"cat", stage},
                  {"id", json["id"]},
                  {"ts", us(event.end)}};
      emit(std::move(json), 0);
      emit(std::move(end), 0);
      return;
    }
    const std::uint32_t row = row_of(node, event);
    json["ph"] = "X";
    json["dur"] = static_cast<double>((event.end - event.begin).count()) * 1e-3;
    emit(std::move(json), row);
    add_arrow(node, event, row);
  }

  /// Gradient to sum, and parameters to their place: both ends know the same name for it.
  void add_arrow(const TimedNode& node, const TimedEvent& event, std::uint32_t row) {
    if (!event.chunk || !event.peer || event.stage == Stage::kWrite) return;
    const bool begins = event.stage == Stage::kSend;
    const bool is_above = node.is_server || event.relay_end == RelayEnd::kRelay;
    const bool up = is_above != begins;
    const std::uint32_t worker = is_above ? *event.peer : node.index;
    const bool in_group = event.relay_end != RelayEnd::kNone;
    Json arrow = {{"ph", begins ? "s" : "f"},
                  {"name", up ? "gradient" : "parameters"},
                  {"cat", "message"},
                  {"id", absl::StrCat(in_group ? "r" : "", up ? "g" : "p", event.iteration, ".",
                                      *event.chunk, ".", worker)},
                  {"ts", us(event.begin)}};
    if (!begins) arrow["bp"] = "e";
    emit(std::move(arrow), row);
  }

  const TraceData& data_;
  const std::function<void(std::string_view)>& write_;
  const std::vector<TimedNode> nodes_;
  std::vector<std::string> layers_;
  Nanoseconds begin_{0};
  std::size_t pid_ = 0;
  bool has_device_ = false;  ///< this process: with memory of its own
  std::uint64_t asynchronous_ = 0;
  bool first_ = true;
  std::map<std::uint32_t, std::string> rows_;
};

}  // namespace

void write_trace_json(const TraceData& data, const std::function<void(std::string_view)>& write) {
  Writer(data, write).run();
}

}  // namespace poseidon
