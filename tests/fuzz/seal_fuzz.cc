// Sealed streams with strangers and with somebody in the middle. A server listens, behind the twin
// of gRPC; a caller of ours has a stream to it, of which the input changes what it hears; strangers
// say what they like where streams are agreed on, and where they are carried.
//
// Whatever happens, each end hears nothing but what the other said, in its order. Each step begins
// with a byte that chooses what happens; most take some more.

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/memory_carrier.h"
#include "common/memory_transport.h"
#include "common/sealed_transport.h"
#include "poseidon/v1/stream.pb.h"
#include "tests/fuzz/input.h"
#include "tests/support/tampered_carrier.h"

namespace poseidon::fuzz {
namespace {

using testing_support::TamperedCarrier;

constexpr int kMaxSteps = 200;

OutgoingMessage message_of(const std::string& text) {
  return {.prefix = MessagePrefix(text), .payload = {}, .payload_owner = nullptr};
}

/// One end of somebody's stream.
class End final : public StreamHandler {
 public:
  void open(std::unique_ptr<Stream> stream) {
    stream_ = std::move(stream);
    to_say_.clear();
    said_.clear();
    heard_.clear();
    writing_ = false;
  }
  void say(const std::string& text) {
    if (stream_ == nullptr || to_say_.size() > 30) return;
    to_say_.push_back(text);
    pump();
  }
  void close(const absl::Status& status) {
    if (stream_ != nullptr && !writing_) stream_->close(status);
    if (stream_ != nullptr) to_say_.clear();
    closing_ = stream_ != nullptr;
  }
  void cut() { stream_.reset(); }
  bool is_open() const { return stream_ != nullptr; }
  const std::vector<std::string>& heard() const { return heard_; }
  const std::vector<std::string>& said() const { return said_; }

  ReadNext on_message(Bytes message) override {
    heard_.push_back(joined(message));
    return heard_.size() % 7 == 3 ? ReadNext::kPause : ReadNext::kContinue;
  }
  void resume() {
    if (stream_ != nullptr) stream_->resume_reads();
  }
  void on_written() override {
    writing_ = false;
    if (!closing_) pump();
  }
  void on_closed(const absl::Status& /*status*/) override {
    stream_.reset();
    closing_ = false;
  }

 private:
  void pump() {
    if (writing_ || closing_ || to_say_.empty()) return;
    writing_ = true;
    said_.push_back(to_say_.front());
    to_say_.pop_front();
    stream_->write(message_of(said_.back()));
  }

  std::unique_ptr<Stream> stream_;
  std::deque<std::string> to_say_;
  std::vector<std::string> said_, heard_;
  bool writing_ = false, closing_ = false;
};

class Session final : public Acceptor {
 public:
  Session(const std::uint8_t* data, std::size_t size) : input_(data, size) {
    POSEIDON_CHECK(server_.listen("server", this).ok(), "a free address");
    middle_.tamper_ = [this](const std::string& message) { return tampered(message); };
  }

  void run() {
    for (int i = 0; i < kMaxSteps && !input_.rest().empty(); ++i) {
      step();
      pass(Milliseconds(5));
      if (ours_ != nullptr) {
        check(caller_.heard(), ours_->said());
        check(ours_->heard(), caller_.said());
        if (!caller_.heard().empty() && !ours_->heard().empty()) ++accepted;
      }
    }
  }

  StreamHandler* on_accept(std::unique_ptr<Stream> stream) override {
    End& end = *ends_.emplace_back(std::make_unique<End>());
    end.open(std::move(stream));
    if (expected_) {  // nobody else can be accepted by then
      ours_ = &end;
      expected_ = false;
    }
    return &end;
  }

 private:
  void step() {
    const std::uint8_t what = input_.byte();
    End& stranger = strangers_[what / 16 % strangers_.size()];
    switch (what % 16) {
      case 0:
        if (caller_.is_open()) break;
        ours_ = nullptr;
        changes_.clear();
        expected_ = true;
        caller_.open(client_.connect("server", &caller_));
        pass(Milliseconds(20));
        expected_ = false;
        break;
      case 1:
        stranger.open(network_.endpoint("stranger").connect("server", &stranger));
        break;
      case 2:
        stranger.open(
            network_.endpoint("stranger").connect(MemoryCarrier::address_of("server"), &stranger));
        break;
      case 3:
        stranger.say(text());
        break;
      case 4: {
        v1::SealAgreement agreement;
        agreement.mutable_request()->set_version(kSealVersion - 1 + input_.byte() % 3);
        stranger.say(agreement.SerializeAsString());
        break;
      }
      case 5:  // a ticket that was shown before
        stranger.say(
            {reinterpret_cast<const char*>(middle_.ticket_.data()), middle_.ticket_.size()});
        break;
      case 6:
        stranger.close(absl::OkStatus());
        break;
      case 7:
        stranger.cut();
        break;
      case 8:
        caller_.say(text());
        break;
      case 9:
        if (ours_ != nullptr) ours_->say(text());
        break;
      case 10:
        changes_.push_back(input_.byte());
        changes_.push_back(input_.byte());
        break;
      case 11:
        if (ours_ != nullptr) ours_->close(absl::InvalidArgumentError(text()));
        break;
      case 12:
        caller_.close(absl::OkStatus());
        break;
      case 13:
        caller_.resume();
        if (ours_ != nullptr) ours_->resume();
        break;
      case 14:
        pass(Milliseconds(250) * input_.byte());
        break;
      default:
        caller_.cut();
        break;
    }
  }

  /// What arrives in a message's place.
  std::vector<std::string> tampered(std::string message) {
    if (changes_.size() < 2 || message.empty()) return {message};
    const std::uint8_t how = changes_.front(), number = changes_[1];
    changes_.erase(changes_.begin(), changes_.begin() + 2);
    switch (how % 5) {
      case 0:
        message[number % message.size()] ^= static_cast<char>(1 + how / 5);
        return {message};
      case 1:
        return {};
      case 2:
        return {message, message};
      case 3:
        return {message.substr(0, number % message.size())};
      default:
        return {std::string(1 + number, static_cast<char>(how / 5)), message};
    }
  }

  std::string text() {
    const std::string bytes(input_.rest().substr(0, input_.byte()));
    for (std::size_t i = 0; i < bytes.size(); ++i) input_.byte();
    return bytes;
  }

  static void check(const std::vector<std::string>& heard, const std::vector<std::string>& said) {
    POSEIDON_CHECK(
        heard.size() <= said.size() && std::equal(heard.begin(), heard.end(), said.begin()),
        "an end hears what the other said, and nothing else");
  }

  void pass(Nanoseconds time) {
    bool over = false;
    network_.endpoint("stranger").post_after(time, [&over] { over = true; });
    while (!over) POSEIDON_CHECK(network_.step(), "the end of the time is to come");
  }

  Input input_;
  std::vector<std::uint8_t> changes_;  ///< pairs: how, and a number
  MemoryNetwork network_{1, MemoryFaults{}};
  TamperedCarrier middle_{&network_.endpoint("client")};
  MemoryCarrier carrier_{&network_.endpoint("server")};
  SealedTransport client_{&network_.endpoint("client"), &middle_, [](const auto&, const auto&) {}};
  SealedTransport server_{&network_.endpoint("server"), &carrier_, [](const auto&, const auto&) {}};
  std::vector<std::unique_ptr<End>> ends_;  ///< of streams that the server accepted
  End* ours_ = nullptr;                     ///< among them, the caller's other end
  bool expected_ = false;
  End caller_;
  std::array<End, 3> strangers_;
};

}  // namespace
}  // namespace poseidon::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  poseidon::fuzz::Session(data, size).run();
  return 0;
}
