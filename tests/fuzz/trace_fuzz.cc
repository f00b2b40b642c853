// The command line tool with arbitrary answers of a coordinator: a trace, part by part, and the
// status. It makes from them the file for Perfetto and the output of `doctor`, `top` and `status`.
//
// Each step begins with a byte that chooses the next message: one in wire format, after two bytes
// with its length, or one composed of single bytes, some of which stand for impossible numbers.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "cli/doctor/doctor_diagnose.h"
#include "cli/doctor/doctor_facts.h"
#include "cli/doctor/doctor_format.h"
#include "cli/remote/trace_data.h"
#include "cli/remote/trace_json.h"
#include "cli/terminal/status_format.h"
#include "cli/terminal/top_format.h"
#include "common/base/check.h"
#include "common/pages/status_json.h"
#include "tests/fuzz/input.h"

namespace poseidon::fuzz {
namespace {

constexpr int kMaxSteps = 400;

class Told {
 public:
  explicit Told(Input input) : input_(input) {}

  void read() {
    for (int step = 0; step < kMaxSteps && !input_.rest().empty(); ++step) {
      switch (input_.byte() % 7) {
        case 0:
          if (v1::TracePart part; parse(part)) add(part);
          break;
        case 1:
          if (v1::GetStatusResponse status; parse(status)) status_.MergeFrom(status);
          break;
        case 2:
          add_node();
          break;
        case 3:
          add_layer();
          break;
        case 4:
          add_node_status();
          break;
        default:
          add_event();
          break;
      }
    }
  }

  void use() const {
    const std::vector<TimedNode> nodes = timed_nodes(trace_);
    for (const TimedNode& node : nodes) {
      Nanoseconds before = Nanoseconds::min();
      for (const TimedEvent& event : node.events) {
        POSEIDON_CHECK(before <= event.begin && event.begin <= event.end, "in their order");
        before = event.begin;
      }
    }
    for (const TracedMessage& message : traced_messages(nodes)) {
      POSEIDON_CHECK(message.from < nodes.size() && message.to < nodes.size(),
                     "of nodes there are");
    }
    std::string text;
    write_trace_json(trace_, [&text](std::string_view piece) { text.append(piece); });
    POSEIDON_CHECK(nlohmann::json::accept(text), "the file is JSON");

    const DoctorFacts facts = make_facts(trace_, status_);
    const std::vector<Finding> findings = diagnose(facts);
    POSEIDON_CHECK(!findings.empty(), "there is always something to say");
    for (const Finding& finding : findings) {
      POSEIDON_CHECK(finding.cost_s >= 0.0 && finding.cost_s <= std::max(facts.iteration_s, 0.0),
                     "it costs a part of an iteration");
      POSEIDON_CHECK(finding.share >= 0.0 && finding.share <= 1.0, "likewise");
    }
    (void)doctor_to_json(facts, findings).dump();
    (void)doctor_to_text(facts, findings);

    (void)status_to_json(status_).dump();
    (void)status_to_text(status_);
    const TopSize size{.columns = 80, .rows = 24};
    const auto lines = top_lines(status_, size);
    POSEIDON_CHECK(lines.size() <= size.rows, "it fits");
    for (const std::string& line : lines) POSEIDON_CHECK(line.size() <= size.columns, "likewise");
  }

 private:
  template <typename Message>
  bool parse(Message& message) {
    const std::size_t high = input_.byte();
    const std::size_t wanted = high * 256 + input_.byte();
    const std::string_view bytes = input_.rest().substr(0, wanted);
    input_.skip(bytes.size());
    return message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  }

  std::uint64_t number(std::uint64_t unit = 1) {
    constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
    constexpr std::array<std::uint64_t, 8> kStrange = {
        kMost,      kMost / 2,  kMost / 2 + 1,    kMost / 4,
        1ull << 32, 1ull << 31, (1ull << 32) - 1, (1ull << 60) + 1};
    const std::uint8_t byte = input_.byte();
    constexpr std::uint8_t kFirst = 256 - kStrange.size();
    return byte >= kFirst ? kStrange.at(byte - kFirst) : byte * unit;
  }
  std::uint32_t small() { return static_cast<std::uint32_t>(number()); }
  double real() {
    constexpr double kInfinite = std::numeric_limits<double>::infinity();
    constexpr std::array<double, 8> kStrange = {std::numeric_limits<double>::quiet_NaN(),
                                                kInfinite,
                                                -kInfinite,
                                                -1.0,
                                                1e308,
                                                -1e308,
                                                5e-324,
                                                -0.0};
    const std::uint8_t byte = input_.byte();
    constexpr std::uint8_t kFirst = 256 - kStrange.size();
    return byte >= kFirst ? kStrange.at(byte - kFirst) : byte / 16.0;
  }

  void add(const v1::TracePart& part) { (void)trace_.add(part); }

  void add_node() {
    v1::TracePart part;
    v1::TraceNode& node = *part.mutable_node();
    const std::uint32_t who = input_.byte();
    node.set_role(who % 2 == 0 ? v1::NODE_ROLE_WORKER : v1::NODE_ROLE_SERVER);
    node.set_index(who / 2);
    node.set_address("10.0.0." + std::to_string(who % 8) + ":1");
    node.set_clock_offset_ns(static_cast<std::int64_t>(number(1000)));
    node.set_clock_error_ns(number());
    add(part);
  }

  void add_event() {
    v1::TracePart part;
    v1::TraceEvent& event = *part.mutable_events()->add_events();
    event.set_stage(small());
    event.set_begin_ns(number(100'000));
    event.set_duration_ns(number(10'000));
    event.set_iteration(number());
    event.set_layer(small());
    event.set_chunk(small());
    event.set_peer(small());
    event.set_bytes(number(1000));
    event.set_relay_end(small());
    add(part);
  }

  /// And a chunk of it.
  void add_layer() {
    v1::TracePart part;
    if (trace_.nodes.empty()) *part.mutable_head() = trace_.head;
    v1::PlanMessage& plan = *part.mutable_head()->mutable_plan();
    plan.set_batch_size(small());
    v1::PlanLayerMessage& layer = *plan.add_layers();
    layer.set_name("layer" + std::to_string(plan.layers_size()));
    layer.set_type("fully_connected");
    layer.set_scheme("ps");
    layer.set_parameters(static_cast<std::int64_t>(number(1000)));
    v1::PlanChunkMessage& chunk = *plan.add_chunks();
    chunk.set_server(small());
    chunk.set_elements(static_cast<std::int64_t>(number(1000)));
    if (plan.server_addresses_size() < 4) plan.add_server_addresses("10.0.0.1:1");
    add(part);
  }

  void add_node_status() {
    const std::uint32_t who = input_.byte();
    v1::NodeStatus& node = who % 2 == 0 ? *status_.add_workers() : *status_.add_servers();
    node.set_rank(static_cast<std::int32_t>(who / 2));
    node.set_images_per_s(real());
    node.set_compute_share(real());
    node.set_stall_share(real());
    v1::LoadStatus& load = *node.mutable_load();
    load.set_machine(number());
    load.set_cores(small());
    load.set_cores_used(real());
    load.set_cores_wanted(real());
    load.set_disk_share(real());
    load.set_disk_bytes_per_s(real());
    load.set_disk_waiting(number());
  }

  Input input_;
  TraceData trace_;
  v1::GetStatusResponse status_;
};

}  // namespace
}  // namespace poseidon::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace poseidon;
  google::protobuf::SetLogHandler(nullptr);  // it logs every text that is no UTF-8
  fuzz::Told told(fuzz::Input(data, size));
  told.read();
  told.use();
  return 0;
}
