// Pushes gradients of right form under the ranks of workers that are there, on streams of its own,
// which cannot show what those workers' streams show. soak.py starts it beside a job that trains.

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "common/base/check.h"
#include "common/grpc/grpc_transport.h"
#include "common/security/security.h"
#include "common/wire/wire.h"

namespace poseidon {
namespace {

struct HijackOptions {
  std::string server;   ///< HOST:PORT
  std::string tls_dir;  ///< "": without TLS
  std::uint64_t epoch = 0;
  std::uint32_t workers = 1;
  std::uint32_t chunk = 0;     ///< one that the server has ...
  std::int64_t offset = 0;     ///< ... its place in its layer
  std::size_t elements = 0;    ///< ... and its size
  std::int64_t iteration = 0;  ///< about where the job is
  double seconds = 1.0;
};

/// How streams ended.
struct HijackCounts {
  std::atomic<int> refused{0};  ///< for their proof
  std::atomic<int> other{0};    ///< otherwise: the server was not there, or between two epochs
};

/// One stream with one gradient. On the loop.
class Hijack final : public StreamHandler {
 public:
  Hijack(Transport& transport, const HijackOptions& options, std::uint64_t number,
         HijackCounts* counts)
      : counts_(counts), payload_(std::make_shared<std::string>(4 * options.elements, '\1')) {
    ChunkHeader header;
    header.kind = ChunkKind::kPushGradient;
    header.element_type = ElementType::kFloat32;
    header.epoch = Epoch(options.epoch);
    header.rank = WorkerRank(static_cast<std::uint32_t>(number % options.workers));
    header.chunk = ChunkId(options.chunk);
    header.offset = options.offset;
    header.iteration = options.iteration + static_cast<Iteration>(number % 60);
    header.proof = number % 3 == 0 ? 0 : std::mt19937_64(number)();
    stream_ = transport.connect(options.server, this);
    const auto* bytes = reinterpret_cast<const std::byte*>(payload_->data());
    stream_->write({.prefix = encode_prefix(header, payload_->size()),
                    .payload = {bytes, payload_->size()},
                    .payload_owner = payload_});
  }
  ReadNext on_message(Bytes /*message*/) override { return ReadNext::kContinue; }
  void on_written() override {}
  void on_closed(const absl::Status& status) override {
    const bool refused = absl::StrContains(status.message(), "refused (proof)");
    ++(refused ? counts_->refused : counts_->other);
  }

 private:
  HijackCounts* const counts_;
  const std::shared_ptr<std::string> payload_;
  std::unique_ptr<Stream> stream_;
};

absl::Status hijack(const HijackOptions& options) {
  std::shared_ptr<Security> security = Security::none();
  if (!options.tls_dir.empty()) {
    POSEIDON_ASSIGN_OR_RETURN(security,
                              Security::load({.tls_dir = options.tls_dir}, PeerRole::kWorker));
  }
  GrpcTransport transport({.security = security});
  transport.start();
  HijackCounts counts;
  std::vector<std::unique_ptr<Hijack>> streams;  // on the loop
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::milliseconds(static_cast<std::int64_t>(1000 * options.seconds));
  for (std::uint64_t number = 0; std::chrono::steady_clock::now() < end; ++number) {
    transport.post([&, number] {
      streams.push_back(std::make_unique<Hijack>(transport, options, number, &counts));
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  transport.post([&] { streams.clear(); });
  transport.stop();
  std::printf("refused %d, other ends %d\n", counts.refused.load(), counts.other.load());
  return absl::OkStatus();
}

}  // namespace
}  // namespace poseidon

int main(int argc, char** argv) {
  CLI::App app("Streams that pretend to be workers'.", "poseidon-test-hijacker");
  poseidon::HijackOptions options;
  app.add_option("--server", options.server)->required();
  app.add_option("--tls-dir", options.tls_dir);
  app.add_option("--epoch", options.epoch)->required();
  app.add_option("--workers", options.workers)->required();
  app.add_option("--chunk", options.chunk)->required();
  app.add_option("--offset", options.offset)->required();
  app.add_option("--elements", options.elements)->required();
  app.add_option("--iteration", options.iteration)->required();
  app.add_option("--seconds", options.seconds);
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = poseidon::hijack(options);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
