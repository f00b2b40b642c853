#pragma once

// A node's end of the control stream on the in-memory network: the twin of
// common/node/control_client.h, with the same outbox, the same order of events and the same
// timeouts, but no threads.
//
// Called by: server_node.cc and sim_worker.cc, which report. Calls: sim_coordinator.cc.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/node/control_client.h"
#include "common/node/report_outbox.h"
#include "common/transport/transport.h"
#include "tests/sim/method_transport.h"

namespace poseidon::sim {

inline constexpr const char* kCoordinatorAddress = "10.0.0.1:4000";
inline constexpr const char* kUploadAddress = "10.0.0.1:4000/upload";

/// Protobuf in one message.
template <typename Message>
OutgoingMessage to_wire(const Message& message) {
  auto text = std::make_shared<const std::string>(message.SerializeAsString());
  return {.prefix = {},
          .payload = {reinterpret_cast<const std::byte*>(text->data()), text->size()},
          .payload_owner = text};
}
std::string text_of(const Bytes& bytes);

class SimControl final : public ReportSink, public StreamHandler {
 public:
  /// `ended`: no coordinator can be reached, or it refuses us: the process exits. Once, never from
  /// within a call.
  SimControl(Transport* transport, v1::Join join, ControlEvents* events,
             std::function<void(const absl::Status&)> ended);
  ~SimControl() override;
  SimControl(const SimControl&) = delete;
  SimControl& operator=(const SimControl&) = delete;

  void start() { connect(); }
  /// See ControlClient::stop_when_released; `ended` is called when it is released.
  void say_goodbye();
  bool send(v1::NodeMessage message) override;
  /// See ControlClient::upload_model.
  void upload(std::uint64_t epoch, std::string bytes,
              std::function<void(const absl::Status&)> done);

  ReadNext on_message(Bytes message) override;
  void on_written() override;
  void on_closed(const absl::Status& status) override;

 private:
  class Upload;

  void connect();
  void conversation_ended(const absl::Status& status);
  void pump();
  void beat(std::uint64_t join);
  void dispatch(const v1::CoordinatorMessage& message);
  void take_up_part(const v1::Joined& joined);
  void end_part();
  void after(Nanoseconds delay, std::function<void()> function);
  void try_upload();
  void upload_ended(const absl::Status& status);

  Transport* const transport_;
  v1::Join join_;
  ControlEvents* const events_;
  const std::function<void(const absl::Status&)> ended_;
  ReportOutbox outbox_;
  std::unique_ptr<Stream> stream_;
  std::deque<v1::NodeMessage> outgoing_;
  bool writing_ = false;
  bool sends_reports_ = false;
  bool joined_ = false;
  bool leaves_ = false;  ///< it has said goodbye
  std::uint64_t attempts_ = 0, joins_ = 0, node_id_ = 0;
  Nanoseconds since_{0}, backoff_{Milliseconds(100)};
  Nanoseconds heartbeat_{Milliseconds(500)};
  std::unique_ptr<Upload> upload_;
  /// Timers outlive us in the loop; they look here before they touch us.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace poseidon::sim
