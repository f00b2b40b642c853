// The whole coordinator, with messages of nodes and operators in any order, at any time, valid or
// not. Its disk is in memory; the input moves its clock.
//
// Each step begins with a byte that chooses what happens; most take some more. Nodes answer with
// the last epoch they received, plus or minus an offset of the input, so that jobs reach training
// and failures.

#include <stdlib.h>

#include <array>
#include <deque>
#include <filesystem>
#include <limits>
#include <map>
#include <sstream>
#include <utility>

#include "common/base/check.h"
#include "common/files/safetensors.h"
#include "common/files/sha256.h"
#include "common/pages/status_json.h"
#include "coordinator/cluster/cluster.h"
#include "spdlog/spdlog.h"
#include "tests/fuzz/input.h"

namespace poseidon::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kNodes = 5;
constexpr int kMaxSteps = 400;

/// Folders of this process, in memory where the machine has such a file system.
fs::path own_folder() {
  static const std::string kMade = [] {
    std::string name = (fs::exists("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path()) /
                       "poseidon-fuzz-XXXXXX";
    POSEIDON_CHECK(::mkdtemp(name.data()) != nullptr, "a folder");
    return name;
  }();
  static const struct Remover {
    ~Remover() { fs::remove_all(kMade); }
  } kRemover;
  return kMade;
}

/// Tasks wait until the step that gave them is over: the cluster calls with its mutex held.
class Tasks {
 public:
  void add(std::function<void()> task) { waiting_.push_back(std::move(task)); }
  void run_all() {
    while (!waiting_.empty()) {
      const auto task = std::move(waiting_.front());
      waiting_.pop_front();
      task();
    }
  }
  void drop() { waiting_.clear(); }

 private:
  std::deque<std::function<void()>> waiting_;
};

class TasksOf final : public Background {
 public:
  explicit TasksOf(Tasks* tasks) : tasks_(tasks) {}
  ~TasksOf() override { tasks_->drop(); }
  void enqueue(std::function<void()> task) override { tasks_->add(std::move(task)); }

 private:
  Tasks* const tasks_;
};

/// The files of a run; only the next coordinator reads them.
struct RunContents {
  std::string metrics;
  bool has_model = false;
};

class Files final : public RunFiles {
 public:
  Files(Tasks* tasks, RunContents* contents, fs::path path, RunDirectory::Events events)
      : tasks_(tasks), contents_(contents), path_(std::move(path)), events_(std::move(events)) {}
  void append_line(std::string line, std::optional<SnapshotId> reaches) override {
    POSEIDON_CHECK(line.find('\n') == std::string::npos, "one line");
    contents_->metrics += line + "\n";
    if (reaches) tasks_->add([told = events_.on_written, version = *reaches] { told(version); });
  }
  void write_file(std::string name, std::string contents) override {
    if (!fs::path(name).is_absolute()) return;  // for people only
    POSEIDON_CHECK(write_file_atomically(name, contents).ok(), "the disk works");
  }
  void sync() override {}
  void roll_back(Iteration iteration) override {
    contents_->metrics = metrics_before(contents_->metrics, iteration);
  }
  void close(RunEnd /*end*/) override {
    if (!std::exchange(closed_, true)) tasks_->add([closed = events_.on_closed] { closed(); });
  }
  absl::StatusOr<std::unique_ptr<ModelFile>> receive_model(
      std::uint64_t total_bytes) const override {
    return ModelFile::open(own_folder(), total_bytes);
  }
  bool has_model() const override { return contents_->has_model; }
  const fs::path& path() const override { return path_; }
  bool replaced() const override { return false; }

 private:
  Tasks* const tasks_;
  RunContents* const contents_;
  const fs::path path_;
  const RunDirectory::Events events_;
  bool closed_ = false;
};

/// One stream of a node, and the messages that it got.
class Link final : public NodeLink {
 public:
  explicit Link(std::string host) : host_(std::move(host)) {}
  bool send(const v1::CoordinatorMessage& message) override {
    if (closed) return false;
    if (message.has_joined()) node_id = message.joined().node_id();
    if (message.has_assign()) {
      epoch = message.assign().plan().epoch();
      iteration = 0;
    }
    if (message.has_calibrate()) {
      epoch = message.calibrate().epoch();
      step = message.calibrate().step();
    }
    if (message.has_save_checkpoint()) save_at = message.save_checkpoint().iteration();
    if (message.has_clock()) asked = message.clock().number();
    if (message.has_begin_trace()) trace = message.begin_trace().trace();
    return true;
  }
  void close(const absl::Status& /*status*/) override { closed = true; }
  std::string peer_host() const override { return host_; }

  bool closed = false;
  std::uint64_t node_id = 0, epoch = 0, iteration = 0, save_at = 0, asked = 0, trace = 0;
  std::uint32_t step = 0, process_id = 0;

 private:
  const std::string host_;
};

class Sink final : public TraceSink {
 public:
  void write(const v1::TracePart& /*part*/) override { ++waiting; }
  void finish(const absl::Status& /*status*/) override {}
  int waiting = 0;
};

/// What the job file decides, by the letters of its text.
absl::StatusOr<ResolvedJob> resolve(const std::string& text) {
  if (text.empty()) return absl::InvalidArgumentError("batch_size: missing");
  const auto says = [&text](char what) { return text.find(what) != std::string::npos; };
  ResolvedJob job;
  job.name = text;
  job.batch_size = 8;
  job.iterations = says('l') ? 1000 : 6;
  job.layers = {{"conv", "convolution", {20, 1, 5, 5}, 520, false},
                {"fc", "fully_connected", {10, 500}, 5010, true}};
  job.sync.cost = says('t') ? "time" : "bytes";
  job.sync.scheme = says('s') ? "sfb" : "auto";
  job.checkpoint_every = says('c') ? 2 : 0;
  job.replicas = says('r') ? 2 : 1;
  job.replace_timeout_ms = 2000;
  job.learning_rate = [](Iteration) { return 0.05; };
  if (says('e')) {
    job.with_workers = [text](std::uint32_t begun_with,
                              std::uint32_t workers) -> absl::StatusOr<ElasticJob> {
      if (workers > begun_with + 1) return absl::InvalidArgumentError("too many");
      return ElasticJob{.job_json = text, .batch_size = 8, .learning_rate_factor = 1.0};
    };
  }
  return job;
}

class Session {
 public:
  Session(const std::uint8_t* data, std::size_t size) : input_(data, size) {
    fs::remove_all(own_folder() / "state");
    start();
  }
  void run() {
    for (int i = 0; i < kMaxSteps && !input_.rest().empty(); ++i) {
      step();
      tasks_.run_all();
      if (sink_ != nullptr && std::exchange(sink_->waiting, 0) > 0) {
        cluster_->on_trace_written(sink_.get());
      }
      for (std::size_t node = 0; node < kNodes; ++node) {
        if (links_[node] != nullptr && links_[node]->closed) end(node, "was sent away");
      }
      tasks_.run_all();
    }
    look();
  }

 private:
  void start() {
    ClusterDisk disk;
    disk.background = std::make_unique<TasksOf>(&tasks_);
    const auto files = [this](const fs::path& path, RunDirectory::Events events) {
      return std::make_unique<Files>(&tasks_, &runs_[path.string()], path, std::move(events));
    };
    disk.open = [this, files](
                    const fs::path& path, RunDirectory::Begin begin,
                    RunDirectory::Events events) -> absl::StatusOr<std::unique_ptr<RunFiles>> {
      if (begin == RunDirectory::Begin::kAnew) runs_[path.string()] = {};
      return files(path, std::move(events));
    };
    disk.reopen = [this, files](
                      const fs::path& path, RunDirectory::Events events,
                      MetricsProgress& progress) -> absl::StatusOr<std::unique_ptr<RunFiles>> {
      std::istringstream in(runs_[path.string()].metrics);
      progress = read_metrics_progress(in);
      return files(path, std::move(events));
    };
    auto state = StateDirectory::open(own_folder() / "state");
    POSEIDON_CHECK(state.ok(), "the last one is gone");
    cluster_ = std::make_unique<Cluster>(ClusterOptions{}, resolve, *std::move(state), &clock_,
                                         std::move(disk));
    POSEIDON_CHECK(cluster_->restore().ok(), "what a coordinator writes down it goes on with");
  }

  void step() {
    switch (input_.byte() % 16) {
      case 0:
        join();
        break;
      case 1:
        pass(input_.byte());
        break;
      case 2:
        submit();
        break;
      case 3:
        end(input_.byte() % kNodes, "broke its stream");
        break;
      case 4:
        raw();
        break;
      case 5:
        ask();
        break;
      case 6:
        restart();
        break;
      case 7:
        all_are_ready();
        break;
      default:
        report();
        break;
    }
  }

  void join() {
    const std::size_t node = input_.byte() % kNodes;
    const std::uint8_t how = input_.byte();
    if (links_[node] != nullptr) end(node, "opened another stream");
    const auto before = last_links_[node];
    const auto link = std::make_shared<Link>("10.0.0." + std::to_string(node));
    links_[node] = last_links_[node] = link;
    cluster_->on_open(link);
    v1::NodeMessage message;
    v1::Join& joins = *message.mutable_join();
    joins.set_protocol_version(kProtocolVersion + (how % 16 == 15 ? 1U : 0U));
    joins.set_role(node < 3 ? v1::NODE_ROLE_WORKER : v1::NODE_ROLE_SERVER);
    joins.set_address("10.0.0." + std::to_string(node) + ":4702");
    joins.set_device("cpu");
    const bool comes_back = how % 4 == 3 && before != nullptr;
    link->process_id = comes_back ? before->process_id : 1 + how / 16U;
    joins.set_process_id(link->process_id);
    if (node >= 3) joins.set_store_identity(std::string(32, static_cast<char>('0' + node)));
    if (comes_back) {
      v1::Resume& resume = *joins.mutable_resume();
      resume.set_node_id(before->node_id);
      resume.set_epoch(before->epoch + how / 64);
      resume.set_index(how / 4 % 4);
      resume.set_next_iteration(before->iteration);
      link->epoch = before->epoch;
      link->iteration = before->iteration;
    }
    cluster_->on_message(link.get(), message);
  }

  void report() {
    const std::size_t node = input_.byte() % kNodes;
    const std::uint8_t how = input_.byte();
    if (links_[node] == nullptr) return;
    Link& link = *links_[node];
    // Now and then of the epoch before or after.
    const std::uint64_t epoch = link.epoch + (how >= 250 ? 1 : how >= 244 ? ~std::uint64_t{0} : 0);
    const double number = std::array{1.0,
                                     0.5,
                                     2.0,
                                     std::numeric_limits<double>::infinity(),
                                     std::numeric_limits<double>::quiet_NaN(),
                                     -1.0,
                                     0.0,
                                     std::numeric_limits<double>::max()}[how / 16 % 8];
    v1::NodeMessage message;
    switch (how % 14) {
      case 0:
        message.mutable_ready()->set_epoch(epoch);
        break;
      case 1:
      case 2:
      case 3:
        message.mutable_iteration()->set_epoch(epoch);
        message.mutable_iteration()->set_iteration(link.iteration++);
        message.mutable_iteration()->set_loss(how < 128 ? 1.0 : number);
        break;
      case 4:
        message.mutable_test()->set_epoch(epoch);
        message.mutable_test()->set_iteration(how / 16);
        message.mutable_test()->set_loss_sum(number);
        message.mutable_test()->set_samples(how / 32);
        message.mutable_test()->set_correct(how / 64);
        break;
      case 5:
        message.mutable_finished()->set_epoch(epoch);
        break;
      case 6:
        message.mutable_failed()->set_epoch(epoch);
        message.mutable_failed()->set_reason("no such file");
        message.mutable_failed()->set_failure(static_cast<v1::Failure>(how / 16 % 4));
        // Another node, itself, or none that is there.
        message.mutable_failed()->set_unreachable("10.0.0." + std::to_string(how / 32) + ":4702");
        break;
      case 7:
        calibrated(*message.mutable_calibration(), epoch, link.step, how < 96 ? 1e6 : number);
        break;
      case 8:
        message.mutable_checkpoint()->set_epoch(epoch);
        message.mutable_checkpoint()->set_iteration(how < 128 && link.save_at != 0 ? link.save_at
                                                                                   : 2 + how / 16);
        message.mutable_checkpoint()->set_stored(how % 32 < 24);
        message.mutable_checkpoint()->set_too_late(how >= 200);
        message.mutable_checkpoint()->set_busy(how >= 160);
        message.mutable_checkpoint()->set_seconds(number);
        break;
      case 9:
        message.mutable_halted()->set_epoch(epoch);
        message.mutable_halted()->set_oldest(how < 128 ? link.iteration : how / 16);
        message.mutable_halted()->set_newest(link.iteration);
        break;
      case 10:
        heartbeat(*message.mutable_heartbeat(), number, how);
        break;
      case 11:
        message.mutable_clock()->set_number(link.asked);
        message.mutable_clock()->set_received_ns(how);
        message.mutable_clock()->set_sent_ns(how / 2);
        break;
      case 12:
        message.mutable_trace()->set_trace(link.trace);
        message.mutable_trace()->set_total(how / 64);
        message.mutable_trace()->add_events()->set_stage(how);
        break;
      default:
        message.mutable_leave()->set_reason("SIGTERM");
        break;
    }
    cluster_->on_message(&link, message);
  }

  static void calibrated(v1::CalibrationReport& report, std::uint64_t epoch, std::uint32_t step,
                         double speed) {
    report.set_epoch(epoch);
    report.set_step(step);
    for (const char* const name : {"conv", "fc"}) {
      v1::LayerTimesMessage& layer = *report.add_layers();
      layer.set_name(name);
      layer.set_forward_seconds(1.0 / speed);
      layer.set_backward_seconds(2.0 / speed);
    }
    report.set_device_ops_per_s(speed * 1e3);
    report.set_server_sum_bytes_per_s(speed);
    report.set_send_bytes_per_s(speed);
    report.set_receive_bytes_per_s(speed);
    report.set_latency_seconds(1e-4);
  }

  static void heartbeat(v1::Heartbeat& beat, double number, std::uint8_t how) {
    for (std::uint32_t i = 0; i < how / 64U; ++i) {
      v1::LayerTraffic& layer = *beat.add_layers();
      layer.set_layer(i);
      layer.set_sent_bytes(how);
      layer.set_stall_seconds(number);
      layer.set_backward_seconds(number);
      layer.set_passes(how);
      layer.set_sync_seconds(number);
      layer.set_syncs(how);
    }
    beat.set_data_stall_seconds(number);
    beat.mutable_load()->set_machine(how / 128);
    beat.mutable_load()->set_cpu_seconds(number);
  }

  /// As when nothing goes wrong.
  void all_are_ready() {
    for (const auto& link : links_) {
      if (link == nullptr || link->closed) continue;
      v1::NodeMessage beat;
      beat.mutable_heartbeat();
      cluster_->on_message(link.get(), beat);
      v1::NodeMessage message;
      message.mutable_ready()->set_epoch(link->epoch);
      cluster_->on_message(link.get(), message);
    }
  }

  void raw() {
    const std::size_t node = input_.byte() % kNodes;
    const std::string_view bytes = input_.rest().substr(0, input_.byte());
    for (std::size_t i = 0; i < bytes.size(); ++i) input_.byte();
    v1::NodeMessage message;
    if (links_[node] == nullptr) return;
    if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
    cluster_->on_message(links_[node].get(), message);
  }

  void submit() {
    v1::SubmitRequest request;
    request.set_protocol_version(kProtocolVersion);
    const std::uint8_t what = input_.byte();
    for (int i = 0; i < 6; ++i) {
      if ((what >> i) % 2 == 1) request.mutable_job_json()->push_back("ltscre"[i]);
    }
    const std::uint8_t nodes = input_.byte();
    request.set_workers(nodes % 4);
    request.set_servers(nodes / 4 % 3);
    (void)cluster_->submit(request);
  }

  void ask() {
    const std::uint8_t what = input_.byte();
    const std::string id =
        what < 128 ? "" : std::to_string(what / 8 % 4) + "-" + std::to_string(what % 8);
    switch (what % 7) {
      case 0: {
        v1::RequestCheckpointRequest request;
        request.set_protocol_version(kProtocolVersion);
        (void)cluster_->request_checkpoint(request);
        break;
      }
      case 1: {
        v1::LocateCheckpointRequest request;
        request.set_protocol_version(kProtocolVersion);
        request.set_id(id);
        (void)cluster_->locate_checkpoint(request);
        break;
      }
      case 2: {
        v1::RestoreCheckpointRequest request;
        request.set_protocol_version(kProtocolVersion);
        request.set_id(id);
        request.set_workers(what % 4 == 3 ? 1 : 0);
        (void)cluster_->restore_checkpoint(request);
        break;
      }
      case 3: {
        v1::TraceRequest request;
        request.set_protocol_version(kProtocolVersion);
        request.set_iterations(what / 64);
        request.set_timeout_ms(1000);
        if (what >= 192 && sink_ != nullptr) cluster_->on_trace_cancelled(sink_.get());
        const auto sink = std::make_shared<Sink>();
        if (cluster_->begin_trace(request, sink).ok()) sink_ = sink;
        break;
      }
      case 4:
        look();
        break;
      case 6: {
        v1::EndJobRequest request;
        request.set_protocol_version(kProtocolVersion);
        request.set_checkpoint_within_s(what / 64);
        (void)cluster_->end_job(request);
        break;
      }
      default:
        upload(what);
        break;
    }
  }

  /// Worker 0's model, whole or not.
  void upload(std::uint8_t what) {
    const std::uint64_t epoch = links_[0] == nullptr ? what : links_[0]->epoch;
    const std::vector<float> values(what, 1.0f);
    const TensorView tensor{.name = "m", .shape = {what}, .values = values};
    const auto encoded = encode_safetensors(std::span(&tensor, 1));
    POSEIDON_CHECK(encoded.ok(), "a shape that fits");
    std::string model = encoded->header + std::string(encoded->values.front());
    if (what % 8 == 1) model.back() = 'x';
    if (what % 8 == 2) model = "ten bytes.";
    const std::string digest = sha256(model);
    if (what % 8 != 0 && links_[0] != nullptr) {
      v1::NodeMessage announcement;
      announcement.mutable_model()->set_epoch(epoch);
      announcement.mutable_model()->set_sha256(what % 8 == 3 ? "short" : digest);
      cluster_->on_message(links_[0].get(), announcement);
    }
    const std::uint64_t bytes =
        what / 64 == 3 ? std::numeric_limits<std::uint64_t>::max() : model.size();
    auto upload = cluster_->begin_upload(epoch, bytes, digest);
    if (!upload.ok()) return;
    absl::Status status = upload->file->append(0, what / 64 == 2 ? model.substr(0, 1) : model);
    if (status.ok()) status = cluster_->commit_upload(*upload);
    if (status.ok()) runs_[upload->directory->path().string()].has_model = true;
    cluster_->end_upload(epoch, worth_another_try(status));
  }

  /// Whatever happened, it can be told.
  void look() {
    v1::GetStatusRequest request;
    request.set_protocol_version(kProtocolVersion);
    const auto status = cluster_->status(request);
    POSEIDON_CHECK(status.ok(), "status is always told");
    (void)status_to_json(*status).dump();  // throws where a text is no UTF-8
    v1::ListCheckpointsRequest checkpoints;
    checkpoints.set_protocol_version(kProtocolVersion);
    POSEIDON_CHECK(cluster_->list_checkpoints(checkpoints).ok(), "likewise");
    (void)cluster_->figures();
    (void)cluster_->view();
  }

  /// Up to four seconds, or some minutes.
  void pass(int time) {
    const Nanoseconds tick =
        time < 200 ? Milliseconds(5) * time : Milliseconds(2500) * (time - 199);
    for (int i = 0; i < 4; ++i) {
      clock_.advance(tick);
      cluster_->tick();
      tasks_.run_all();
    }
  }

  void end(std::size_t node, const char* reason) {
    const auto link = std::exchange(links_[node], nullptr);
    if (link == nullptr) return;
    link->closed = true;
    cluster_->on_end(link.get(), reason);
  }

  /// Killed and started again, without a goodbye.
  void restart() {
    cluster_.reset();
    tasks_.drop();
    for (auto& link : links_) link.reset();
    start();
  }

  Input input_;
  ManualClock clock_;
  Tasks tasks_;
  std::map<std::string, RunContents> runs_;  ///< by run directory
  std::array<std::shared_ptr<Link>, kNodes> links_, last_links_;
  std::shared_ptr<Sink> sink_;  ///< of the trace that is taken, or was
  std::unique_ptr<Cluster> cluster_;
};

}  // namespace
}  // namespace poseidon::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  spdlog::set_level(spdlog::level::off);
  // It logs every text that is no UTF-8.
  google::protobuf::SetLogHandler(nullptr);
  poseidon::fuzz::Session(data, size).run();
  return 0;
}
