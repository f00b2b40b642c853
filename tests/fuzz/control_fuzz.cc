// Messages between coordinator and nodes, after protobuf has parsed them: Join and every text for a
// log line on the coordinator's side, the plan on a node's. The first byte chooses.

#include "common/base/check.h"
#include "common/plan/plan_proto.h"
#include "coordinator/members/admission.h"
#include "nlohmann/json.hpp"
#include "poseidon/v1/control.pb.h"
#include "tests/fuzz/input.h"

namespace poseidon::fuzz {
namespace {

void check_line(const std::string& text) {
  const std::string line = one_line(text);
  for (const char c : line) {
    POSEIDON_CHECK(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f, "no control character");
  }
  (void)nlohmann::json(line).dump();  // throws where a letter of UTF-8 is cut through
}

void node_message(std::string_view bytes) {
  v1::NodeMessage message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  check_line(message.leave().reason());
  check_line(message.failed().reason());
  check_line(message.checkpoint().reason());
  if (message.has_failed()) ++accepted;
  if (!message.has_join()) return;
  for (const char* const peer : {"10.0.0.1", "::1", ""}) {
    if (admit(message.join(), peer).ok()) ++accepted;
  }
}

void plan(std::string_view bytes) {
  v1::PlanMessage message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  const auto plan = plan_from_message(message);
  if (!plan.ok()) return;
  const auto again = plan_from_message(plan_to_message(*plan));
  POSEIDON_CHECK(again.ok() && plan_to_json(*again) == plan_to_json(*plan), "a plan stays a plan");
  ++accepted;
}

}  // namespace
}  // namespace poseidon::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace poseidon;
  // It logs every text that is no UTF-8.
  google::protobuf::SetLogHandler(nullptr);
  fuzz::Input input(data, size);
  switch (input.byte() % 3) {
    case 0:
      fuzz::node_message(input.rest());
      break;
    case 1:
      fuzz::plan(input.rest());
      break;
    default:
      if (!host_of_peer(std::string(input.rest())).empty()) ++fuzz::accepted;
      break;
  }
  return 0;
}
