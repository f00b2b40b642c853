// Frames of streams in TLS (common/grpc/tls_frames.h): one end writes, the other reads, and the
// input may change bytes between them or make up its own, as an end that does not play by the rules
// could. An input is a list of steps (tls_frames_steps.h).
//
// Whatever happens, a reader delivers nothing after the last, no message beyond the bound, and asks
// for bytes that it has room for. Without changes it delivers the sent messages.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/check.h"
#include "common/grpc/tls_frames.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/tls_frames_steps.h"
#include "tests/support/messages.h"

namespace poseidon::fuzz {
namespace {

using testing_support::message_of;

constexpr int kMaxSteps = 200;
/// All that was sent is compared after each step.
constexpr int kMaxLongTexts = 4;
constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 20;

class Session {
 public:
  Session(const std::uint8_t* data, std::size_t size) : input_(data, size) { begin_anew(); }

  void run() {
    for (int i = 0; i < kMaxSteps && !input_.rest().empty(); ++i) {
      step();
      POSEIDON_CHECK(is_changed_ || heard_ == sent_, "what was sent arrives");
      if (!is_changed_ && heard_.size() > 2) ++accepted;
    }
  }

 private:
  void begin_anew() {
    writer_ = std::make_unique<FrameWriter>();
    reader_ = std::make_unique<FrameReader>(FrameReader::End::kAnswerer, kMaxMessageBytes);
    sent_.clear();
    heard_.clear();
    changes_.clear();
    is_changed_ = is_open_ = is_over_ = has_ended_ = false;
  }

  void step() {
    switch (static_cast<FrameStep>(input_.byte() % kFrameSteps)) {
      case FrameStep::kAnew:
        return begin_anew();
      case FrameStep::kOpens: {
        const std::string opening = text();
        if (has_ended_) return;
        is_changed_ |= std::exchange(is_open_, true);  // a second one is no frame
        sent_.push_back(opening);
        writer_->send_opening(opening);
        break;
      }
      case FrameStep::kSends:
        send(text());
        break;
      case FrameStep::kSendsMuch: {
        const std::size_t bytes = std::size_t{5000} * input_.byte();
        if (++long_texts_ <= kMaxLongTexts) send(std::string(bytes, 'm'));
        break;
      }
      case FrameStep::kDrops:
        drop(std::size_t{5000} * input_.byte());
        break;
      case FrameStep::kIsAlive:
        is_changed_ |= !is_open_;
        writer_->send_alive();
        break;
      case FrameStep::kEnds: {
        const std::string why = text();
        if (std::exchange(has_ended_, true)) return;
        is_changed_ |= !is_open_;
        sent_.push_back(why);
        writer_->send_end(absl::InvalidArgumentError(why));
        break;
      }
      case FrameStep::kChange:
        changes_.push_back(input_.byte());
        changes_.push_back(input_.byte());
        return;
      case FrameStep::kRaw:
        is_changed_ = true;
        return receive(text());
      case FrameStep::kPieces:
        pieces_ = input_.byte() + 1U;
        return;
    }
    receive(changed(drain(std::size_t{1} << 30)));
  }

  void send(const std::string& message) {
    if (has_ended_) return;
    is_changed_ |= !is_open_ || message.size() > kMaxMessageBytes;
    sent_.push_back(message);
    const std::size_t front = message.size() / 3;
    writer_->send(message_of(message.substr(0, front), message.substr(front)));
  }
  /// What of a message is sent, another follows: the reader takes it for broken.
  void drop(std::size_t bytes) {
    if (has_ended_ || ++long_texts_ > kMaxLongTexts) return;
    is_changed_ = true;
    writer_->send(message_of("", std::string(kMaxFrameBytes + 100, 'd')));
    receive(drain(bytes));
    writer_->drop_message();
  }

  std::string drain(std::size_t most) {
    std::string all;
    for (auto bytes = writer_->to_send(); !bytes.empty() && all.size() < most;
         bytes = writer_->to_send()) {
      const std::size_t here = std::min(bytes.size(), most - all.size());
      all.append(reinterpret_cast<const char*>(bytes.data()), here);
      writer_->sent(here);
    }
    return all;
  }

  void receive(std::string_view bytes) {
    while (!bytes.empty()) {
      const absl::Span<std::byte> room = reader_->room();
      POSEIDON_CHECK(!room.empty() && reader_->lacks() >= 1, "there is room for more");
      const std::size_t most = bytes.size() > 10000 ? bytes.size() : pieces_;
      const std::size_t here = std::min({room.size(), bytes.size(), most});
      std::copy_n(reinterpret_cast<const std::byte*>(bytes.data()), here, room.begin());
      reader_->received(here);
      bytes.remove_prefix(here);
      const auto incoming = reader_->next();
      if (!incoming) continue;
      POSEIDON_CHECK(!is_over_, "nothing comes after the last");
      if (const auto* message = std::get_if<Bytes>(&*incoming)) {
        POSEIDON_CHECK(message->size() <= kMaxMessageBytes, "messages have a bound");
        heard_.push_back(joined(*message));
      } else if (const auto* opening = std::get_if<FrameReader::Opening>(&*incoming)) {
        POSEIDON_CHECK(heard_.empty(), "an opening is the first");
        heard_.push_back(opening->text);
      } else {
        is_over_ = true;
        if (const auto* end = std::get_if<FrameReader::Ended>(&*incoming)) {
          heard_.emplace_back(end->why.message());
        }
      }
    }
  }

  /// What arrives in the place of these bytes.
  std::string changed(std::string bytes) {
    if (changes_.size() < 2 || bytes.empty()) return bytes;
    const std::uint8_t how = changes_.front(), number = changes_[1];
    changes_.erase(changes_.begin(), changes_.begin() + 2);
    is_changed_ = true;
    const std::size_t place = number % bytes.size();
    switch (how % 5) {
      case 0:
        bytes[place] ^= static_cast<char>(1 + how / 5);
        return bytes;
      case 1:
        return "";
      case 2:
        return bytes + bytes;
      case 3:
        return bytes.substr(0, place);
      default:
        return bytes.insert(place, std::string(1 + how / 5, static_cast<char>(number)));
    }
  }

  std::string text() {
    const std::string bytes(input_.rest().substr(0, input_.byte()));
    input_.skip(std::min(bytes.size(), input_.rest().size()));
    return bytes;
  }

  Input input_;
  int long_texts_ = 0;
  std::size_t pieces_ = 1000;
  std::unique_ptr<FrameWriter> writer_;
  std::unique_ptr<FrameReader> reader_;
  std::vector<std::string> sent_, heard_;
  std::vector<std::uint8_t> changes_;  ///< pairs: how, and a number
  bool is_changed_ = false;  ///< the received bytes differ from the sent ones, or break the rules
  bool is_open_ = false, has_ended_ = false, is_over_ = false;
};

}  // namespace
}  // namespace poseidon::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  poseidon::fuzz::Session(data, size).run();
  return 0;
}
