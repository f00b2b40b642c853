#pragma once

// A fault by decoration: delays every message and every write confirmation of the transport it
// wraps by a random time. Order within a stream stays; order between streams does not.

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "common/base/random.h"
#include "common/transport/transport.h"

namespace poseidon::testing_support {

/// Must not outlive the wrapped transport. Everything on its loop.
class DelayingTransport final : public Transport {
 public:
  DelayingTransport(Transport* inner, Nanoseconds max_delay, std::uint64_t seed)
      : inner_(inner), max_delay_(max_delay), random_(seed) {}

  void post(std::function<void()> function) override { inner_->post(std::move(function)); }
  void post_after(Nanoseconds delay, std::function<void()> function) override {
    inner_->post_after(delay, std::move(function));
  }
  Nanoseconds now() const override { return inner_->now(); }

  std::unique_ptr<Stream> connect(const std::string& address, StreamHandler* handler) override {
    auto link = std::make_shared<Link>(this, handler);
    link->stream = inner_->connect(address, link.get());
    return std::make_unique<Handle>(std::move(link));
  }

  absl::StatusOr<std::string> listen(const std::string& address, Acceptor* acceptor) override {
    acceptor_.owner = this;
    acceptor_.user = acceptor;
    return inner_->listen(address, &acceptor_);
  }

  std::int64_t delayed() const { return delayed_; }

 private:
  /// Between the inner stream and its user. Alive as long as the user's handle or a delayed event.
  struct Link final : StreamHandler, std::enable_shared_from_this<Link> {
    Link(DelayingTransport* transport, StreamHandler* to) : owner(transport), user(to) {}

    ReadNext on_message(Bytes message) override {
      delivering = true;
      later([this, message = std::move(message)] {
        delivering = false;
        const ReadNext next = user->on_message(message);
        if (stream == nullptr) return;
        if (closed_with != nullptr) {
          close_user();
        } else if (next == ReadNext::kContinue) {
          stream->resume_reads();
        }
      });
      return ReadNext::kPause;
    }
    void on_written() override {
      later([this] { user->on_written(); });
    }
    void on_closed(const absl::Status& status) override {
      closed_with = std::make_unique<absl::Status>(status);
      if (!delivering) later([this] { close_user(); });
    }
    void close_user() {
      if (std::exchange(closed, true)) return;
      user->on_closed(*closed_with);
    }
    void later(std::function<void()> function) {
      ++owner->delayed_;
      const auto range = static_cast<std::uint64_t>(owner->max_delay_.count());
      owner->inner_->post_after(
          Nanoseconds(static_cast<std::int64_t>(owner->random_.below(range + 1))),
          [self = shared_from_this(), function = std::move(function)] {
            if (self->stream != nullptr && !self->closed) function();
          });
    }

    DelayingTransport* const owner;
    StreamHandler* user;
    std::unique_ptr<Stream> stream;  ///< null once the user gave up the handle
    std::unique_ptr<absl::Status> closed_with;
    bool delivering = false;
    bool closed = false;
  };

  class Handle final : public Stream {
   public:
    explicit Handle(std::shared_ptr<Link> link) : link_(std::move(link)) {}
    ~Handle() override { link_->stream.reset(); }
    void write(OutgoingMessage message) override { link_->stream->write(std::move(message)); }
    void resume_reads() override { link_->stream->resume_reads(); }
    void close(const absl::Status& status) override { link_->stream->close(status); }
    std::string peer() const override { return link_->stream->peer(); }

   private:
    const std::shared_ptr<Link> link_;
  };

  struct Accepting final : Acceptor {
    StreamHandler* on_accept(std::unique_ptr<Stream> stream) override {
      auto link = std::make_shared<Link>(owner, nullptr);
      link->stream = std::move(stream);
      Link* const raw = link.get();
      raw->user = user->on_accept(std::make_unique<Handle>(std::move(link)));
      return raw;
    }
    DelayingTransport* owner = nullptr;
    Acceptor* user = nullptr;
  };

  Transport* const inner_;
  const Nanoseconds max_delay_;
  SplitMix64 random_;
  Accepting acceptor_;
  std::int64_t delayed_ = 0;
};

}  // namespace poseidon::testing_support
