// Sealed streams: the two ends' pipes with an attacker between them who changes or invents bytes,
// and a server that negotiates streams, with an honest caller and with attackers. An input is a
// list of steps (seal_steps.h).
//
// Each end only ever receives what the other sent, in order, and nothing after an end.

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/check.h"
#include "common/grpc/memory_carrier.h"
#include "common/grpc/sealed_pipe.h"
#include "common/grpc/sealed_transport.h"
#include "common/transport/memory_transport.h"
#include "poseidon/v1/stream.pb.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/seal_steps.h"
#include "tests/support/messages.h"

namespace poseidon::fuzz {
namespace {

using testing_support::message_of;

constexpr int kMaxSteps = 200;
/// All that was said is compared after each step.
constexpr int kMaxLongTexts = 4;
constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 20;

bool begins(const std::vector<std::string>& said, const std::vector<std::string>& heard) {
  return heard.size() <= said.size() && std::equal(heard.begin(), heard.end(), said.begin());
}

/// One of two ends that have pipes to each other.
class PipeEnd {
 public:
  PipeEnd(std::uint8_t sends, std::uint8_t receives) {
    SealEnds secrets;
    secrets.sends.fill(std::byte{sends});
    secrets.receives.fill(std::byte{receives});
    pipe_ = std::make_unique<SealedPipe>(secrets, kMaxMessageBytes);
  }

  /// What goes over the connection for it.
  std::string say(const std::string& text) {
    if (has_ended_) return "";
    said_.push_back(text);
    pipe_->send(message_of("", text));
    return sent();
  }
  std::string end(const std::string& why) {
    has_ended_ = true;
    pipe_->send_end(absl::InvalidArgumentError(why));
    return sent();
  }
  std::string be_alive() {
    pipe_->send_alive();
    return sent();
  }
  void receive(std::string_view bytes) {
    while (!bytes.empty()) {
      const absl::Span<std::byte> room = pipe_->room();
      POSEIDON_CHECK(!room.empty(), "there is room for more");
      const std::size_t here = std::min(room.size(), bytes.size());
      std::copy_n(reinterpret_cast<const std::byte*>(bytes.data()), here, room.begin());
      pipe_->received(here);
      bytes.remove_prefix(here);
      while (const auto incoming = pipe_->next()) {
        POSEIDON_CHECK(!is_over_, "nothing comes after the last");
        if (const auto* message = std::get_if<Bytes>(&*incoming)) {
          heard_.push_back(joined(*message));
        } else {
          is_over_ = true;
        }
      }
      POSEIDON_CHECK(pipe_->lacks() >= 1, "one byte more may say more");
    }
  }
  const std::vector<std::string>& said() const { return said_; }
  const std::vector<std::string>& heard() const { return heard_; }

 private:
  std::string sent() {
    std::string all;
    for (auto bytes = pipe_->to_send(); !bytes.empty(); bytes = pipe_->to_send()) {
      all.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      pipe_->sent(bytes.size());
    }
    return all;
  }

  std::unique_ptr<SealedPipe> pipe_;
  std::vector<std::string> said_, heard_;
  bool has_ended_ = false, is_over_ = false;
};

/// One end of somebody's stream.
class StreamEnd final : public StreamHandler {
 public:
  void open(std::unique_ptr<Stream> stream) {
    stream_ = std::move(stream);
    to_say_.clear();
    said_.clear();
    heard_.clear();
    is_writing_ = false;
  }
  void say(const std::string& text) {
    if (stream_ == nullptr || to_say_.size() > 30) return;
    to_say_.push_back(text);
    pump();
  }
  void go() { stream_.reset(); }
  bool is_open() const { return stream_ != nullptr; }
  const std::vector<std::string>& heard() const { return heard_; }
  const std::vector<std::string>& said() const { return said_; }

  ReadNext on_message(Bytes message) override {
    heard_.push_back(joined(message));
    return ReadNext::kContinue;
  }
  void on_written() override {
    is_writing_ = false;
    pump();
  }
  void on_closed(const absl::Status& /*status*/) override { stream_.reset(); }

 private:
  void pump() {
    if (is_writing_ || to_say_.empty()) return;
    is_writing_ = true;
    said_.push_back(to_say_.front());
    to_say_.pop_front();
    stream_->write(message_of("", said_.back()));
  }

  std::unique_ptr<Stream> stream_;
  std::deque<std::string> to_say_;
  std::vector<std::string> said_, heard_;
  bool is_writing_ = false;
};

class Session final : public Acceptor {
 public:
  Session(const std::uint8_t* data, std::size_t size) : input_(data, size) {
    one_.emplace(1, 2);
    other_.emplace(2, 1);
    POSEIDON_CHECK(server_.listen("server", this).ok(), "a free address");
  }

  void run() {
    for (int i = 0; i < kMaxSteps && !input_.rest().empty(); ++i) {
      step();
      pass(Milliseconds(5));
      POSEIDON_CHECK(begins(one_->said(), other_->heard()) && begins(other_->said(), one_->heard()),
                     "an end hears what the other said, and nothing else");
      if (ours_ == nullptr) continue;
      POSEIDON_CHECK(
          begins(caller_.said(), ours_->heard()) && begins(ours_->said(), caller_.heard()),
          "a stream is between those who have agreed on it");
      if (!one_->heard().empty() && !other_->heard().empty() && !caller_.heard().empty())
        ++accepted;
    }
  }

  StreamHandler* on_accept(std::unique_ptr<Stream> stream) override {
    StreamEnd& end = *ends_.emplace_back(std::make_unique<StreamEnd>());
    end.open(std::move(stream));
    if (is_expected_) {  // nobody else can be accepted by then
      ours_ = &end;
      is_expected_ = false;
    }
    return &end;
  }

 private:
  void step() {
    const std::uint8_t what = input_.byte();
    StreamEnd& stranger = strangers_[what / kSealSteps % strangers_.size()];
    switch (static_cast<SealStep>(what % kSealSteps)) {
      case SealStep::kOpen:
        one_.emplace(1, 2);
        other_.emplace(2, 1);
        changes_.clear();
        break;
      case SealStep::kOneSays:
        other_->receive(changed(one_->say(text())));
        break;
      case SealStep::kOtherSays:
        one_->receive(changed(other_->say(text())));
        break;
      case SealStep::kOneSaysMuch: {
        const std::size_t bytes = std::size_t{5000} * input_.byte();
        if (++long_texts_ > kMaxLongTexts) break;
        other_->receive(changed(one_->say(std::string(bytes, 'm'))));
        break;
      }
      case SealStep::kOneEnds:
        other_->receive(changed(one_->end(text())));
        break;
      case SealStep::kOneIsAlive:
        other_->receive(changed(one_->be_alive()));
        break;
      case SealStep::kChange:
        changes_.push_back(input_.byte());
        changes_.push_back(input_.byte());
        break;
      case SealStep::kRaw:
        other_->receive(text());
        break;
      case SealStep::kCallerConnects:
        if (caller_.is_open()) break;
        ours_ = nullptr;
        is_expected_ = true;
        caller_.open(client_.connect("server", &caller_));
        pass(Milliseconds(20));
        is_expected_ = false;
        break;
      case SealStep::kCallerSays:
        caller_.say(text());
        break;
      case SealStep::kServerSays:
        if (ours_ != nullptr) ours_->say(text());
        break;
      case SealStep::kCallerGoes:
        caller_.go();
        break;
      case SealStep::kStrangerConnects:
        stranger.open(network_.endpoint("stranger").connect("server", &stranger));
        break;
      case SealStep::kStrangerSays:
        stranger.say(text());
        break;
      case SealStep::kStrangerAsks: {
        v1::SealAgreement agreement;
        agreement.mutable_request()->set_version(kSealVersion - 1 + input_.byte() % 3);
        stranger.say(agreement.SerializeAsString());
        break;
      }
      case SealStep::kStrangerGoes:
        stranger.go();
        break;
    }
  }

  /// What arrives in the place of these bytes.
  std::string changed(std::string bytes) {
    if (changes_.size() < 2 || bytes.empty()) return bytes;
    const std::uint8_t how = changes_.front(), number = changes_[1];
    changes_.erase(changes_.begin(), changes_.begin() + 2);
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

  void pass(Nanoseconds time) {
    bool over = false;
    network_.endpoint("stranger").post_after(time, [&over] { over = true; });
    while (!over) POSEIDON_CHECK(network_.step(), "the end of the time is to come");
  }

  Input input_;
  int long_texts_ = 0;
  std::optional<PipeEnd> one_, other_;
  std::vector<std::uint8_t> changes_;  ///< pairs: how, and a number
  MemoryNetwork network_{1, MemoryFaults{}};
  MemoryCarrier client_carrier_{&network_.endpoint("client")};
  MemoryCarrier server_carrier_{&network_.endpoint("server")};
  SealedTransport client_{&network_.endpoint("client"), &client_carrier_};
  SealedTransport server_{&network_.endpoint("server"), &server_carrier_};
  std::vector<std::unique_ptr<StreamEnd>> ends_;  ///< of streams that the server accepted
  StreamEnd* ours_ = nullptr;                     ///< among them, the caller's other end
  bool is_expected_ = false;
  StreamEnd caller_;
  std::array<StreamEnd, 3> strangers_;
};

}  // namespace
}  // namespace poseidon::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  poseidon::fuzz::Session(data, size).run();
  return 0;
}
