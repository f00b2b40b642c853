// poseidon-bench-checkpoint: writes a snapshot of a shard through the production classes
// (CheckpointKeeper on RocksDB) to the disk and reads it back, and compares with a plain file of as
// many bytes in blocks of the same size. Both run in turns, so that a disturbance affects both
// alike.
//
// Writing ends when the bytes are durable (fsync; the seal). Before reading, the kernel's copy of
// the files is dropped.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/descriptor.h"
#include "common/base/median.h"
#include "common/base/process_load.h"
#include "common/base/random.h"
#include "common/files/file_io.h"
#include "common/grpc/grpc_transport.h"
#include "common/transport/background.h"
#include "nlohmann/json.hpp"
#include "server/store/checkpoint_keeper.h"
#include "server/store/rocksdb_chunk_store.h"

namespace poseidon::bench {
namespace {

namespace fs = std::filesystem;

constexpr Epoch kEpoch{1};
/// Requests that wait for the disk while reading, as with one worker's stream.
constexpr std::size_t kReadWindow = 4;
/// Different pieces in memory; then they are used again. More than the caches hold.
constexpr std::size_t kDifferentBytes = std::size_t{96} << 20;

struct Options {
  std::string directory = "build/bench/checkpoint";
  std::size_t mib = 1200;
  std::size_t chunk_kib = 2048;
  std::size_t slots = 2;
  std::size_t rounds = 5;
  std::string json;

  std::size_t piece_bytes() const { return slots * chunk_kib << 10; }
  std::size_t pieces() const { return std::max<std::size_t>(1, (mib << 20) / piece_bytes()); }
  std::size_t bytes() const { return pieces() * piece_bytes(); }
};

/// Frozen chunks like a server's: parameters and optimizer slots, noise.
std::vector<FrozenChunk> make_pieces(const Options& options) {
  SplitMix64 random(7);
  std::vector<FrozenChunk> pieces;
  const std::size_t different =
      std::clamp<std::size_t>(kDifferentBytes / options.piece_bytes(), 1, options.pieces());
  const auto elements = static_cast<std::int64_t>((options.chunk_kib << 10) / sizeof(float));
  const auto noise = [&] {
    FloatBuffer buffer(elements);
    for (float& value : buffer.floats()) value = random.uniform();
    return buffer;
  };
  for (std::size_t i = 0; i < different; ++i) {
    FrozenChunk piece;
    piece.parameters = noise();
    if (options.slots > 1) piece.state0 = noise();
    if (options.slots > 2) piece.state1 = noise();
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

/// What waits until work on other threads is done.
class Countdown {
 public:
  void done() {
    const std::lock_guard lock(mutex_);
    ++done_;
    changed_.notify_all();
  }
  void wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    const bool in_time =
        changed_.wait_for(lock, std::chrono::minutes(10), [&] { return done_ >= count; });
    POSEIDON_CHECK(in_time, "the disk answers within ten minutes");
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t done_ = 0;
};

absl::Status drop_cache(const fs::path& file) {
  POSEIDON_ASSIGN_OR_RETURN(const Descriptor opened, open_file(file));
  ::fdatasync(opened.get());
  ::posix_fadvise(opened.get(), 0, 0, POSIX_FADV_DONTNEED);
  return absl::OkStatus();
}

/// One way to keep as many bytes.
class Way {
 public:
  virtual ~Way() = default;
  virtual absl::Status write() = 0;
  virtual absl::Status forget_cached() = 0;
  virtual absl::Status read() = 0;
  virtual absl::Status remove() = 0;
};

class PlainFile final : public Way {
 public:
  PlainFile(const Options& options, const std::vector<FrozenChunk>* pieces)
      : options_(options), pieces_(*pieces), path_(fs::path(options.directory) / "plain") {}

  absl::Status write() override {
    const Descriptor file(::open(path_.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644));
    if (file.get() < 0) return absl::UnavailableError(absl::StrCat(path_.string(), ": no file"));
    for (std::size_t i = 0; i < options_.pieces(); ++i) {
      const FrozenChunk& piece = pieces_[i % pieces_.size()];
      for (const FloatBuffer* slot : {&piece.parameters, &piece.state0, &piece.state1}) {
        const auto floats = slot->floats();
        POSEIDON_RETURN_IF_ERROR(
            write_fully(file.get(), path_,
                        {reinterpret_cast<const char*>(floats.data()), floats.size_bytes()}));
      }
    }
    return ::fsync(file.get()) == 0
               ? absl::OkStatus()
               : absl::UnavailableError(absl::StrCat(path_.string(), ": fsync failed"));
  }
  absl::Status forget_cached() override { return drop_cache(path_); }
  absl::Status read() override {
    POSEIDON_ASSIGN_OR_RETURN(const Descriptor file, open_file(path_));
    std::vector<std::uint8_t> block(options_.chunk_kib << 10);
    for (std::size_t at = 0; at < options_.bytes(); at += block.size()) {
      POSEIDON_RETURN_IF_ERROR(read_exactly_at(file.get(), path_, at, block.data(), block.size()));
    }
    return absl::OkStatus();
  }
  absl::Status remove() override {
    fs::remove(path_);
    return absl::OkStatus();
  }

 private:
  const Options& options_;
  const std::vector<FrozenChunk>& pieces_;
  const fs::path path_;
};

class Keeper final : public Way {
 public:
  Keeper(const Options& options, const std::vector<FrozenChunk>* pieces,
         std::unique_ptr<ChunkStore> store)
      : options_(options), pieces_(*pieces), keeper_(std::move(store), &disk_.emplace()) {
    keeper_.begin(kEpoch, options.pieces(), [this](const SnapshotResult& result) {
      result_ = result.status;
      sealed_.done();
    });
  }
  ~Keeper() override { disk_.reset(); }
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  absl::Status write() override {
    ++written_;
    for (std::size_t i = 0; i < options_.pieces(); ++i) {
      FrozenChunk piece = pieces_[i % pieces_.size()];  // shares the memory
      piece.chunk = ChunkId(static_cast<std::uint32_t>(i));
      piece.version = static_cast<Iteration>(written_);
      keeper_.put(snapshot(), std::move(piece));
    }
    sealed_.wait_for(written_);
    return result_;
  }
  absl::Status forget_cached() override {
    for (const auto& file : fs::recursive_directory_iterator(options_.directory)) {
      if (file.path().extension() == ".sst") POSEIDON_RETURN_IF_ERROR(drop_cache(file.path()));
    }
    return absl::OkStatus();
  }
  absl::Status read() override {
    Countdown answers;
    absl::Status status;
    for (std::size_t i = 0; i < options_.pieces(); ++i) {
      if (i >= kReadWindow) answers.wait_for(i + 1 - kReadWindow);
      keeper_.read(snapshot(), PieceId(static_cast<std::uint32_t>(i)),
                   [&, i](const absl::StatusOr<std::shared_ptr<const StoredChunk>>& chunk) {
                     if (!chunk.ok()) {
                       status = chunk.status();
                     } else if ((*chunk)->parameters.back() !=
                                pieces_[i % pieces_.size()].parameters.floats().back()) {
                       status = absl::DataLossError(absl::StrCat("piece ", i, " is another"));
                     }
                     answers.done();
                   });
    }
    answers.wait_for(options_.pieces());
    return status;
  }
  absl::Status remove() override {
    keeper_.forget(snapshot());
    Countdown gone;
    keeper_.read(snapshot(), PieceId(0), [&](const auto&) { gone.done(); });
    gone.wait_for(1);
    return absl::OkStatus();
  }

 private:
  SnapshotId snapshot() const { return snapshot_id(kEpoch, static_cast<Iteration>(written_)); }

  const Options& options_;
  const std::vector<FrozenChunk>& pieces_;
  std::size_t written_ = 0;
  absl::Status result_;
  Countdown sealed_;
  std::optional<BackgroundThread> disk_;
  CheckpointKeeper keeper_;
};

struct Figures {
  std::vector<double> bytes_per_s, cpu_s_per_gb;  ///< by round
};

absl::Status timed(const Options& options, const std::function<absl::Status()>& step,
                   Figures& figures) {
  const double cpu = process_cpu_seconds();
  const auto begin = std::chrono::steady_clock::now();
  POSEIDON_RETURN_IF_ERROR(step());
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  figures.bytes_per_s.push_back(static_cast<double>(options.bytes()) / seconds);
  figures.cpu_s_per_gb.push_back((process_cpu_seconds() - cpu) /
                                 static_cast<double>(options.bytes()) * 1e9);
  return absl::OkStatus();
}

struct Variant {
  std::string name;
  std::unique_ptr<Way> way;
  Figures write, read;
};

absl::Status measure(const Options& options, std::vector<Variant>& variants) {
  for (std::size_t round = 0; round < options.rounds; ++round) {
    for (std::size_t turn = 0; turn < variants.size(); ++turn) {
      Variant& variant = variants[(round + turn) % variants.size()];
      Way& way = *variant.way;
      POSEIDON_RETURN_IF_ERROR(timed(
          options, [&] { return way.write(); }, variant.write));
      POSEIDON_RETURN_IF_ERROR(way.forget_cached());
      POSEIDON_RETURN_IF_ERROR(timed(
          options, [&] { return way.read(); }, variant.read));
      POSEIDON_RETURN_IF_ERROR(way.remove());
    }
  }
  return absl::OkStatus();
}

/// Prints the table; the rows as JSON.
nlohmann::json report(const std::vector<Variant>& variants) {
  std::printf("%-10s %-6s %8s %10s %10s\n", "way", "", "MB/s", "to plain", "CPU s/GB");
  nlohmann::json rows = nlohmann::json::array();
  const Variant& plain = variants.front();
  for (const Variant& variant : variants) {
    for (const bool write : {true, false}) {
      const Figures& figures = write ? variant.write : variant.read;
      const Figures& reference = write ? plain.write : plain.read;
      std::vector<double> ratios;
      for (std::size_t i = 0; i < figures.bytes_per_s.size(); ++i) {
        ratios.push_back(figures.bytes_per_s[i] / reference.bytes_per_s[i]);
      }
      const double bytes_per_s = median(figures.bytes_per_s), cpu = median(figures.cpu_s_per_gb);
      const double ratio = median(ratios);
      std::printf("%-10s %-6s %8.0f %10.2f %10.3f\n", variant.name.c_str(),
                  write ? "write" : "read", bytes_per_s * 1e-6, ratio, cpu);
      rows.push_back({{"way", variant.name},
                      {"operation", write ? "write" : "read"},
                      {"bytes_per_s", bytes_per_s},
                      {"ratio_to_plain", ratio},
                      {"cpu_s_per_gb", cpu}});
    }
  }
  return rows;
}

absl::Status run(const Options& options) {
  tune_process();  // as the server does
  fs::create_directories(options.directory);
  const std::vector<FrozenChunk> pieces = make_pieces(options);
  POSEIDON_ASSIGN_OR_RETURN(auto store,
                            open_rocksdb_chunk_store(fs::path(options.directory) / "store"));
  std::vector<Variant> variants(2);
  variants[0].name = "plain";
  variants[0].way = std::make_unique<PlainFile>(options, &pieces);
  variants[1].name = "keeper";
  variants[1].way = std::make_unique<Keeper>(options, &pieces, std::move(store));
  POSEIDON_RETURN_IF_ERROR(measure(options, variants));
  std::printf("%zu pieces of %zu KiB, %zu rounds\n\n", options.pieces(),
              options.piece_bytes() >> 10, options.rounds);
  const nlohmann::json document = {{"pieces", options.pieces()},
                                   {"piece_bytes", options.piece_bytes()},
                                   {"rounds", options.rounds},
                                   {"rows", report(variants)}};
  return options.json.empty() ? absl::OkStatus()
                              : write_file_atomically(options.json, document.dump(2) + "\n");
}

}  // namespace
}  // namespace poseidon::bench

int main(int argc, char** argv) {
  poseidon::bench::Options options;
  CLI::App app{"A server's checkpoints to the disk and back, beside a plain file."};
  app.add_option("--directory", options.directory, "on the disk to measure; emptied of our files")
      ->capture_default_str();
  app.add_option("--mib", options.mib, "MiB of one snapshot")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--chunk-kib", options.chunk_kib, "KiB of one chunk's parameters")
      ->check(CLI::Range(4, 1 << 20))
      ->capture_default_str();
  app.add_option("--slots", options.slots, "arrays of a chunk: parameters and optimizer slots")
      ->check(CLI::Range(1, 3))
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "rounds; every way takes its turn in each")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--json", options.json, "write the figures to this file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const absl::Status status = poseidon::bench::run(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "poseidon-bench-checkpoint: %s\n", status.ToString().c_str());
  return 1;
}
