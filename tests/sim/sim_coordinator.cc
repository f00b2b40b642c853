#include "tests/sim/sim_coordinator.h"

#include <algorithm>
#include <deque>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/files/file_io.h"
#include "coordinator/planning/jobs/job_resolver.h"
#include "nlohmann/json.hpp"

namespace poseidon::sim {
namespace {

constexpr Milliseconds kTick{100};
constexpr std::size_t kMaxQueuedMessages = 1024;

/// The twin of RunDirectory: what is queued is written in its order, each after some time, and what
/// is not written yet goes with the process.
class SimRunFiles final : public RunFiles {
 public:
  SimRunFiles(Transport* loop, SimCoordinatorDisk* disk, std::filesystem::path path,
              RunDirectory::Events events, const SimCoordinatorOptions& options)
      : disk_(disk),
        path_(std::move(path)),
        events_(std::move(events)),
        rolled_back_(options.rolled_back),
        writer_(loop, mix_seed(options.seed, 5), options.slowest_disk) {}

  void append_line(std::string line, std::optional<SnapshotId> reaches) override {
    write([this, line = std::move(line), reaches] {
      metrics() += line + "\n";
      if (reaches) events_.on_written(*reaches);
    });
  }
  void write_file(std::string name, std::string contents) override {
    if (!std::filesystem::path(name).is_absolute()) return;  // for people only
    write([name = std::move(name), contents = std::move(contents)] {
      POSEIDON_CHECK(write_file_atomically(name, contents).ok(), "the disk works");
    });
  }
  void sync() override {}
  void roll_back(Iteration iteration) override {
    write([this, iteration] {
      std::istringstream in(metrics());
      const Iteration done = read_metrics_progress(in).next_iteration;
      rolled_back_(iteration, std::max<Iteration>(done - iteration, 0));
      metrics() = metrics_before(metrics(), iteration);
    });
  }
  void close(RunEnd /*end*/) override {
    if (std::exchange(closed_, true)) return;
    writer_.enqueue([this] { events_.on_closed(); });
  }
  absl::StatusOr<std::unique_ptr<ModelFile>> receive_model(
      std::uint64_t total_bytes) const override {
    return ModelFile::open(path_, total_bytes);
  }
  bool has_model() const override { return std::filesystem::exists(path_ / "model.safetensors"); }
  const std::filesystem::path& path() const override { return path_; }
  bool replaced() const override { return false; }

 private:
  std::string& metrics() { return disk_->metrics[path_.string()]; }
  void write(std::function<void()> what) {
    if (!closed_) writer_.enqueue(std::move(what));
  }

  SimCoordinatorDisk* const disk_;
  const std::filesystem::path path_;
  const RunDirectory::Events events_;
  const RollBackProbe rolled_back_;
  bool closed_ = false;
  SimBackground writer_;
};

const char* name_of(const v1::NodeMessage& message) {
  switch (message.body_case()) {
    case v1::NodeMessage::kJoin:
      return message.join().has_resume() ? "resume" : "join";
    case v1::NodeMessage::kReady:
      return "ready";
    case v1::NodeMessage::kIteration:
      return "iteration";
    case v1::NodeMessage::kTest:
      return "test";
    case v1::NodeMessage::kModel:
      return "model";
    case v1::NodeMessage::kFinished:
      return "finished";
    case v1::NodeMessage::kFailed:
      return "failed";
    case v1::NodeMessage::kCheckpoint:
      return "checkpoint";
    case v1::NodeMessage::kHalted:
      return "halted";
    default:
      return "";
  }
}

const char* name_of(const v1::CoordinatorMessage& message) {
  switch (message.body_case()) {
    case v1::CoordinatorMessage::kAssign:
      return "assign";
    case v1::CoordinatorMessage::kStart:
      return "start";
    case v1::CoordinatorMessage::kStop:
      return "stop";
    case v1::CoordinatorMessage::kSaveCheckpoint:
      return "save";
    case v1::CoordinatorMessage::kForgetCheckpoint:
      return "forget";
    case v1::CoordinatorMessage::kHalt:
      return "halt";
    default:
      return "";
  }
}

}  // namespace

class SimCoordinator::LoopClock final : public Clock {
 public:
  explicit LoopClock(const Transport* loop) : loop_(loop) {}
  Nanoseconds now() const override { return loop_->now(); }
  Milliseconds unix_time() const override {
    return std::chrono::duration_cast<Milliseconds>(loop_->now());
  }

 private:
  const Transport* const loop_;
};

// ---- streams of nodes ----

class SimCoordinator::Link final : public NodeLink,
                                   public StreamHandler,
                                   public std::enable_shared_from_this<Link> {
 public:
  Link(SimCoordinator* process, std::unique_ptr<Stream> stream)
      : process_(process), stream_(std::move(stream)) {}

  bool send(const v1::CoordinatorMessage& message) override {
    if (stream_ == nullptr || closing_ || outgoing_.size() >= kMaxQueuedMessages) return false;
    process_->options_.probe(/*sent=*/true, name_of(message));
    if (message.has_assign()) process_->options_.assigns(Epoch(message.assign().plan().epoch()));
    outgoing_.push_back(message);
    pump();
    return true;
  }
  void close(const absl::Status& status) override {
    if (std::exchange(closing_, true)) return;
    close_status_ = status;
    pump();
  }
  std::string peer_host() const override { return "10.0.0.9"; }

  ReadNext on_message(Bytes message) override {
    const auto self = shared_from_this();
    v1::NodeMessage parsed;
    POSEIDON_CHECK(parsed.ParseFromString(text_of(message)), "a whole message");
    process_->options_.probe(/*sent=*/false, name_of(parsed));
    process_->cluster_->on_message(this, parsed);
    return ReadNext::kContinue;
  }
  void on_written() override {
    writing_ = false;
    pump();
  }
  void on_closed(const absl::Status& status) override;

 private:
  void pump() {
    if (stream_ == nullptr || writing_) return;
    if (!outgoing_.empty()) {
      writing_ = true;
      const v1::CoordinatorMessage message = std::move(outgoing_.front());
      outgoing_.pop_front();
      stream_->write(to_wire(message));
    } else if (closing_ && !std::exchange(closed_, true)) {
      stream_->close(close_status_);
    }
  }

  SimCoordinator* const process_;
  std::unique_ptr<Stream> stream_;
  std::deque<v1::CoordinatorMessage> outgoing_;
  bool writing_ = false, closing_ = false, closed_ = false;
  absl::Status close_status_;
};

class SimCoordinator::Links final : public Acceptor {
 public:
  explicit Links(SimCoordinator* process) : process_(process) {}
  StreamHandler* on_accept(std::unique_ptr<Stream> stream) override {
    links_.push_back(std::make_shared<Link>(process_, std::move(stream)));
    process_->cluster_->on_open(links_.back());
    return links_.back().get();
  }
  void remove(const Link* link) {
    std::erase_if(links_, [link](const auto& one) { return one.get() == link; });
  }

 private:
  SimCoordinator* const process_;
  std::vector<std::shared_ptr<Link>> links_;
};

void SimCoordinator::Link::on_closed(const absl::Status& status) {
  const auto self = shared_from_this();
  stream_.reset();
  process_->cluster_->on_end(this, status.ok() ? "ended its stream" : "broke its stream");
  process_->links_->remove(this);
}

// ---- the model ----

class SimCoordinator::Upload final : public StreamHandler {
 public:
  Upload(SimCoordinator* process, std::unique_ptr<Stream> stream)
      : process_(process), stream_(std::move(stream)) {}
  ~Upload() override { *alive_ = false; }

  /// As coordinator/service.cc does it, with some time between first and last part.
  ReadNext on_message(Bytes message) override {
    POSEIDON_CHECK(part_.ParseFromString(text_of(message)), "a whole message");
    absl::StatusOr<Cluster::Upload> upload =
        process_->cluster_->begin_upload(part_.epoch(), part_.total_bytes(), part_.sha256());
    if (!upload.ok()) {
      stream_->close(upload.status());
      return ReadNext::kContinue;
    }
    upload_ = *std::move(upload);
    process_->transport_->post_after(process_->options_.slowest_disk, [this, alive = alive_] {
      if (*alive) finish(/*whole=*/true);
    });
    return ReadNext::kContinue;
  }
  void on_written() override {}
  void on_closed(const absl::Status& status) override;

  void finish(bool whole) {
    if (upload_.file == nullptr) return;
    absl::Status status =
        whole ? upload_.file->append(0, part_.data()) : absl::CancelledError("the stream broke");
    if (status.ok()) status = process_->cluster_->commit_upload(upload_);
    upload_.file.reset();
    process_->cluster_->end_upload(part_.epoch(), status);
    upload_.directory.reset();
    if (stream_ != nullptr) stream_->close(status);
  }

 private:
  SimCoordinator* const process_;
  std::unique_ptr<Stream> stream_;
  v1::ModelPart part_;
  Cluster::Upload upload_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

class SimCoordinator::Uploads final : public Acceptor {
 public:
  explicit Uploads(SimCoordinator* process) : process_(process) {}
  StreamHandler* on_accept(std::unique_ptr<Stream> stream) override {
    uploads_.push_back(std::make_unique<Upload>(process_, std::move(stream)));
    return uploads_.back().get();
  }
  void remove(const Upload* upload) {
    std::erase_if(uploads_, [upload](const auto& one) { return one.get() == upload; });
  }

 private:
  SimCoordinator* const process_;
  std::vector<std::unique_ptr<Upload>> uploads_;
};

void SimCoordinator::Upload::on_closed(const absl::Status& /*status*/) {
  stream_.reset();
  finish(/*whole=*/false);
  process_->uploads_->remove(this);
}

// ---- the process ----

SimCoordinator::SimCoordinator(Transport* transport, const SimCoordinatorOptions& options,
                               SimCoordinatorDisk* disk)
    : transport_(transport),
      options_(options),
      clock_(std::make_unique<LoopClock>(transport)),
      links_(std::make_unique<Links>(this)),
      uploads_(std::make_unique<Uploads>(this)) {
  auto state = StateDirectory::open(disk->state);
  POSEIDON_CHECK(state.ok(), "the earlier process is gone");
  ClusterDisk seams;
  seams.background =
      std::make_unique<SimBackground>(transport, mix_seed(options.seed, 4), options.slowest_disk);
  seams.open = [this, disk](
                   const std::filesystem::path& path, RunDirectory::Begin begin,
                   RunDirectory::Events events) -> absl::StatusOr<std::unique_ptr<RunFiles>> {
    std::filesystem::create_directories(path);
    std::filesystem::remove(path / "model.safetensors");
    if (begin == RunDirectory::Begin::kAnew) disk->metrics[path.string()].clear();
    return std::make_unique<SimRunFiles>(transport_, disk, path, std::move(events), options_);
  };
  seams.reopen = [this, disk](
                     const std::filesystem::path& path, RunDirectory::Events events,
                     MetricsProgress& progress) -> absl::StatusOr<std::unique_ptr<RunFiles>> {
    std::string& text = disk->metrics[path.string()];
    std::istringstream in(text);
    progress = read_metrics_progress(in);
    text.resize(progress.bytes);
    return std::make_unique<SimRunFiles>(transport_, disk, path, std::move(events), options_);
  };
  cluster_ = std::make_unique<Cluster>(options.cluster, resolve_job, *std::move(state),
                                       clock_.get(), std::move(seams));
  POSEIDON_CHECK(cluster_->restore().ok(), "the disk works");
  POSEIDON_CHECK(transport->listen(kCoordinatorAddress, links_.get()).ok(), "a free address");
  POSEIDON_CHECK(transport->listen(kUploadAddress, uploads_.get()).ok(), "a free address");
  tick();
}

/// A kill, without a message to any node. MemoryNetwork::kill came before.
SimCoordinator::~SimCoordinator() {
  *alive_ = false;
  uploads_.reset();
  cluster_.reset();
  links_.reset();
}

void SimCoordinator::tick() {
  cluster_->tick();
  transport_->post_after(kTick, [this, alive = alive_] {
    if (*alive) tick();
  });
}

}  // namespace poseidon::sim
