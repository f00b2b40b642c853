#pragma once

// The transport over gRPC: one completion queue, one thread that polls, decodes, sums (of large
// chunks with helpers: common/threads/thread_team.h) and writes.
// (Measured against callback and synchronous APIs, one polling thread per set of streams moves most
// bytes per CPU second: no hand-over between threads, warm caches.) With grpc_call.h the only files
// on the data path that include gRPC.
//
// Called by: common/transport/paced_transport.h, and streams that need no pacing (to the
// coordinator, of the store, probes). Calls: gRPC, and common/grpc/tls_sockets.h for tensors where
// there is TLS.
//
// Ownership: a payload is referred to, not copied, and its owner is held until gRPC needs it no
// more. A received message belongs to its handler. Errors: a connection that breaks or cannot be
// made is UNAVAILABLE, whatever gRPC calls it; a refusal of the other side keeps its code and its
// words.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/security/security.h"
#include "common/transport/transport.h"

namespace poseidon {

struct GrpcTransportOptions {
  /// Largest message accepted; more ends the stream with a reason.
  int max_message_bytes = 0;  ///< 0: kMaxMessageBytes of wire.h
  /// A peer that answers no ping for this long has its streams cut.
  Milliseconds keepalive_interval{10000};
  Milliseconds keepalive_timeout{10000};
  /// Our credentials, and the checks of callers.
  std::shared_ptr<Security> security = Security::none();
  /// Limits for the connections of callers.
  PortLimits port{};
};

/// Itself it speaks ParameterServer.Exchange; add_method gives the same loop another method. With
/// TLS the streams of methods that move tensors (MethodRule::moves_tensors) have TLS connections of
/// their own to the same port (tls_sockets.h), which gRPC does not carry.
class GrpcTransport final : public Transport {
 public:
  explicit GrpcTransport(GrpcTransportOptions options = {});
  /// Stops the loop; all streams and their handlers' owners must be gone or never touched again.
  ~GrpcTransport() override;

  /// The same loop and port for streams of another method ("/package.Service/Method"): for the
  /// streams that its `connect` opens and its `listen` accepts. A process has one port: a second
  /// listener, for another method, passes the address that the first one got. Before start(). Lives
  /// as long as this transport. Each call makes one. `keepalive`: interval and timeout of the
  /// streams that `connect` opens, instead of the options'.
  Transport& add_method(std::string_view method,
                        std::optional<Milliseconds> keepalive = std::nullopt);

  /// Before start(), once: accepts streams of ParameterServer.Exchange. INVALID_ARGUMENT for
  /// another address than the one that a method added listens on.
  absl::StatusOr<std::string> listen(const std::string& address, Acceptor* acceptor) override;
  /// Starts the loop's thread. `post` works before it; everything else needs it.
  void start();
  /// Ends the loop's thread: closes the listener, cancels all streams, runs all posted tasks.
  /// Idempotent.
  void stop();

  std::unique_ptr<Stream> connect(const std::string& address, StreamHandler* handler) override;
  void post(std::function<void()> function) override;
  void post_after(Nanoseconds delay, std::function<void()> function) override;
  Nanoseconds now() const override;

 private:
  class Impl;
  class View;
  Transport& add_view(std::string_view method, std::optional<Milliseconds> keepalive);

  std::unique_ptr<Impl> impl_;
  std::vector<std::unique_ptr<View>> views_;
  Transport* exchange_ = nullptr;
};

/// Once, at the start of main. Tells malloc not to give freed receive buffers back to the system
/// only to fault them in again: the biggest single lever on goodput. And Abseil not to look for
/// deadlocks among gRPC's locks, which Debian's does as in a debug build: 2 % of the CPU time.
void tune_process();

}  // namespace poseidon
