#pragma once

// For tests: an asynchronous device without a GPU. All queued work waits in one queue and runs only
// when the caller waits for it, or as many pieces per query as the test says. Code that reads too
// early, or frees or overwrites data that is still needed, gets wrong values.

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/twins/reference_device/reference_device.h"
#include "worker/engine/executor/forwarding_device.h"

namespace poseidon::testing {

/// What the test says and sees; outlives the device.
struct LateControl {
  std::size_t pieces_per_question = 0;       ///< done at each DeviceTicket::is_done
  std::size_t queued = 0, done = 0;          ///< pieces since the beginning
  std::string failing_layer;                 ///< its backward fails when it is done
  Nanoseconds now{0};                        ///< the device's clock ...
  std::map<std::string, Nanoseconds> takes;  ///< ... moves by this at each pass of a layer ...
  Nanoseconds copy_takes{0};                 ///< ... and by this at each copy that can have marks
  std::size_t marked_copies = 0;             ///< that had them
};

class LateDevice final : public ForwardingDevice {
 public:
  explicit LateDevice(LateControl* control)
      : ForwardingDevice(make_reference_device()), control_(control) {}

  std::string name() const override { return "late"; }
  absl::Status upload(void* device, const void* host, std::int64_t bytes) override {
    const absl::Status status = do_until(control_->queued);
    return status.ok() ? inner().upload(device, host, bytes) : status;
  }
  absl::Status download(void* host, const void* device, std::int64_t bytes) override {
    const absl::Status status = do_until(control_->queued);
    return status.ok() ? inner().download(host, device, bytes) : status;
  }
  absl::StatusOr<std::unique_ptr<DeviceTicket>> make_ticket() override {
    return std::make_unique<Ticket>(this);
  }
  absl::Status start_upload(void* device, const void* host, std::int64_t bytes,
                            const CopyMarks& marks) override {
    return queue([=, this] {
      pass_copy(marks);
      return inner().upload(device, host, bytes);
    });
  }
  absl::Status start_download(void* host, const void* device, std::int64_t bytes,
                              DeviceTicket& ticket, const CopyMarks& marks) override {
    const absl::Status status = queue([=, this] {
      if (bytes == 0) return absl::OkStatus();
      pass_copy(marks);
      return inner().download(host, device, bytes);
    });
    static_cast<Ticket&>(ticket).place = control_->queued;
    return status;
  }
  absl::StatusOr<std::unique_ptr<DeviceMark>> make_mark() override {
    return std::make_unique<Mark>();
  }
  absl::Status mark(DeviceMark& mark) override {
    return queue([this, &at = static_cast<Mark&>(mark).at] {
      at = control_->now;
      return absl::OkStatus();
    });
  }
  absl::StatusOr<Nanoseconds> time_between(const DeviceMark& earlier,
                                           const DeviceMark& later) override {
    return static_cast<const Mark&>(later).at - static_cast<const Mark&>(earlier).at;
  }
  // Beside what is queued, as a GPU does it on a stream of its own.
  absl::Status step_from_factors(const FactorStepArgs& args) override {
    pass_copy(args.marks);
    return inner().step_from_factors(args);
  }
  absl::StatusOr<FactorSquares> measure_factors(const FactorStepArgs& args) override {
    pass_copy(args.marks);
    return inner().measure_factors(args);
  }
  absl::Status finish() override {
    absl::Status first;
    while (!line_.empty()) first.Update(do_one());
    return first;
  }
  absl::Status add(float* target, const float* addend, std::int64_t elements,
                   Layout layout) override {
    return queue([=, this] { return inner().add(target, addend, elements, layout); });
  }
  absl::StatusOr<std::unique_ptr<LayerOperator>> make_operator(
      const LayerSpec& layer, const OperatorOptions& options) override {
    absl::StatusOr<std::unique_ptr<LayerOperator>> made = inner().make_operator(layer, options);
    if (!made.ok()) return made.status();
    return std::make_unique<Operator>(this, layer.name, *std::move(made));
  }

 private:
  struct Mark final : DeviceMark {
    Nanoseconds at{0};
  };

  class Ticket final : public DeviceTicket {
   public:
    explicit Ticket(LateDevice* device) : device_(device) {}
    absl::StatusOr<bool> is_done() override {
      const std::size_t pieces = device_->control_->pieces_per_question;
      const absl::Status status = device_->do_until(device_->control_->done + pieces);
      if (!status.ok()) return status;
      return device_->control_->done >= place;
    }
    absl::Status wait() override { return device_->do_until(place); }
    std::size_t place = 0;  ///< done when so many pieces are

   private:
    LateDevice* const device_;
  };

  // The arguments' spans are of the executor's nodes, which stay.
  class Operator final : public LayerOperator {
   public:
    Operator(LateDevice* device, std::string layer, std::unique_ptr<LayerOperator> inner)
        : device_(device), layer_(std::move(layer)), inner_(std::move(inner)) {}
    absl::Status forward(const ForwardArgs& args) override {
      return device_->queue([this, args] {
        pass_time();
        return inner_->forward(args);
      });
    }
    absl::Status backward(const BackwardArgs& args) override {
      return device_->queue([this, args] {
        pass_time();
        if (layer_ != device_->control_->failing_layer) return inner_->backward(args);
        return absl::InternalError(absl::StrCat("layer '", layer_, "' fell off the bus"));
      });
    }

   private:
    void pass_time() {
      const auto found = device_->control_->takes.find(layer_);
      if (found != device_->control_->takes.end()) device_->control_->now += found->second;
    }

    LateDevice* const device_;
    const std::string layer_;
    const std::unique_ptr<LayerOperator> inner_;
  };

  void pass_copy(const CopyMarks& marks) {
    const Nanoseconds begin = control_->now;
    control_->now += control_->copy_takes;
    if (marks.begin == nullptr) return;
    static_cast<Mark*>(marks.begin)->at = begin;
    static_cast<Mark*>(marks.end)->at = control_->now;
    ++control_->marked_copies;
  }
  absl::Status queue(std::function<absl::Status()> piece) {
    line_.push_back(std::move(piece));
    ++control_->queued;
    return absl::OkStatus();
  }
  absl::Status do_one() {
    const std::function<absl::Status()> piece = std::move(line_.front());
    line_.pop_front();
    ++control_->done;
    return piece();
  }
  absl::Status do_until(std::size_t place) {
    while (!line_.empty() && control_->done < place) {
      if (absl::Status status = do_one(); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  LateControl* const control_;
  std::deque<std::function<absl::Status()>> line_;
};

}  // namespace poseidon::testing
