#pragma once

// The files of one run: metrics.jsonl, plan.json, job.json, model.safetensors. Thin: decides
// nothing.
//
// Called by: coordinator/cluster/cluster.h, which decides what to write; a restarted coordinator
// reads the run's progress here. Calls: the disk.
//
// Concurrency contract
//  1. append_line, write_file, roll_back, sync and close are called from any thread and never touch
//     the disk: they queue for the writer thread, so that a slow disk stalls no heartbeat.
//  2. on_written (lines are on disk), on_trouble (once per period of trouble: unwritten data is
//     kept and retried), on_error (gave up) and on_closed (once, last) are called on the writer
//     thread without a lock held.

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <istream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/descriptor.h"
#include "common/base/ids.h"
#include "common/files/file_io.h"
#include "common/files/safetensors.h"
#include "common/files/sha256.h"
#include "common/threads/mutex.h"
#include "common/wire/snapshot.h"
#include "coordinator/records/loss_curve.h"

namespace poseidon {

/// The progress, by metrics.jsonl, of a run that an earlier coordinator began.
struct MetricsProgress {
  std::int64_t next_iteration = 0;               ///< first iteration without a line
  std::optional<double> loss;                    ///< of the last iteration
  std::optional<std::int64_t> tested_iteration;  ///< of the last test
  double test_loss = 0.0;
  double test_accuracy = 0.0;
  std::uint64_t bytes = 0;  ///< of the lines that count
  LossCurve curve;          ///< of them
};
/// Reads up to the first torn or foreign line.
MetricsProgress read_metrics_progress(std::istream& in);

/// An incoming model.safetensors: a temporary file until commit(). One thread at a time.
class ModelFile {
 public:
  /// In this run directory.
  static absl::StatusOr<std::unique_ptr<ModelFile>> open(const std::filesystem::path& directory,
                                                         std::uint64_t total_bytes);
  /// `offset` must continue where the last part ended.
  absl::Status append(std::uint64_t offset, std::string_view data);
  /// Once all bytes have arrived: INVALID_ARGUMENT unless they have this digest and are a
  /// safetensors file that suits `check_header` (null: any).
  absl::Status check(
      const std::string& sha256,
      const std::function<absl::Status(const SafetensorsHeader&)>& check_header) const;
  /// All bytes have arrived: fsync and rename into place. The file appears whole or not at all.
  absl::Status commit();

 private:
  ModelFile(const std::filesystem::path& path, std::uint64_t total_bytes);
  absl::Status check_whole() const;

  AtomicFile file_;
  const std::uint64_t total_bytes_;
  std::uint64_t written_bytes_ = 0;
  Sha256 hash_;
};

/// Why writing ends: the run is over, or another process continues it.
enum class RunEnd { kOver, kLeft };

/// The interface of a run's files; RunDirectory documents each function.
class RunFiles {
 public:
  virtual ~RunFiles() = default;
  virtual void append_line(std::string line, std::optional<SnapshotId> reaches) = 0;
  virtual void write_file(std::string name, std::string contents) = 0;
  virtual void roll_back(Iteration iteration) = 0;
  virtual void sync() = 0;
  virtual void close(RunEnd end) = 0;
  virtual absl::StatusOr<std::unique_ptr<ModelFile>> receive_model(
      std::uint64_t total_bytes) const = 0;
  virtual bool has_model() const = 0;
  virtual const std::filesystem::path& path() const = 0;
  virtual bool replaced() const = 0;
};

class RunDirectory final : public RunFiles {
 public:
  struct Events {
    /// Called with the last version reached by the lines written to disk since the last call.
    std::function<void(SnapshotId)> on_written;
    std::function<void(const absl::Status&)> on_trouble, on_error;
    /// A file outside the directory could not be written, for a new reason, or (OK) has now been
    /// written. May be null.
    std::function<void(const absl::Status&)> on_record;
    std::function<void()> on_closed;
  };
  /// Limit of lines and files that wait for the disk, with overhead: half a million lines. Beyond
  /// it the run fails instead of exhausting the memory.
  static constexpr std::size_t kMaxQueuedBytes = std::size_t{128} << 20;

  enum class Begin {
    kAnew,  ///< files of an earlier run in the same place are replaced; `replaced()` says so
    kGoOn,  ///< keeps its metrics, until roll_back; replaces all else, and so a stopped run's model
  };
  /// Creates `path` and metrics.jsonl where missing. Where a finished model lies, it and the files
  /// beside it are moved to `path`/earlier (with kGoOn the metrics are copied), in the place of
  /// what an earlier such move left there (coordinator/records/earlier_run.h). Whoever was killed
  /// meanwhile calls it again. kAnew refuses a folder where no run has been (no metrics) and that
  /// has a file of a run's name all the same: INVALID_ARGUMENT. Errors name the path and the
  /// system's reason.
  static absl::StatusOr<std::unique_ptr<RunDirectory>> open(const std::filesystem::path& path,
                                                            Begin begin, Events events);
  /// Whether `file` is a model that open() would move or replace.
  static bool moves_as_run_begins(const std::filesystem::path& path,
                                  const std::filesystem::path& file);
  /// Continues where an earlier process stopped: cuts off what follows the last valid line of
  /// metrics.jsonl, and sets `progress`. If the cut part is more than an incomplete line, it is
  /// saved to kCutMetricsFile. NOT_FOUND when there is no such file.
  static absl::StatusOr<std::unique_ptr<RunDirectory>> reopen(const std::filesystem::path& path,
                                                              Events events,
                                                              MetricsProgress& progress);
  ~RunDirectory() override;  ///< closes (the run is over) and waits for the writer thread

  /// `reaches`: the version for on_written once the line is on disk.
  void append_line(std::string line, std::optional<SnapshotId> reaches) override;
  /// In the run directory, or anywhere where `name` is an absolute path: then in its turn as long
  /// as both disks take what they are given. Neither waits for the other's: of what could not be
  /// written elsewhere the newest is, once there is room. Metrics that go back, the first such file
  /// behind that, and the lines behind both keep their order.
  void write_file(std::string name, std::string contents) override;
  /// Removes the metrics of iterations and tests from this one on, which will be repeated.
  void roll_back(Iteration iteration) override;
  /// Makes everything queued before survive a power failure.
  void sync() override;
  /// Writes everything queued before, then calls on_closed. With RunEnd::kLeft a failed write does
  /// not call on_error, because the nodes report those lines again to the next process. Idempotent.
  void close(RunEnd end) override;

  /// Starts to receive model.safetensors. The directory must outlive the file.
  absl::StatusOr<std::unique_ptr<ModelFile>> receive_model(
      std::uint64_t total_bytes) const override;

  bool has_model() const override;

  const std::filesystem::path& path() const override { return path_; }
  bool replaced() const override { return replaced_; }

 private:
  struct Line {
    std::string text;
    std::optional<SnapshotId> reaches;
  };
  struct File {
    std::string name, contents;
    /// A file that may lie on another disk: the job's record.
    bool is_elsewhere() const { return std::filesystem::path(name).is_absolute(); }
  };
  struct RollBack {
    Iteration iteration = 0;
  };
  struct Sync {};
  using Item = std::variant<Line, File, RollBack, Sync>;

  RunDirectory(std::filesystem::path path, Events events, Descriptor metrics_fd, bool replaced);
  void enqueue(Item item);
  static std::size_t bytes_of(const Item& item);
  static std::size_t bytes_of(const std::deque<Item>& items);
  void write_loop();
  /// The error because of which lines still wait to be written.
  struct Written {
    absl::Status own, elsewhere;
    bool all() const { return own.ok() && elsewhere.ok(); }
    const absl::Status& first() const { return own.ok() ? elsewhere : own; }
  };
  Written write_items(std::deque<Item>& items);
  absl::Status write_next(std::deque<Item>& items);
  absl::Status write_lines(std::deque<Item>& items);
  absl::Status write_named(const File& file);
  void write_elsewhere(std::deque<Item>& items, bool is_over);
  absl::Status roll_back_now(Iteration iteration);
  absl::Status find_again();

  const std::filesystem::path path_;
  const Events events_;
  Descriptor metrics_fd_;   ///< the writer thread's
  bool went_back_ = false;  ///< the writer thread's: no record was written since the metrics did
  std::string record_refused_;  ///< the writer thread's: reason of the last refusal; "" if none
  const bool replaced_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<Item> queue_ ABSL_GUARDED_BY(mutex_);
  /// Including the lines that are being written.
  std::size_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool overflow_ ABSL_GUARDED_BY(mutex_) = false;
  /// One of them may be written elsewhere.
  bool has_record_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<RunEnd> closing_ ABSL_GUARDED_BY(mutex_);
  std::thread writer_;
};

/// The progress of the run that is resumed in this directory; nullopt for a new run.
std::optional<MetricsProgress> progress_of_earlier(const std::filesystem::path& directory,
                                                   RunDirectory::Begin begin);

/// A directory without metrics.jsonl never held a run, so files with a run's names in it are the
/// user's own (a job file that is kept as job.json, say); so is a metrics.jsonl of another tool.
/// INVALID_ARGUMENT names what a run that begins in this folder would overwrite.
absl::Status check_nothing_foreign(const std::filesystem::path& run_directory);

/// Removes `.`, `..` and a trailing slash, textually.
std::filesystem::path plain_folder(const std::filesystem::path& path);

/// Whether two absolute paths name one folder: by their text, or by the existing folder.
bool is_same_folder(const std::filesystem::path& one, const std::filesystem::path& other);

/// The lines of metrics.jsonl about iterations and tests before this one. Drops other lines (torn
/// ones).
std::string metrics_before(std::string_view metrics, Iteration iteration);

}  // namespace poseidon
